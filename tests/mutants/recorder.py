"""A pytest plugin that writes down which marks each test has sent to the server.

The server's log is read and not the client's calls, because it also has what other threads and processes sent, and the
text of what was executed by the name of a prepared statement. The log must be of this run alone.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

LOG = "MUTANTS_SERVER_LOG"
RECORD = "MUTANTS_RECORD"

_MARK = re.compile(rb"/\*mutant (\w+)\*/")
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    log, began = Path(os.environ[LOG]), time.monotonic()
    os.truncate(log, 0)
    answer = yield
    seconds = time.monotonic() - began
    marks = sorted({mark.decode() for mark in _MARK.findall(log.read_bytes())})
    line = {"test": item.nodeid, "seconds": seconds, "passed": item.nodeid not in _failed, "marks": marks}
    with Path(os.environ[RECORD]).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return answer


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _failed.add(report.nodeid)
