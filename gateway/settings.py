"""How the gateway listens and how long it waits: one frozen value, read once at start."""

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


def _words(value: object) -> object:
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value


class GatewaySettings(BaseSettings):
    """Environment: the field's name in capitals."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on; ``0.0.0.0`` for every interface."""
    port: int = Field(2024, ge=0, le=65535)
    """Port to listen on, shared by all gateways of a machine; 0 for any free one."""
    listen_backlog: int = Field(2048, ge=1, le=65535)
    """Connections that the kernel keeps waiting while the loop is busy."""
    access_log: bool = False
    """One log line a request."""
    cors_allow_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)] = ("*",)
    """Origins whose pages may call, separated by commas; ``*`` for all."""
    max_body_bytes: int = Field(100 * 2**20, ge=1024, le=2**30)
    """Longest request body; longer ones are answered 413. Chats carry images and PDFs inside."""
    stream_heartbeat_seconds: float = Field(5.0, ge=0.05, le=60)
    """Pause between signs of life on open answers; clients take three missed ones for the end."""
    slow_client_timeout_seconds: float = Field(60.0, gt=0, le=3600)
    """How long a client may leave a full buffer unread before its line is cut."""
    inspect_timeout_seconds: float = Field(30.0, gt=0, le=600)
    """How long a state or schema may take to come back from a worker before it is a 503."""
    gateway_shutdown_seconds: float = Field(3.0, ge=0, le=60)
    """How long ordinary requests may take to end after SIGTERM. Open streams end at once."""
    stuck_pending_threshold_seconds: float = Field(120.0, gt=0)
    """A run that could start but waits longer than this makes ``/ready`` red."""


def local_url(host: str, port: int) -> str:
    """The URL by which a gateway that listens there is reached from its own machine."""
    reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # read, not bound
    return f"http://{f'[{reached}]' if ':' in reached else reached}:{port}"
