"""The request with which a person may try a project's first graph."""

import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from persistence import assistants

_MESSAGES = "messages"
_GREETING = "Hello"
_EXAMPLES: Mapping[str, Any] = {
    "string": _GREETING,
    "integer": 1,
    "number": 1,
    "boolean": True,
    "array": [],
    "object": {},
}
_SECONDS = 2.0
_UNAVAILABLE = 500
"""The first status that says that asking again may help."""

# Never by a proxy: it is this machine that is asked.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def command(url: str, graph_id: str, schema: Mapping[str, Any]) -> str:
    """A line for a shell that runs the graph and waits for what it says. Pure."""
    body = {"assistant_id": graph_id, "input": example(schema)}
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    return f"curl -s {url}/runs/wait -d {shlex.quote(text)}"


def example(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An input with what the schema requires, and a message for a graph that talks. Pure."""
    schema = _resolved(schema, schema)
    properties = schema.get("properties", {})
    made: dict[str, Any] = {}
    for name, part in properties.items():
        if name == _MESSAGES:
            made[name] = _GREETING
        elif name in schema.get("required", ()):
            kind = _resolved(part, schema).get("type")
            made[name] = _EXAMPLES.get(kind) if isinstance(kind, str) else None
    return made


def _resolved(part: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference within the schema stands for."""
    place = str(part.get("$ref", ""))
    if not place.startswith("#/$defs/"):
        return part
    found = schema.get("$defs", {}).get(place.removeprefix("#/$defs/"), {})
    return {"$defs": schema.get("$defs", {}), **found}


def input_schema(url: str, graph_id: str) -> Mapping[str, Any] | None:
    """What the graph takes: empty when the server never says, None when it does not say yet."""
    address = f"{url}/assistants/{assistants.system_id(graph_id)}/schemas"
    try:
        with _opener.open(address, timeout=_SECONDS) as response:
            schema = json.load(response)["input_schema"]
            return schema if isinstance(schema, dict) else {}
    except urllib.error.HTTPError as error:
        return {} if error.code < _UNAVAILABLE else None
    except (OSError, ValueError):
        return None
