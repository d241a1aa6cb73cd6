"""JSON that Postgres takes: jsonb refuses NUL characters, which JSON and Python allow."""

import re

_ESCAPED = re.compile(rb"\\(?:(u0000)|.)")


def without_nul(document: bytes) -> bytes:
    """The JSON document with U+FFFD for every NUL."""
    if b"\\u0000" not in document:
        return document
    return _ESCAPED.sub(lambda found: rb"\ufffd" if found[1] else found[0], document)
