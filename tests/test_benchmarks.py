"""That the benchmark of workers runs; what it measures in so little time means nothing."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import cost, marks, processor_time
from tests.benchmarks.lab import Row
from tests.benchmarks.peers.environments import CannotInstall, python_of
from tests.benchmarks.peers.peer import OURS, PEERS, Peer
from tests.benchmarks.peers.suite import rows

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_benchmark_of_workers_runs(tmp_path):
    found = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.benchmarks", "workers", "--quick", "--scale=0.01", f"--json={found}"]

    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True)

    assert found.exists(), done.stderr
    names = [row["name"] for row in json.loads(found.read_text())]
    for workload in ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "atomic handlers"):
        assert any(name.startswith(workload) for name in names), f"{workload} is missing"
    assert done.returncode in (0, 1)  # bars may be missed here


@pytest.mark.slow
def test_the_benchmarks_of_groups_and_streams_run(tmp_path):
    found = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.benchmarks", "groups", "streams"]

    done = subprocess.run(
        [*command, "--quick", "--scale=0.01", f"--json={found}"],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
    )

    assert found.exists(), done.stderr
    names = [row["name"] for row in json.loads(found.read_text())]
    for name in ("head", "fill", "round_robin", "stream"):
        assert any(one.startswith(name) for one in names), f"{name} is missing"
    assert done.returncode in (0, 1)  # bars may be missed here


@pytest.mark.slow
def test_the_benchmark_of_costs_runs(tmp_path):
    found = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.benchmarks", "cost", f"--before={ROOT}", "--pairs=1", "--slices=1"]

    done = subprocess.run(
        [*command, "--workload=W5", f"--json={found}"], cwd=ROOT, env=_environment(), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    ratios = json.loads(found.read_text())["W5"]["ratios"]
    assert set(ratios) == {"server", "python", "total", "rate"}
    assert 0.2 < ratios["total"]["median"] < 5


@pytest.mark.slow
def test_the_benchmark_of_locks_runs(tmp_path):
    found = tmp_path / "bench.json"
    command = [sys.executable, "-m", "tests.benchmarks", "locked", "--seconds=1", "--scene", "batch", "fetch"]

    done = subprocess.run(
        [*command, "--lock", "one row", f"--json={found}"], cwd=ROOT, env=_environment(), capture_output=True, text=True
    )

    assert found.exists(), done.stderr
    outcomes = json.loads(found.read_text())
    assert [outcome["lock"] for outcome in outcomes] == ["one row"] * 2
    assert not any(outcome["stranded"] for outcome in outcomes)
    assert done.returncode in (0, 1)  # bars may be missed here


def _environment() -> dict[str, str]:
    """Without the server and the settings of the tests: a benchmark has a server of its own."""
    ours = ("PG", "JOBQUEUE_TEST", "DJANGO_SETTINGS")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def test_a_span_begins_when_every_process_is_at_work(tmp_path):
    found = marks.create(tmp_path / "marks", 8)
    processes, times = marks._columns(found.path)
    for n, (process, at) in enumerate([(1, 10), (1, 20), (2, 30), (1, 40), (2, 50), (1, 60), (2, 70), (2, 80)]):
        processes[n], times[n] = process, at * 1_000_000_000

    span = found.span(2, end=90 * 1_000_000_000)

    assert (span.jobs, span.seconds, span.processes) == (5, 60.0, 2)


def test_what_has_not_run_is_missing(tmp_path, monkeypatch):
    found = marks.create(tmp_path / "marks", 3)
    monkeypatch.setenv(marks.VARIABLE, str(found.path))
    monkeypatch.setattr(marks, "_times", None)

    marks.mark(0)
    marks.mark(2)

    assert (found.first_missing(), found.count()) == (1, 2)
    assert found.ran(0) <= found.ran(2)
    assert found.ran(1) == 0


def test_a_row_without_anything_beside_it_misses_its_bar():
    assert not Row("drain", 100.0, None, 1.5, "jobs/s", problem="failed: not installed").holds
    assert Row("send", 100.0, None, None, "jobs/s", problem="failed: not installed").holds


def test_a_peer_that_failed_is_shown_as_failed():
    titles = {peer.name: peer.name for peer in PEERS}
    measured = {"ours": [900.0, 1000.0, 1100.0], "pgqueuer": [500.0, math.nan], "procrastinate": [math.nan]}

    found = rows("W3", measured, "jobs/s", titles, {"procrastinate": "failed: it ended"}, drained=True)

    assert [row.name for row in found] == [f"W3, beside {peer.name}" for peer in PEERS]
    assert (found[0].ratio, found[0].holds) == (2.0, True)
    assert (found[1].ratio, found[1].holds, found[1].problem) == (None, False, "failed: it ended")


def test_a_peer_that_cannot_be_installed_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("JOBQUEUE_BENCH_CACHE", str(tmp_path))
    peer = Peer(
        "nobody", lambda python, processes: [], "SELECT 1", (f"nobody @ file://{tmp_path}/there-is-no-such.whl",)
    )

    with pytest.raises(CannotInstall, match="there-is-no-such"):
        python_of(peer)
    assert not list(tmp_path.glob("*/complete"))


def test_every_peer_has_a_module_and_a_bar_for_draining():
    for peer in PEERS:
        assert (ROOT / f"{peer.module.replace('.', '/')}.py").exists()
        assert peer.drain_bar == (1.5 if peer.name == "pgqueuer" else 20)
    assert OURS.drain_bar is None


def test_processor_time_includes_children_that_have_exited():
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    wait = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", wait], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        parent.stdout.readline()  # type: ignore[union-attr]  # a pipe
        used = processor_time.of_tree(parent.pid)
        parent.communicate("\n")

    assert used > 0.28  # the child's time is kept in hundredths of a second


def test_the_ratio_of_a_comparison_is_the_median_with_its_interval():
    ratio = cost.Ratio.of([0.98, 0.99, 1.0, 1.01, 1.5])

    assert ratio.median == 1.0
    assert 0.98 <= ratio.low < 1.0 < ratio.high <= 1.5
