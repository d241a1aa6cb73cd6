"""The authenticated user as graph factories see it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class User:
    """What authentication said about the caller, by attribute and by key.

    Has the shape of ``langgraph_sdk.auth.types.BaseUser``; what else the user's authentication
    returned is reachable the same two ways.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    @property
    def identity(self) -> str:
        """The unique identifier."""
        return str(self._fields["identity"])

    @property
    def display_name(self) -> str:
        """The name to show; the identity when there is no other."""
        return str(self._fields.get("display_name") or self.identity)

    @property
    def is_authenticated(self) -> bool:
        """Whether the user is authenticated."""
        return bool(self._fields.get("is_authenticated", True))

    @property
    def permissions(self) -> Sequence[str]:
        """The permissions that authentication gave."""
        return list(self._fields.get("permissions") or ())

    def shown(self) -> dict[str, Any]:
        """What streams show of the user: the rest may be tokens, and others may be reading."""
        return {
            "identity": self.identity,
            "is_authenticated": self.is_authenticated,
            "display_name": self.display_name,
            "permissions": list(self.permissions),
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pickle and copy look for hooks before there are fields
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __contains__(self, key: object) -> bool:
        return key in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)
