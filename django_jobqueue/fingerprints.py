"""Fingerprints of errors, which group equal failures."""

from __future__ import annotations

import hashlib
import re

_CHANGING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+", re.IGNORECASE)
_FRAME = re.compile(r'^[ |]*  File "(?P<file>[^"]+)", line \d+, in (?P<where>.+)$', re.MULTILINE)


def fingerprint(error: str, summary: str) -> str:
    """The fingerprint of an error: equal for errors that differ only in numbers and ids, or in lines of a traceback.

    The ``summary`` is its reason in one line; the last line of a traceback may be a frame, or repeat values of a row.
    """
    if not error:
        return ""
    frames = [f"{match['file']}:{match['where']}" for match in _FRAME.finditer(error)]
    essence = "\n".join([*frames[-3:], _CHANGING.sub("#", summary)])
    return hashlib.sha1(essence.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()[:16]
