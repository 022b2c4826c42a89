"""The PREPARE and EXECUTE of a statement; :mod:`django_jobqueue.engine.transactions` decides which are prepared."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

_PLACEHOLDER = re.compile(r"%s|%\((\w+)\)s|%%")


class Prepared(NamedTuple):
    prepare: str
    execute: str


@lru_cache(maxsize=1024)
def prepared(sql: str) -> Prepared:
    """The PREPARE and EXECUTE of a statement. The name is derived from its text, so it is the same for all clients."""
    name = "jobqueue_" + hashlib.sha256(sql.encode()).hexdigest()[:20]
    given: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        placeholder = found.group()
        if placeholder == "%%":
            return "%"
        if placeholder == "%s" or placeholder not in given:
            given.append(placeholder)
            return f"${len(given)}"
        return f"${given.index(placeholder) + 1}"

    body = _PLACEHOLDER.sub(numbered, sql)
    values = f"({', '.join(given)})" if given else ""
    return Prepared(f"PREPARE {name} AS {body.strip()}", f"EXECUTE {name}{values}")
