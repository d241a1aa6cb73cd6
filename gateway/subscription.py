"""Which events of a thread a client of the thread protocol wants to hear. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import TypeAdapter

from gateway.protocol import GAP, ProtocolEvent
from gateway.wire.body import checked
from gateway.wire.streams import EventSubscription

_ASKED = TypeAdapter(EventSubscription)

CHANNELS = (
    "values",
    "updates",
    "messages",
    "tools",
    "custom",
    "lifecycle",
    "input",
    "tasks",
    "checkpoints",
)
ALLOWED = ", ".join([*CHANNELS, "or any `custom:<name>`"])
"""The channels, as a refusal names them."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a subscriber wants to hear.

    namespaces: prefixes, None for all; a segment without ``:`` fits any task of that node.
    depth: how many levels below a prefix, None for all.
    since: only what comes after this sequence number.
    """

    channels: frozenset[str]
    namespaces: tuple[tuple[str, ...], ...] | None = None
    depth: int | None = None
    since: int = 0

    def wants(self, event: ProtocolEvent) -> bool:
        """Whether the event passes."""
        if event.seq <= self.since:
            return False
        if event.method == GAP:
            return True
        return self._has_channel(event) and self._has_namespace(event.namespace)

    def _has_channel(self, event: ProtocolEvent) -> bool:
        channel = "input" if event.method == "input.requested" else event.method
        if channel in self.channels:
            return True
        named = channel == "custom" and any(one.startswith("custom:") for one in self.channels)
        return named and f"custom:{_name(event.data)}" in self.channels

    def _has_namespace(self, namespace: tuple[str, ...]) -> bool:
        if not self.namespaces:
            return True
        return any(
            _is_below(namespace, prefix)
            and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


def unknown_channels(channels: Sequence[Any]) -> list[str]:
    """Those that no subscription can name."""
    return [str(one) for one in channels if not _is_channel(one)]


def _is_channel(channel: Any) -> bool:
    if not isinstance(channel, str):
        return False
    return channel in CHANNELS or (channel.startswith("custom:") and channel != "custom:")


def subscription(content: Mapping[str, Any]) -> Subscription:
    """What is asked for; channels are checked already. Raises Unprocessable."""
    asked: EventSubscription = checked(content, _ASKED)
    return Subscription(
        frozenset(asked.channels),
        tuple(map(tuple, asked.namespaces or ())) or None,
        asked.depth,
        asked.since or 0,
    )


def _is_below(namespace: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    return len(prefix) <= len(namespace) and all(
        part == wanted or (":" not in wanted and part.partition(":")[0] == wanted)
        for part, wanted in zip(namespace, prefix, strict=False)
    )


def _name(data: bytes) -> str | None:
    content = orjson.loads(data)
    name = content.get("name") if isinstance(content, dict) else None
    return name if isinstance(name, str) else None
