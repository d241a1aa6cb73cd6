"""Which URLs a run's end may be told to, and how their names are resolved.

Clients name the URLs and we connect to them from inside, so a URL must not lead to what only we can
reach. It is checked when a run is created, and the address once more at the moment of connecting: a
name may mean something else by then. The gateway and whoever sends share this.
"""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

Address = IPv4Address | IPv6Address

_RESOLVE_SECONDS = 5.0
_NAT64 = ip_network("64:ff9b::/96")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK = (
    "Loopback webhooks (relative URLs and localhost) are disabled: an absolute URL is expected"
)


class WebhookRefused(Exception):
    """Nothing is sent to this URL; the text says why and does not repeat it."""


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """What the operator allows.

    allowed_domains: hosts, or ``*.domain`` for everything below one; empty means any.
    allowed_ports: empty means any. headers: sent along.
    allowed_networks: addresses that may be connected to although the public cannot reach them.
    """

    require_https: bool = False
    allowed_domains: tuple[str, ...] = ()
    allowed_ports: frozenset[int] = frozenset()
    max_url_length: int = 8192
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed_networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def refuse_url(self, url: str) -> SplitResult:
        """The URL in its parts. Raises WebhookRefused for one that is wrong as it is written."""
        if len(url) > self.max_url_length:
            raise WebhookRefused(f"Webhook URL is longer than {self.max_url_length} characters")
        if url.startswith("/"):
            raise WebhookRefused(_LOOPBACK)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            raise WebhookRefused("Webhook URL cannot be read") from None
        if not host or not url.isprintable():
            raise WebhookRefused(f"Invalid webhook hostname '{host}'")
        if parts.scheme not in _DEFAULT_PORTS:
            raise WebhookRefused(f"Webhook host blocked: scheme '{parts.scheme}' not allowed")
        if self.require_https and parts.scheme != "https":
            raise WebhookRefused("Webhook must use https")
        if self.allowed_domains and not any(_below(host, name) for name in self.allowed_domains):
            raise WebhookRefused(f"Webhook domain '{host}' is not in the allowed list")
        port = port or _DEFAULT_PORTS[parts.scheme]
        if self.allowed_ports and port not in self.allowed_ports:
            raise WebhookRefused(f"Webhook port {port} is not in the allowed list")
        return parts

    def refuse_address(self, address: str) -> None:
        """Raises WebhookRefused for an address that the public cannot reach."""
        found = _plain(ip_address(address.partition("%")[0]))
        if any(found in network for network in self.allowed_networks):
            return
        if found.is_loopback and found.version == 4:
            raise WebhookRefused("Webhook host blocked: loopback IP range")
        if not found.is_global or found.is_multicast or found.is_reserved:
            raise WebhookRefused("Webhook host blocked: blocked IP range")

    def refuse_name(self, host: str) -> None:
        """Raises WebhookRefused for the names of this machine, unless it is allowed."""
        name = host.rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost"):
            try:
                self.refuse_address("127.0.0.1")
            except WebhookRefused:
                raise WebhookRefused("Webhook host blocked: localhost address") from None


async def check(policy: WebhookPolicy, url: str) -> None:
    """Raises WebhookRefused for a URL to which nothing would be sent now."""
    host = policy.refuse_url(url).hostname or ""
    policy.refuse_name(host)
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError, TimeoutError):
        raise WebhookRefused("Webhook host blocked: DNS resolution failed") from None
    for *_, address in found:
        policy.refuse_address(str(address[0]))


class PolicyResolver(AbstractResolver):
    """Resolves names for connecting: what it returns is what is connected to."""

    def __init__(self, policy: WebhookPolicy) -> None:
        self._policy = policy
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Addresses of the host, all of which are allowed. Raises WebhookRefused."""
        found = await self._resolver.resolve(host, port, family)
        for result in found:
            self._policy.refuse_address(result["host"])
        return found

    async def close(self) -> None:
        """Nothing is kept."""
        await self._resolver.close()


def redacted(url: str) -> str:
    """The URL as it may be logged: its path and query are often a credential."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}/…"
    except ValueError:
        return "…"


def _below(host: str, pattern: str) -> bool:
    host, pattern = host.lower(), pattern.lower()
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def _plain(address: Address) -> Address:
    """The address inside one that wraps another: through a gateway it leads there."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is None and address.teredo is not None:
            inner = address.teredo[1]
        return inner or address
    return address
