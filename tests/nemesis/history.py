"""What processes write down themselves: one line per event in a file that is only appended to.

Each line is one ``write`` to a file opened with ``O_APPEND``, with the clock that all processes of a machine share. So
the history is true whatever the database says later, and it survives every kill.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

FOLDER = "NEMESIS_FOLDER"
HISTORY = "history.jsonl"


def write(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    file = os.open(Path(os.environ[FOLDER], HISTORY), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(folder: Path) -> list[dict[str, Any]]:
    """All events in the order of their times; a line that a kill cut off is left out."""
    path = folder / HISTORY
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return sorted(found, key=lambda event: event["at"])


@contextmanager
def alone(queue: str, key: str, token: str) -> Iterator[None]:
    """Inside, the kernel sees to it that an overlap is noticed: it gives each key's lock to one run at a time.

    The lock ends with the process that holds it, however it dies. A run that does not get it goes on, and says so.
    """
    name = sha256(f"{queue}\0{key}".encode()).hexdigest()[:32]
    folder = Path(os.environ[FOLDER], "locks")
    folder.mkdir(exist_ok=True)
    file = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            write("overlap", token=token, queue=queue, key=key, holder=_holder(file))
        else:
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps({"token": token, "pid": os.getpid()}).encode(), 0)
        yield
    finally:
        os.close(file)


def _holder(file: int) -> dict[str, Any]:
    with suppress(ValueError):
        found: dict[str, Any] = json.loads(os.pread(file, 1_000, 0))
        return found
    return {}
