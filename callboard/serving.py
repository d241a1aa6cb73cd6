"""The gateway, composed for a project: the same whatever carries its messages and events."""

from actors.dispatch import Dispatcher
from actors.events import EventReader
from callboard import __version__, user_code
from callboard.config import Project
from callboard.errors import StartError
from gateway.app import create_app
from gateway.asgi_lifespan import StartupFailed
from gateway.server import serve as serve_app
from gateway.settings import GatewaySettings
from persistence.engine import Database


def serve(
    project: Project,
    code: user_code.UserCode,
    settings: GatewaySettings,
    *,
    database: Database,
    dispatcher: Dispatcher,
    events: EventReader,
) -> None:
    """Serves the project over HTTP until SIGTERM or SIGINT. Raises StartError."""
    app = create_app(
        settings,
        database=database,
        dispatcher=dispatcher,
        events=events,
        graph_ids=frozenset(project.graphs),
        descriptions={
            name: graph.description
            for name, graph in project.graphs.items()
            if graph.description is not None
        },
        version=__version__,
        store_config=project.store,
        webhooks=project.webhooks,
        thread_ttl=project.thread_ttl,
        access=code.access,
        http=project.http,
        custom=code.custom,
    )
    try:
        serve_app(app, settings)
    except StartupFailed as error:
        raise StartError(f"{project.path}: http.app: it cannot start: {error}") from None
