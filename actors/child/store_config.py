"""What the project says about its store: what is embedded, by what, and how long items live.

    "store": {
        "index": {"embed": "provider:model" | "./file.py:name" | "package.module:name",
                  "dims": 1536, "fields": ["title", "author.biography"]},
        "ttl": {"default_ttl": minutes, "refresh_on_read": true, "sweep_interval_minutes": 5}
    }

What stands under a name may be a function of many texts to many vectors, a coroutine function, or
an ``Embeddings`` object of LangChain.
"""

import contextlib
import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.embeddings import Embeddings
from langgraph.store.base import TTLConfig, ensure_embeddings, get_text_at_path, tokenize_path

from actors.child import modules

_log = logging.getLogger(__name__)


class EmbeddingFailed(RuntimeError):  # so that its text is for clients to see
    """The embedding of store.index cannot be loaded, failed, or made what are no vectors."""


@dataclass(frozen=True, slots=True)
class Index:
    """Which texts of an item are embedded, and how.

    embeddings: None when they could not be loaded: ``broken`` says why, and nothing can be
    embedded, while all else serves.
    """

    dims: int
    fields: tuple[str, ...] = ("$",)
    embeddings: Embeddings | None = None
    broken: str = ""

    def texts(self, value: Mapping[str, Any], index: Sequence[str] | None) -> dict[str, str]:
        """The texts of an item to embed, by the path where they lie.

        index: the paths that the writer asked for; None: those of the project.
        """
        texts: dict[str, str] = {}
        for path in self.fields if index is None else index:
            tokens: Any = "$" if path == "$" else tokenize_path(path)
            found = get_text_at_path(value, tokens)
            for number, text in enumerate(found):
                texts[f"{path}.{number}" if len(found) > 1 else path] = text
        return texts

    async def embed(self, texts: Sequence[str]) -> list[str]:
        """The texts of items as vectors, in Postgres' form. Raises EmbeddingFailed."""
        if not texts:
            return []
        embeddings = self._loaded()
        with _as_failed():
            vectors = list(await embeddings.aembed_documents(list(texts)))
        if len(vectors) != len(texts):
            raise EmbeddingFailed(
                f"the embedding of store.index made {len(vectors)} of {len(texts)} vectors"
            )
        return [self._written(vector) for vector in vectors]

    async def embed_query(self, text: str) -> str:
        """The text of a question as a vector, in Postgres' form. Raises EmbeddingFailed."""
        embeddings = self._loaded()
        with _as_failed():
            vector = await embeddings.aembed_query(text)
        return self._written(vector)

    def _loaded(self) -> Embeddings:
        if self.embeddings is None:
            raise EmbeddingFailed(f"the embedding of store.index cannot be loaded: {self.broken}")
        return self.embeddings

    def _written(self, vector: Any) -> str:
        with _as_failed():
            numbers = [float(number) for number in vector]
        if len(numbers) != self.dims:
            raise EmbeddingFailed(
                f"the embedding of store.index made a vector of {len(numbers)} numbers,"
                f" and dims is {self.dims}"
            )
        return str(numbers)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The project's store, as far as it is configured."""

    index: Index | None = None
    ttl: TTLConfig | None = None

    @classmethod
    def load(cls, project: Mapping[str, Any]) -> "StoreConfig":
        """Imports what the project names; after its graphs, whose folders are then importable.

        Never raises for what the project's code does: see ``Index.broken``.
        """
        section = project.get("store") or {}
        index, ttl = section.get("index"), section.get("ttl")
        return cls(None if index is None else _index(index, project), ttl)


def _index(section: Mapping[str, Any], project: Mapping[str, Any]) -> Index:
    dims, fields = int(section["dims"]), tuple(section.get("fields") or ("$",))
    root = Path(project["root"])
    folders = [root, *(Path(folder) for folder in project.get("dependencies") or ())]
    try:
        return Index(dims, fields, ensure_embeddings(_named(section["embed"], root, folders)))
    except BaseException as error:  # noqa: BLE001  # user code, which may call sys.exit too
        broken = modules.reason(error, root, folders)
        _log.error("the store's embedding cannot be loaded", extra={"reason": broken})
        return Index(dims, fields, broken=broken)


def _named(target: str, root: Path, folders: Sequence[Path]) -> Any:
    """What the project's own code has under the name; else a model for LangChain to find."""
    place, _, name = target.rpartition(":")
    if "/" in place or "\\" in place or place.endswith(".py"):
        return _attribute(modules.import_file(root / place, root, folders), place, name)
    if name.isidentifier() and _is_module(place):
        module = importlib.import_module(place)
        return getattr(module, name) if hasattr(module, name) else _model(target)
    return target


def _model(target: str) -> Embeddings:
    """The model of a provider whose package has the provider's name, as ``ollama`` has."""
    place, _, name = target.rpartition(":")
    try:
        return ensure_embeddings(target)
    except Exception as error:
        neither = f"{place} has no variable '{name}', and is no provider of it: {error}"
        raise modules.ImportRefused(neither) from error


def _is_module(name: str) -> bool:
    """Whether there is such a module; one without dots may as well be a provider of models."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _attribute(module: Any, place: str, name: str) -> Any:
    if not hasattr(module, name):
        raise modules.ImportRefused(f"{place} has no variable '{name}'")
    return getattr(module, name)


@contextlib.contextmanager
def _as_failed() -> Any:
    try:
        yield
    except Exception as error:
        text = f"the embedding of store.index failed: {type(error).__name__}: {error}"
        raise EmbeddingFailed(text) from error
