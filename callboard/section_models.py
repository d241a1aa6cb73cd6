"""Sections of ``langgraph.json`` that pydantic models describe, refused in the file's words."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""
Warn = Callable[[str, str], None]
"""Notes a key that is not used, and why."""

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], key: str, given: object, broken: Broken) -> M:
    """What stands under the key. Raises what ``broken`` makes."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in (key, *problem["loc"]))
        raise broken(place, problem["input"], _expected(problem["type"], problem["msg"])) from None


def warn_of_unknown(model: type[BaseModel], key: str, part: Mapping[str, Any], warn: Warn) -> None:
    """Notes the keys that the model does not have."""
    for name in sorted(part.keys() - model.model_fields.keys()):
        warn(f"{key}.{name}", "unknown key, ignored")


def _expected(kind: str, text: str) -> str:
    """Pydantic's sentence as the end of ours."""
    if kind == "model_type":  # names a class, which nobody finds in a JSON file
        return "an object"
    for start in ("Value error, expected ", "Input should be "):
        text = text.removeprefix(start)
    return text
