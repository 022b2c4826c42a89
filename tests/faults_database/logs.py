"""What workers log, one JSON object per line, with the clock all processes of a machine share."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

OF_A_JOB = re.compile(r"jobs? (completed|failed|cancelled|snoozed|ended)\b")
_OWN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JSONLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {name: value for name, value in vars(record).items() if name not in _OWN}
        line = {
            "at": time.monotonic(),
            "pid": record.process,
            "level": record.levelname,
            "text": record.getMessage(),
            "facts": facts,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Line(NamedTuple):
    at: float
    pid: int
    level: str
    text: str
    facts: dict[str, Any]
    error: str = ""


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]
    return [Line(**json.loads(line)) for line in whole.splitlines()]


def most_talkative(lines: Iterable[Line], since: float, until: float) -> float:
    """How many lines per second the noisiest process wrote, besides those of each job and the first three."""
    counts = Counter(line.pid for line in lines if since <= line.at <= until and not OF_A_JOB.match(line.text))
    return max(0, max(counts.values(), default=0) - 3) / max(1.0, until - since)
