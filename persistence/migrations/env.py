"""What Alembic runs for each command: the connection comes from ``persistence.migrate``."""

from alembic import context
from sqlalchemy import Connection

from persistence.migrate import VERSION_TABLE
from persistence.models import metadata

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    # LangGraph's tables live beside ours and are none of this history's business.
    include_name=lambda name, kind, _parents: kind != "table" or name in metadata.tables,
)
with context.begin_transaction():
    context.run_migrations()
