"""Ids that we make."""

import os
import time
import uuid


def uuid7() -> uuid.UUID:
    """A UUID that sorts by the time it was made (RFC 9562, version 7)."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds << 80) | random
    value = (value & ~(0xF000 << 64)) | (0x7000 << 64)
    value = (value & ~(0xC000 << 48)) | (0x8000 << 48)
    return uuid.UUID(int=value)
