"""Ourselves beside other libraries: each in its own environment and database, on the same server, in the same run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import ExitStack

import psycopg
from psycopg import sql

from example_project.postgres import Server
from tests.benchmarks.lab import Row, interleaved, laboratory, note
from tests.benchmarks.peers.environments import CannotInstall, python_of, version_of
from tests.benchmarks.peers.peer import OURS, PEERS, Peer
from tests.benchmarks.peers.stand import Stand, WorkerFailed

BASE = "peers_ours"
EACH = 1_000
LATENCIES = 100  # per run
FAILED = math.nan

Work = Callable[["Stand"], float]


def measure(runs: int, scale: float) -> list[Row]:
    with laboratory([BASE]) as server, ExitStack() as closing:
        stands = _Stands(server, closing)
        found = _sending(stands, runs, scale)
        found += _draining(stands, runs, scale)
        found += _waiting(stands, runs, scale)
        return found


class _Stands:
    """Ourselves and every peer; one that fails is told of in all rows that it should be in."""

    def __init__(self, server: Server, closing: ExitStack) -> None:
        self.problems: dict[str, str] = {}
        self.titles: dict[str, str] = {}
        self.ours = closing.enter_context(Stand(OURS, python_of(OURS), server, BASE))
        self.ours.install()
        self.peers: dict[str, Stand] = {}
        for peer in PEERS:
            self.titles[peer.name] = peer.name
            try:
                python = python_of(peer)
                version = version_of(peer, python)
                self.titles[peer.name] = f"{peer.name} {version.split()[0]}"
                note(f"peers: {peer.name} {version}")
                stand = closing.enter_context(Stand(peer, python, server, _database(server, peer)))
                stand.install()
                self.peers[peer.name] = stand
            except (CannotInstall, WorkerFailed) as error:
                self.fail(peer.name, error)

    def fail(self, name: str, error: Exception) -> None:
        note(f"peers: {name} failed: {error}")
        lines = str(error).strip().splitlines()
        self.problems.setdefault(name, f"failed: {lines[0]} … {lines[-1]}" if len(lines) > 1 else f"failed: {error}")

    def interleaved(self, runs: int, work: Work) -> dict[str, list[float]]:
        """Run each peer once, then each again; a peer that fails is left out of the remaining runs."""
        failed: set[str] = set()

        def guarded(name: str, stand: Stand) -> float:
            if name in failed:
                return FAILED
            try:
                return work(stand)
            except WorkerFailed as error:
                failed.add(name)
                self.fail(name, error)
                return FAILED

        works: dict[str, Callable[[], float]] = {"ours": lambda: work(self.ours)}
        for name, stand in self.peers.items():
            works[name] = lambda name=name, stand=stand: guarded(name, stand)  # type: ignore[misc]
        return interleaved(runs, works)

    def rows(self, title: str, measured: dict[str, list[float]], unit: str, **more: bool) -> list[Row]:
        return rows(title, measured, unit, self.titles, self.problems, **more)


def rows(
    title: str,
    measured: dict[str, list[float]],
    unit: str,
    titles: dict[str, str],
    problems: dict[str, str],
    *,
    drained: bool = False,
    at_least: bool = True,
) -> list[Row]:
    """A row for every peer, also for one that was not measured."""
    ours = statistics.median(measured["ours"])
    found = []
    for peer in PEERS:
        values = [value for value in measured.get(peer.name, []) if not math.isnan(value)]
        beside = statistics.median(values) if values else None
        problem = "" if values else problems.get(peer.name, "failed")
        bar = peer.drain_bar if drained else None
        name = f"{title}, beside {titles[peer.name]}"
        found.append(Row(name, ours, beside, bar, unit, at_least, measured["ours"], problem))
    return found


def _database(server: Server, peer: Peer) -> str:
    name = f"peers_{peer.module.rpartition('.')[2]}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return name


def _sending(stands: _Stands, runs: int, scale: float) -> list[Row]:
    note("peers: W1, send one per transaction, jobs/s")
    single = stands.interleaved(runs, lambda stand: stand.send_each(max(int(EACH * scale), 100)))
    note("peers: W2, bulk send, jobs/s")
    bulk = stands.interleaved(runs, lambda stand: stand.send_bulk(max(int(stand.peer.bulk * scale), 100)))
    return [
        *stands.rows("W1 send, one per transaction", single, "jobs/s"),
        *stands.rows("W2 bulk send", bulk, "jobs/s"),
    ]


def _draining(stands: _Stands, runs: int, scale: float) -> list[Row]:
    found = []
    for processes in (1, 2):
        many = "1 process" if processes == 1 else f"{processes} processes"
        note(f"peers: W3, drain, {many}, jobs/s")
        # With fewer jobs a second process would come too late.
        measured = stands.interleaved(
            runs,
            lambda stand, processes=processes: stand.drain(max(int(stand.peer.drained * scale), 500), processes),  # type: ignore[misc]
        )
        found += stands.rows(f"W3 drain, {many}", measured, "jobs/s", drained=True)
    return found


def _waiting(stands: _Stands, runs: int, scale: float) -> list[Row]:
    note("peers: W4, from the return of a send until its handler began, median in ms")
    pooled: dict[str, list[float]] = {}

    def median(stand: Stand) -> float:
        found = stand.latencies(max(int(LATENCIES * scale), 20))
        pooled.setdefault(stand.peer.name, []).extend(found)
        return statistics.median(found)

    stands.interleaved(runs, median)
    half = {name: [statistics.median(values)] for name, values in pooled.items()}
    most = {name: [percentile(values, 99)] for name, values in pooled.items()}
    return [
        *stands.rows("W4 latency, p50", half, "ms", at_least=False),
        *stands.rows("W4 latency, p99", most, "ms", at_least=False),
    ]


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
