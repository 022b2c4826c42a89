"""One PostgreSQL server per run, and no test skipped in silence."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from django.conf import settings

from example_project.postgres import start_throwaway
from tests.settings import address

MAX_CONNECTIONS = 200  # races open dozens at once

pytest_plugins = ["tests.fixtures"]


def pytest_configure(config: pytest.Config) -> None:
    """Start a server unless the environment names one.

    The address goes into the environment too, because pytest-xdist's workers and the processes
    that tests start find it there.
    """
    # A shell without job control starts background commands with Ctrl-C ignored, and the processes that tests
    # interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("JOBQUEUE_TEST_DSN") or os.environ.get("PGHOST"):
        return
    server = start_throwaway(settings={"max_connections": MAX_CONNECTIONS})
    os.environ["JOBQUEUE_TEST_DSN"] = server.dsn
    # In place, because Django's connections may have taken this dict already.
    settings.DATABASES["default"].update(address(server.dsn))
    config.add_cleanup(server.close)


def pytest_report_header() -> str:
    server = settings.DATABASES["default"]
    return f"postgresql: {server['HOST'] or os.environ.get('PGHOST')} port {server['PORT']}"


def skips(config: pytest.Config) -> Counter[str]:
    """How many tests were skipped, by reason; a whole module skipped counts as one."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports = reporter.stats.get("skipped", []) if reporter else []
    return Counter(f"{report.nodeid}: {reason_of(report)}" for report in reports)


def reason_of(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ")


def skips_are_failures() -> bool:
    return os.environ.get("JOBQUEUE_NO_SKIPS") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if skips_are_failures() and session.exitstatus == pytest.ExitCode.OK and skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = skips(terminalreporter.config)
    if not skipped:
        return
    failing = skips_are_failures()
    colour = {"red": True} if failing else {"yellow": True}
    terminalreporter.section(f"{skipped.total()} SKIPPED", sep="!", bold=True, **colour)
    for line, count in sorted(skipped.items()):
        terminalreporter.line(line if count == 1 else f"{line} ({count} times)", **colour)
    if failing:
        terminalreporter.line("JOBQUEUE_NO_SKIPS=1: a skipped test fails the run.", **colour)
