"""Text that Postgres cannot store is replaced, and nothing else is touched."""

import orjson
import pytest

from persistence.text import clean, clean_json, dumps


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        (b'"\\u0000"', "\ufffd"),
        (b'"\\\\u0000"', "\\u0000"),
        (b'"\\\\\\u0000"', "\\\ufffd"),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d\\ud83d\\ude00\\ude00"', "\ufffd\U0001f600\ufffd"),
        (b'"\\uD800x\\u00e9\\n\\""', '\ufffdx\u00e9\n"'),
        (b'"\xed\xa0\x80"', "\ufffd\ufffd\ufffd"),
        ('"é😀"'.encode(), "é😀"),
    ],
)
def test_json(given: bytes, cleaned: str) -> None:
    assert orjson.loads(clean_json(given)) == cleaned


def test_strings_and_values() -> None:
    assert clean("a\0\udfff\U0001f600") == "a\ufffd\ufffd\U0001f600"
    value = {"\ud800": ["\0", ("x", {"y": "\udc00"})], "n": 1.5, 3: None}
    assert orjson.loads(dumps(value)) == {
        "\ufffd": ["\ufffd", ["x", {"y": "\ufffd"}]],
        "n": 1.5,
        "3": None,
    }
