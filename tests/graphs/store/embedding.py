"""An embedding without a model: each word is a direction, told by its hash."""

import hashlib
import re
import threading

DIMS = 256
calls: list[list[str]] = []
"""What was embedded, call by call."""
held = threading.Event()
"""While clear, texts with the word "slowly" wait."""
held.set()


def embed(texts: list[str]) -> list[list[float]]:
    """Vectors whose angle is small when the texts share words."""
    calls.append(list(texts))
    if any("slowly" in text for text in texts):
        held.wait(30)
    if any("indigestible" in text for text in texts):
        raise ValueError("cannot embed this")
    return [_vector(text) for text in texts]


async def embed_async(texts: list[str]) -> list[list[float]]:
    """The same, as a coroutine."""
    return embed(texts)


def embed_short(texts: list[str]) -> list[list[float]]:
    """Vectors of the wrong length."""
    return [[1.0] for _ in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * DIMS
    for word in re.findall(r"\w+", text.lower()):
        vector[hashlib.blake2s(word.encode(), digest_size=2).digest()[0] % DIMS] += 1.0
    return vector
