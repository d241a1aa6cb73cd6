"""Text that others take: jsonb refuses NUL characters, and UTF-8 lone surrogates."""

import re

_ESCAPED = re.compile(rb"\\(?:(u0000)|.)")


def without_nul(document: bytes) -> bytes:
    """The JSON document with U+FFFD for every NUL."""
    if b"\\u0000" not in document:
        return document
    return _ESCAPED.sub(lambda found: rb"\ufffd" if found[1] else found[0], document)


def without_surrogates(text: str) -> str:
    """The text with U+FFFD for every lone surrogate. Two may be the halves of one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
