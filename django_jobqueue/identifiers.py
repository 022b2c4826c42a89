"""Ids: UUIDs roughly in the order of their creation, so that an index grows at its end."""

from __future__ import annotations

import os
import re
import time
from random import Random
from uuid import UUID

from .exceptions import InvalidOption

_TEXT = re.compile(r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_NUMBER = re.compile(r"#?[0-9]{1,19}")
_VERSION_AND_VARIANT = 0x7 << 76 | 0b10 << 62

# A separate generator, because random.seed() in a test must not repeat ids. It is reseeded after a fork, because
# otherwise two workers would create the same ids.
_random = Random()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_random.seed)


def uuid7() -> UUID:
    """Create a UUID of version 7: milliseconds, their fraction (RFC 9562, 6.2, method 3), and random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    return UUID(int=milliseconds << 80 | fraction << 64 | _VERSION_AND_VARIANT | _random.getrandbits(62))


def as_number(value: object) -> int | None:
    """Return the number of a job from ``154``, ``"154"`` or ``"#154"``; ``None`` if it is not a number."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = int(value.strip().removeprefix("#"))
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 < value < 2**63 else None


def is_uuid(text: str) -> bool:
    return _TEXT.fullmatch(text) is not None


def as_uuid(value: object, *, option: str = "id") -> UUID:
    """Return a UUID from a UUID or its text. Raises ``InvalidOption`` for anything else."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, str) and is_uuid(value):
        return UUID(value)
    shown = f"{value[:50]!a}" if isinstance(value, str) else f"a value of type {type(value).__name__}"
    raise InvalidOption(option, f"expected a UUID or its text, got {shown}")
