"""Log lines that tests can read: the time, the process, the message and its facts as JSON."""

from __future__ import annotations

import json
import logging

_USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Facts(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = {name: value for name, value in vars(record).items() if name not in _USUAL}
        text = f"{record.created:.3f} {record.process} {record.levelname} {record.getMessage()}"
        text += f" {json.dumps(facts, default=str)}" if facts else ""
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
