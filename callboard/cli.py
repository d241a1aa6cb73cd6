"""The command line. Each command imports what it needs when called: ``version`` is instant."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from callboard import __version__
from callboard.errors import StartError

if TYPE_CHECKING:
    from callboard.launch import Launch

_PATH = click.Path(path_type=Path)

_LAUNCH_OPTIONS = (
    click.option(
        *("--config", "-c"),
        type=_PATH,
        envvar="CALLBOARD_CONFIG",
        default="langgraph.json",
        help="The project's langgraph.json, or its folder.  [CALLBOARD_CONFIG]",
    ),
    click.option(
        "--host", envvar="HOST", default="127.0.0.1", help="Address to listen on.  [HOST]"
    ),
    click.option(
        *("--port", "-p"),
        type=click.IntRange(0, 65535),
        envvar="PORT",
        default=2024,
        help="Port to listen on; 0 for any free one.  [PORT]",
    ),
    click.option(
        "--data",
        type=_PATH,
        envvar="CALLBOARD_DATA",
        help="Folder for logs and embedded services; default: .callboard in the project's folder."
        "  [CALLBOARD_DATA]",
    ),
)


def _launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_LAUNCH_OPTIONS):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Callboard: a self-hosted run server for LangGraph graphs.

    DATABASE_URL and REDIS_URL name running services; what is not named is started by us.
    """


def main() -> None:
    """Runs a command. Mistakes of ours are tracebacks; those of a person are one sentence."""
    try:
        cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except StartError as error:
        sys.exit(f"callboard: {error}")


@cli.command()
@_launch_options
def up(**options: Any) -> None:
    """Serve a project with everything it needs, on this machine."""
    from callboard import checks, up

    if sys.stdout.isatty():
        os.environ.setdefault("LOG_JSON", "false")  # a person reads along
    launch = _launch(**options)
    sys.exit(up.run(launch, checks.before_start(launch), reload=False))


@cli.command()
@_launch_options
@click.option("--in-process", is_flag=True, help="One process, no Redis, no recovery: to debug.")
def dev(in_process: bool, **options: Any) -> None:
    """Serve a project while you work on it: one graph process, reloaded when files change."""
    from callboard import checks, up

    os.environ.setdefault("WORKER_COUNT", "1")
    os.environ.setdefault("CALLBOARD_GATEWAYS", "1")
    os.environ.setdefault("WORKER_DRAIN_TIMEOUT", "2")
    os.environ.setdefault("LOG_JSON", "false")
    launch = _launch(**options)
    if in_process:
        from callboard import inprocess

        launch = replace(launch, redis_url=None)  # there is none in this mode
        sys.exit(inprocess.serve(launch, checks.before_start(launch)))
    sys.exit(up.run(launch, checks.before_start(launch), reload=True))


@cli.command()
@_launch_options
@click.option("--with-parent", is_flag=True, hidden=True)
def supervise(with_parent: bool, **options: Any) -> None:
    """Become supervisord with supervisord.conf, its variables filled (for production)."""
    from callboard import launch

    launch.exec_supervisord(_launch(**options), with_parent=with_parent)


@cli.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def ctl(arguments: tuple[str, ...]) -> None:
    """Run supervisorctl on the supervisord of CALLBOARD_DATA."""
    from callboard import launch

    config = Path(os.environ.get("CALLBOARD_CONFIG") or "langgraph.json")
    data = os.environ.get("CALLBOARD_DATA")
    launch.exec_supervisorctl(_launch(config, "", 1, Path(data) if data else None), arguments)


@cli.command()
def gateway() -> None:
    """Run one gateway (HTTP and streams)."""
    from callboard import parts, process, supervised

    if not supervised.is_to_stop():
        parts.gateway()
    process.leave(0)


@cli.command()
def worker() -> None:
    """Run one worker with its graph processes."""
    from callboard import parts, process, supervised

    process.leave(0 if supervised.is_to_stop() else parts.worker())


@cli.command()
def scheduler() -> None:
    """Run one scheduler."""
    from callboard import parts, process, supervised

    process.leave(0 if supervised.is_to_stop() else parts.scheduler())


@cli.command()
def migrate() -> None:
    """Bring the schema of DATABASE_URL up to date."""
    from callboard import parts

    parts.upgrade()


@cli.command()
@_launch_options
def doctor(**options: Any) -> None:
    """Check this machine, the project, and the services, and say what is wrong."""
    from callboard import doctor

    sys.exit(doctor.examine(_launch(**options)))


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


@cli.command(hidden=True)
@click.option("--data", type=_PATH, envvar="CALLBOARD_DATA", required=True)
@click.option("--durable/--no-durable", default=True)
def postgres(data: Path, durable: bool) -> None:
    """Become the embedded Postgres (a program of supervisord.conf)."""
    from callboard import embedded

    embedded.exec_postgres(data, durable=durable)


@cli.command(hidden=True)
@click.option("--data", type=_PATH, envvar="CALLBOARD_DATA", required=True)
@click.option("--port", type=int, default=0)
@click.option("--durable/--no-durable", default=True)
def valkey(data: Path, port: int, durable: bool) -> None:
    """Become the embedded Valkey (a program of supervisord.conf)."""
    from callboard import embedded

    embedded.exec_valkey(data, port=port, durable=durable)


def _launch(config: Path, host: str, port: int, data: Path | None) -> "Launch":
    from callboard.launch import launch_from

    return launch_from(config, host, port, data, os.environ)
