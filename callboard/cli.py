"""The command line. Each command imports what it needs when called: ``version`` is instant."""

import sys
from pathlib import Path

import click

from callboard import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Callboard: a self-hosted run server for LangGraph graphs."""


@main.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


@main.command(hidden=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--durable/--no-durable", default=True)
def postgres(data: Path, durable: bool) -> None:
    """Become the embedded Postgres (a program of supervisord.conf)."""
    from callboard import embedded

    try:
        embedded.exec_postgres(data, durable=durable)
    except embedded.EmbeddedError as error:
        sys.exit(f"callboard: {error}")


@main.command(hidden=True)
@click.option("--data", type=click.Path(path_type=Path), required=True)
@click.option("--port", type=int, default=0)
@click.option("--durable/--no-durable", default=True)
def valkey(data: Path, port: int, durable: bool) -> None:
    """Become the embedded Valkey (a program of supervisord.conf)."""
    from callboard import embedded

    try:
        embedded.exec_valkey(data, port=port, durable=durable)
    except embedded.EmbeddedError as error:
        sys.exit(f"callboard: {error}")
