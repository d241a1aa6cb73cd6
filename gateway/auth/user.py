"""The caller, as authentication handlers answer it and as graphs are told of it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from langgraph_sdk.auth.types import StudioUser

from persistence.run_request import NOBODY

STUDIO = StudioUser("langgraph-studio-user", is_authenticated=True)
"""Somebody who looks at the server with LangGraph Studio."""

_STANDARD = ("identity", "is_authenticated", "display_name", "permissions")


class InvalidUser(ValueError):
    """An authentication handler answered something that is nobody."""


class User:
    """A caller: what the authentication handler answered, by attribute and by key.

    Has the shape of ``langgraph_sdk.auth.types.BaseUser``; what else the answer held is reachable
    the same two ways.
    """

    def __init__(self, answer: Any) -> None:
        """answer: the identity alone, an object of fields, or an instance with attributes.

        Raises InvalidUser.
        """
        self._answer = answer
        self._fields = _fields(answer)
        identity = self._fields.get("identity")
        if not isinstance(identity, str) or not identity:
            raise InvalidUser(f"expected an identity that is a text, got {identity!r}")
        permissions = self._fields.get("permissions") or ()
        if isinstance(permissions, str) or not isinstance(permissions, Sequence | set | frozenset):
            raise InvalidUser(f"expected permissions that are a list, got {permissions!r}")
        self._fields |= {
            "is_authenticated": bool(self._fields.get("is_authenticated", True)),
            "display_name": str(self._fields.get("display_name") or identity),
            "permissions": [str(permission) for permission in permissions],
        }

    @property
    def identity(self) -> str:
        """The unique identifier."""
        return str(self._fields["identity"])

    @property
    def display_name(self) -> str:
        """The name to show; the identity when there is no other."""
        return str(self._fields["display_name"])

    @property
    def is_authenticated(self) -> bool:
        """Whether the user is authenticated."""
        return bool(self._fields["is_authenticated"])

    @property
    def permissions(self) -> Sequence[str]:
        """The permissions that authentication gave."""
        return list(self._fields["permissions"])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy looks for hooks before there are fields
            raise AttributeError(name)
        if name in self._fields:
            return self._fields[name]
        return getattr(self._answer, name)

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        return self._fields.get(key, default)

    def to_json(self) -> dict[str, Any]:
        """The fields that can be written as JSON: what graphs are told of the user."""
        return {name: value for name, value in self._fields.items() if _is_json(value)}


AnyUser = User | StudioUser


def stamps(user: AnyUser | None) -> dict[str, Any]:
    """What ``configurable`` says of the caller; keys that no client may set itself."""
    if user is None:
        return dict(NOBODY)
    shown = user.to_json() if isinstance(user, User) else {**_fields(user), "kind": "StudioUser"}
    return {
        "langgraph_auth_user": shown,
        "langgraph_auth_user_id": user.identity,
        "langgraph_auth_permissions": list(user.permissions),
        "user_id": user.identity,
    }


def _fields(answer: Any) -> dict[str, Any]:
    """The fields of what a handler answered. Raises InvalidUser."""
    if isinstance(answer, str):
        return {"identity": answer}
    if isinstance(answer, Mapping):
        return {str(name): value for name, value in answer.items()}
    if not hasattr(answer, "identity"):
        raise InvalidUser(
            "expected a text, a dict or an object with an identity, got"
            f" {'nothing' if answer is None else type(answer).__name__}"
        )
    if dataclasses.is_dataclass(answer) and not isinstance(answer, type):
        fields = {entry.name: getattr(answer, entry.name) for entry in dataclasses.fields(answer)}
    elif callable(dump := getattr(answer, "model_dump", None)):
        fields = dict(dump())
    else:
        fields = {k: v for k, v in getattr(answer, "__dict__", {}).items() if k[0] != "_"}
    standard = {name: getattr(answer, name) for name in _STANDARD if hasattr(answer, name)}
    return {**fields, **standard}


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True
