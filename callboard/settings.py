"""Settings models read from the environment, with a sentence for each value that is refused."""

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from callboard.errors import StartError

S = TypeVar("S", bound=BaseSettings)


def read(settings: type[S], **given: Any) -> S:
    """The settings from the environment, where not ``given``. Raises StartError."""
    try:
        return settings(**given)
    except ValidationError as error:
        prefix = str(settings.model_config.get("env_prefix") or "")
        raise StartError("; ".join(_sentences(error, prefix))) from None


def _sentences(error: ValidationError, prefix: str) -> list[str]:
    sentences = []
    for problem in error.errors():
        if not problem["loc"]:  # a combination: its validator wrote the sentence
            sentences.append(str(problem.get("ctx", {}).get("error", problem["msg"])))
            continue
        name = f"{prefix}{problem['loc'][0]}".upper()
        missing = problem["type"] == "missing"
        # A URL's value is not shown: it holds a password.
        got = "nothing" if missing else "it" if name.endswith("URL") else repr(problem["input"])
        sentences.append(f"{name}: {problem['msg']}, got {got}")
    return sentences
