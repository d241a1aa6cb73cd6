"""The ``webhooks`` section of ``langgraph.json``: which URLs may be told, and with what headers.

    "webhooks": {
        "env_prefix": "LG_WEBHOOK_",
        "headers": {"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}"},
        "url": {"require_https": true, "allowed_domains": ["hooks.example.com", "*.corp.example"],
                "allowed_ports": [443], "max_url_length": 2048,
                "allowed_networks": ["10.1.0.0/16"]}
    }

``allowed_networks`` is ours: addresses that may be told although the public cannot reach them.
"""

import re
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from actors.webhook_policy import WebhookPolicy

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""

_PREFIX = "LG_WEBHOOK_"
_TEMPLATE = re.compile(r"\$\{\{\s*env\.(\w+)\s*\}\}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def read(
    section: Mapping[str, Any] | None, env: Mapping[str, str], broken: Broken
) -> WebhookPolicy:
    """What the section means; without one anything public may be told.

    env: where header templates take their values from. Raises what ``broken`` makes.
    """
    if section is None:
        return WebhookPolicy()
    url, headers = section.get("url", {}), section.get("headers", {})
    for key, part in (("url", url), ("headers", headers)):
        if not isinstance(part, dict):
            raise broken(f"webhooks.{key}", part, "an object")
    prefix = section.get("env_prefix", _PREFIX)
    if not isinstance(prefix, str) or not prefix:
        raise broken("webhooks.env_prefix", prefix, "text")
    fields = _Url(url, broken)
    return WebhookPolicy(
        require_https=fields.flag("require_https", default=True),
        allowed_domains=tuple(fields.items("allowed_domains", str, "a list of host names")),
        allowed_ports=frozenset(fields.items("allowed_ports", int, "a list of port numbers")),
        max_url_length=fields.length(),
        allowed_networks=fields.networks(),
        headers={name: _header(name, text, prefix, env, broken) for name, text in headers.items()},
    )


class _Url:
    """The fields of ``webhooks.url``."""

    def __init__(self, raw: Mapping[str, Any], broken: Broken) -> None:
        self._raw = raw
        self._broken = broken
        if raw.get("disable_loopback") is False:
            raise broken(
                "webhooks.url.disable_loopback",
                False,
                "true: relative URLs have no host here; use absolute ones and allowed_networks",
            )

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._raw.get(name, default)
        if not isinstance(value, bool):
            raise self._broken(f"webhooks.url.{name}", value, "true or false")
        return value

    def items(self, name: str, kind: type[Any], expected: str) -> list[Any]:
        value = self._raw.get(name) or []
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise self._broken(f"webhooks.url.{name}", value, expected)
        return value

    def length(self) -> int:
        value = self._raw.get("max_url_length", WebhookPolicy().max_url_length)
        if type(value) is not int or value < 1:
            raise self._broken("webhooks.url.max_url_length", value, "a number of characters")
        return value

    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        expected = 'a list of networks such as "10.1.0.0/16"'
        networks = []
        for text in self.items("allowed_networks", str, expected):
            try:
                networks.append(ip_network(text))
            except ValueError:
                raise self._broken("webhooks.url.allowed_networks", text, expected) from None
        return tuple(networks)


def _header(name: str, text: object, prefix: str, env: Mapping[str, str], broken: Broken) -> str:
    key = f"webhooks.headers.{name}"
    if not isinstance(text, str) or not text.isprintable():
        raise broken(key, text, "text")
    if not _HEADER.fullmatch(name):
        raise broken("webhooks.headers", name, "names of headers")

    def value(template: re.Match[str]) -> str:
        variable = template[1]
        if not variable.startswith(prefix):
            raise broken(key, variable, f"a variable that begins with {prefix} (env_prefix)")
        if variable not in env:
            raise broken(key, variable, "a variable that is set")
        return env[variable]

    return _TEMPLATE.sub(value, text)
