"""What Postgres cannot store as text or JSON: found and replaced at the border, here only.

NUL characters and lone surrogates are legal in Python strings, and as escapes in JSON, but Postgres
refuses them. Each becomes U+FFFD, the replacement character, so that no write is lost over one.
"""

import re
from typing import Any

import orjson

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

# A proper surrogate pair and any other escape are stepped over whole, so that the literal text
# \\u0000 (an escaped backslash, then u0000) is left as it is.
_ESCAPE = re.compile(
    rb"(?P<keep>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?P<drop>\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\."
)


def clean(text: str) -> str:
    """Returns ``text`` with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def clean_json(document: bytes) -> bytes:
    """Returns a JSON document that means the same but holds nothing jsonb refuses as text."""
    if b"\\u" in document:
        document = _ESCAPE.sub(
            lambda found: rb"\ufffd" if found.lastgroup == "drop" else found[0], document
        )
    try:
        document.decode()
    except UnicodeDecodeError:
        return document.decode(errors="replace").encode()
    return document


def dumps(value: Any) -> bytes:
    """Returns ``value`` as JSON that jsonb accepts.

    Raises TypeError for what JSON cannot express; callers relay JSON that came over the wire.
    """
    try:
        return clean_json(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except TypeError:
        return clean_json(orjson.dumps(_cleaned(value), option=orjson.OPT_NON_STR_KEYS))


def _cleaned(value: Any) -> Any:
    """Copies ``value`` with clean strings: orjson refuses lone surrogates."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(item) for item in value]
    return value
