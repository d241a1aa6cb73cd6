"""What a graph is given beside its input: the run's config, context and durability. Pure."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from pydantic import AliasChoices, AliasPath, BaseModel

from actors.child.user import User

if TYPE_CHECKING:  # the runner imports this module
    from actors.child.runner import Start

_PASSED_ON = ("tags", "recursion_limit", "max_concurrency")
_STAMPED = frozenset(
    {
        "run_id",
        "thread_id",
        "graph_id",
        "assistant_id",
        "user_id",
        "checkpoint_id",
        "checkpoint_ns",
        "checkpoint_map",
        "langgraph_auth_user",
        "langgraph_auth_user_id",
        "langgraph_auth_permissions",
        "langgraph_request_id",
        "run_attempt",
        "idempotency_key",
    }
)
"""Keys of ``configurable`` that are the server's, and so no context."""


def compose(start: "Start", schema: Any = None) -> RunnableConfig:
    """The run's config with the server's stamps. schema: the graph's context schema, if known.

    For side effects that must happen once whatever crashes, nodes find in ``configurable``:
    ``run_attempt``, and ``idempotency_key``, the same in every attempt of the run. Together with
    ``langgraph_checkpoint_ns`` of a node's metadata the key names one execution of one node.
    """
    given: dict[str, Any] = start.kwargs.get("config") or {}
    stamps = {
        "run_id": start.run_id,
        "thread_id": start.thread_id,
        "graph_id": start.graph_id,
        "assistant_id": start.assistant_id,
    }
    attempt = {"run_attempt": start.attempt, "idempotency_key": start.run_id}
    configurable = {
        "langgraph_auth_user": None,
        "langgraph_auth_user_id": "",
        "langgraph_auth_permissions": [],
        "user_id": "",
        **_configurable(start.kwargs, schema),
        **stamps,
        **attempt,
    }
    if isinstance(user := configurable["langgraph_auth_user"], Mapping):
        configurable["langgraph_auth_user"] = User(user)
    metadata = {
        **(given.get("metadata") or {}),
        **start.metadata,
        "run_attempt": start.attempt,
        "langgraph_version": _langgraph_version(),
        "langgraph_host": "self-hosted",
        **stamps,
    }
    config = {key: given[key] for key in _PASSED_ON if given.get(key) is not None}
    return cast(
        "RunnableConfig",
        {
            **config,
            "run_id": UUID(start.run_id),
            "run_name": start.graph_id,
            "configurable": configurable,
            "metadata": metadata,
        },
    )


def secret_keys(kwargs: Mapping[str, Any]) -> frozenset[str]:
    """The keys of ``configurable`` that were sent as context, and may hold secrets.

    They are for the graph: not for what is stored with a checkpoint, nor for what streams tell.
    """
    if not ((kwargs.get("config") or {}).get("configurable") or {}).get("__context_provided__"):
        return frozenset()
    return frozenset(kwargs.get("context") or {}) - _STAMPED


def without_keys(config: RunnableConfig, keys: frozenset[str]) -> RunnableConfig:
    """The config, but with nothing of these keys in its ``configurable``."""
    if not keys:
        return config
    configurable = {k: v for k, v in config["configurable"].items() if k not in keys}
    return {**config, "configurable": configurable}


def without_place(config: RunnableConfig) -> RunnableConfig:
    """The config at the thread's latest checkpoint, wherever the run was sent to."""
    place = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
    configurable = {k: v for k, v in config["configurable"].items() if k not in place}
    return {**config, "configurable": configurable}


def context(graph: "Pregel[Any, Any, Any, Any]", kwargs: Mapping[str, Any]) -> Any:
    """The run's context: what was sent as ``context`` or as ``configurable``.

    Keys that the schema does not name are dropped: ``configurable`` is shared with others, and a
    schema that forbids what it does not know must not fail for that. Without a schema it is None
    when nothing was sent.
    """
    configurable = (kwargs.get("config") or {}).get("configurable") or {}
    mirrored = {
        key: value
        for key, value in configurable.items()
        if key not in _STAMPED and not key.startswith("__")
    }
    given = {**mirrored, **(kwargs.get("context") or {})}
    return _known(given, graph.context_schema) or (None if graph.context_schema is None else {})


def _configurable(kwargs: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """What was sent as ``configurable``, or the known part of what was sent as ``context``."""
    sent = kwargs.get("context") or {}
    configurable = {**sent, **((kwargs.get("config") or {}).get("configurable") or {})}
    if configurable.pop("__context_provided__", False):
        known = _known(sent, schema)
        return {k: v for k, v in configurable.items() if k in known or k not in sent}
    return configurable


def _known(context: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """What the schema names of it; all of it when the schema names nothing, or takes anything."""
    names = _names(schema)
    if names is None:
        return dict(context)
    return {key: value for key, value in context.items() if key in names}


def _names(schema: Any) -> frozenset[str] | None:
    """The keys by which the schema takes values. None: whatever the key is."""
    if dataclasses.is_dataclass(schema):
        return frozenset(entry.name for entry in dataclasses.fields(schema) if entry.init)
    if hasattr(schema, "__required_keys__"):  # a TypedDict, whichever module's
        return frozenset(schema.__required_keys__ | schema.__optional_keys__)
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return None
    if schema.model_config.get("extra") == "allow":
        return None
    aliases = (field.validation_alias for field in schema.model_fields.values())
    named = (alias for alias in aliases if alias is not None)
    return frozenset((*schema.model_fields, *(key for alias in named for key in _keys(alias))))


def _keys(alias: str | AliasPath | AliasChoices) -> Iterator[str]:
    """The keys of a body in which a field with that alias may be found."""
    if isinstance(alias, str):
        yield alias
    elif isinstance(alias, AliasPath):
        yield str(alias.path[0])
    else:
        for choice in alias.choices:
            yield from _keys(choice)


def durability(kwargs: Mapping[str, Any]) -> Literal["sync", "async", "exit"]:
    """When checkpoints are written; ``checkpoint_during`` is the older way to say it."""
    if named := kwargs.get("durability"):
        return cast("Literal['sync', 'async', 'exit']", named)
    return "exit" if kwargs.get("checkpoint_during") is False else "async"


@functools.cache
def _langgraph_version() -> str:
    return importlib.metadata.version("langgraph")
