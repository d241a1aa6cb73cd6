"""The header by which a client that got no answer can ask again without asking for more."""

import hashlib
from uuid import UUID

from gateway.errors import Unprocessable
from gateway.routing import Call
from persistence.runs import RequestKey

HEADER = "Idempotency-Key"
_LONGEST = 255


async def request_key(call: Call, thread_id: UUID | None) -> RequestKey | None:
    """What the request's key stands for; None when it has none.

    Keys are everybody's own. Requests are the same when their bodies are, byte for byte, and go to
    the same thread: one that created a run in the background may be repeated to wait for it. Raises
    Unprocessable.
    """
    given = call.request.headers.get(HEADER)
    if given is None:
        return None
    if not 0 < len(given) <= _LONGEST:
        raise Unprocessable(f"Invalid {HEADER}: expected 1 to {_LONGEST} characters")
    who = "" if call.user is None else call.user.identity
    body = await call.request.read()
    return RequestKey(
        key=_digest(who.encode(errors="replace"), given.encode(errors="surrogateescape")),
        request=_digest(str(thread_id).encode(), body),
    )


def _digest(one: bytes, other: bytes) -> bytes:
    digest = hashlib.sha256(len(one).to_bytes(8, "big") + one)
    digest.update(other)
    return digest.digest()
