"""The play, started in a process of its own, as a user starts it in a terminal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-W", "error", "-m", "example_project.play"]
SHIPPED = re.compile(r"(?P<customer>Ada|Ben|Cleo|Dan) +#(?P<number>\d) .*shipped$", re.MULTILINE)


@contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder for its server. The server may run as another user, who must be able to enter the folder."""
    with tempfile.TemporaryDirectory(prefix="play-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


def environment(folder: Path) -> dict[str, str]:
    ours = ("PG", "JOBQUEUE_TEST_", "DJANGO_SETTINGS_MODULE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with empty_folder() as path:
        yield path


@pytest.fixture(scope="module")
def output() -> str:
    with empty_folder() as path:
        done = subprocess.run(
            [*COMMAND, "--quick"], cwd=ROOT, env=environment(path), capture_output=True, text=True, timeout=120
        )
        left = list(path.iterdir())
    assert (done.returncode, done.stderr, left) == (0, "", [])
    return done.stdout


def test_every_customers_orders_are_shipped_in_order(output):  # R001
    shipped = defaultdict(list)
    for match in SHIPPED.finditer(output):
        shipped[match["customer"]].append(int(match["number"]))

    assert shipped == {"Ada": [1, 2, 3, 4], "Ben": [1, 2, 3, 4], "Cleo": [1, 2, 4], "Dan": [1, 2, 3, 4]}


def test_a_failed_order_blocks_its_customer_and_nobody_else(output):  # R004
    before, after = output.split("4. An operator decides")

    assert "['customer-ben', 'customer-cleo']" in before
    assert re.search(r"Ben +#2 .*FAILED for good and blocks Ben's key: the card has expired", before)
    assert not re.search(r"Ben +#[34]", before)
    assert not re.search(r"Cleo +#4", before)
    assert before.count("shipped") == 11
    assert after.count("shipped") == 4


def test_why_names_the_job_in_the_way(output):
    said = " ".join(output.split())

    assert re.search(r"The key 'customer-ben' is blocked by job #\d+\. That job failed for good", said)


def test_the_operator_lets_both_customers_go_on(output):  # R005 R006
    after = output.split("4. An operator decides")[1]

    assert "services.retry(" in after
    assert "services.skip(" in after
    assert re.search(r"orders +0 +0 +15 +0 +1\n", after)
    assert "Blocked keys: none." in after


def test_without_a_terminal_the_output_is_plain_text(output):
    assert "\x1b" not in output


def test_a_rolled_back_order_leaves_no_job(output):  # F28
    assert "16 jobs wait. One more order was placed and rolled back: still 16 jobs." in output


@pytest.mark.slow
def test_interrupted_it_stops_its_server_and_leaves_nothing_behind(folder):
    command = [*COMMAND, "--seconds=60"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as play:
        try:
            assert play.stdout is not None
            lines = iter(play.stdout.readline, "")
            assert any("workers start" in line for line in lines)

            play.send_signal(signal.SIGINT)

            rest = "".join(lines)
            assert play.wait(timeout=60) == 130
        finally:
            play.kill()
    assert "Traceback" not in rest
    assert list(folder.iterdir()) == []
