"""Proves from histories and the final table that every promise was kept, or names each breach.

It knows nothing of how the queue is built: it reads events that senders, handlers and operators wrote themselves, and
rows as plain SQL returns them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

Event = Mapping[str, Any]
DEAD = frozenset({"failed", "expired"})
ENDED = DEAD | {"completed", "cancelled", "stopped", "unknown_stopped"}
# What an operator does to a job may end it, move it or run it again, so its key is no longer held by it.
LETS_GO = frozenset({"retry", "skip", "cancel", "delete", "purge", "reschedule", "mend"})
RESUMED_SECONDS = 2.0  # a process that was stopped may go on that long before it notices that its claim is gone
NOTICED_SECONDS = 6.0  # after a failover, workers may run that long what they had claimed in the part that was lost


class Breach(NamedTuple):
    kind: str
    text: str


@dataclass(frozen=True)
class Rules:
    """What one queue promises."""

    serial: bool = False  # one run of a key at a time
    ordered: bool = False  # runs of a key in the order sent
    blocks: bool = False  # a job that failed for good holds its key
    atomic: bool = False  # each completed job left one effect, any other none
    one_waits: bool = False  # one job of a key waits for its first attempt
    one_unfinished: bool = False  # one job of a key waits or runs
    batched: bool = False  # several jobs of a key are claimed at once, and their results may be stored together


@dataclass(frozen=True)
class Row:
    """A job as the database has it in the end; ``token`` is that of the run whose result was accepted."""

    id: str
    queue: str
    key: str
    seq: int
    state: str
    attempt: int
    number: int | None
    token: str | None
    claimed: float | None = None  # when it was first claimed, by the clock of the events


@dataclass(frozen=True)
class Run:
    token: str
    job: str
    queue: str
    key: str
    attempt: int
    number: int
    pid: int
    began: float
    ended: float | None
    how: str  # "returned", "raised", or "" if its process was killed


@dataclass
class World:
    """Everything that is known after a run."""

    rules: Mapping[str, Rules]
    events: Sequence[Event]
    rows: Sequence[Row]
    effects: Counter[str] = field(default_factory=Counter)  # job → how many
    slots: Counter[tuple[str, str]] = field(default_factory=Counter)  # schedule and slot → jobs
    due_slots: frozenset[tuple[str, str]] = frozenset()  # for which there must be a job
    capacities: Mapping[str, int] = field(default_factory=dict)  # stream → most jobs it may hold
    lost_between: Sequence[tuple[float, float]] = ()  # what was committed then may be gone: a standby lacked it
    quiet: Sequence[tuple[float, float]] = ()  # when nothing disturbed all keys at once
    patience: float = 8.0  # seconds that a free key may wait in a quiet time

    def __post_init__(self) -> None:
        self.sent = {event["job"]: event for event in self.events if event["event"] == "sent"}
        self.sent_to: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.sent.values():
            self.sent_to[event["queue"], event["key"]].append(event)
        self.runs = _runs(self.events)
        self.by_id = {row.id: row for row in self.rows}
        self.by_job: dict[str, list[Run]] = defaultdict(list)
        self.by_key: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in self.runs:
            self.by_job[run.job].append(run)
            self.by_key[run.queue, run.key].append(run)
        self.touched: dict[str, list[Event]] = defaultdict(list)  # job → what operators did to it
        self.cleared: dict[str, list[Event]] = defaultdict(list)  # queue → when it was purged
        for event in self.events:
            if event["event"] == "verb":
                for job in event["jobs"]:
                    self.touched[job].append(event)
                if event["verb"] == "purge":
                    self.cleared[event["queue"]].append(event)

        self._let_go: dict[tuple[str, str], float] = {}

    def may_be_lost(self, moment: float) -> bool:
        """Whether what was committed at that moment may be missing after a failover."""
        return any(begin <= moment <= end for begin, end in self.lost_between)

    def is_unsure(self, begin: float, end: float) -> bool:
        """Whether a failover that lost commits lies in that time, or workers had not yet noticed it."""
        return any(begin <= until + NOTICED_SECONDS and since <= end for since, until in self.lost_between)

    def let_go_at(self, job: str, queue: str) -> float:
        """From when on an operator may have moved it; a verb whose answer was lost counts from its call on."""
        if (job, queue) not in self._let_go:
            verbs = [*self.touched[job], *self.cleared[queue]]
            calls = [verb["called"] for verb in verbs if verb["verb"] in LETS_GO]
            self._let_go[job, queue] = min(calls, default=math.inf)
        return self._let_go[job, queue]


def _runs(events: Iterable[Event]) -> list[Run]:
    begun: dict[str, Event] = {}
    ends: dict[str, Event] = {}
    for event in events:
        if event["event"] == "began":
            begun[event["token"]] = event
        elif event["event"] == "ended":
            ends[event["token"]] = event
    found = [
        Run(token, event["job"], event["queue"], event["key"], event["attempt"], event["number"], event["pid"],
            event["at"], ends[token]["at"] if token in ends else None, ends[token]["how"] if token in ends else "")
        for token, event in begun.items()
    ]  # fmt: skip
    return sorted(found, key=lambda run: run.began)


def check(world: World) -> list[Breach]:
    """Every breach; the same that was seen in two ways is named twice."""
    return [breach for look in CHECKS for breach in look(world)]


# ------------------------------------------------------------------------------------------------------------- laws


def nothing_is_lost(world: World) -> Iterator[Breach]:
    for job, event in world.sent.items():
        gone = job not in world.by_id
        untouched = world.let_go_at(job, event["queue"]) == math.inf
        if gone and untouched and not world.may_be_lost(event["at"]):
            yield Breach("lost", f"{job} of {event['queue']}/{event['key']} was acknowledged and is not there")


def everything_ends(world: World) -> Iterator[Breach]:
    for row in world.rows:
        if row.state not in ENDED:
            yield Breach("stuck", f"{row.id} of {row.queue}/{row.key} is {row.state} in the end")


def nothing_rolled_back_runs(world: World) -> Iterator[Breach]:
    for event in world.events:
        if event["event"] == "rolled_back" and (event["job"] in world.by_id or event["job"] in world.by_job):
            yield Breach("ghost", f"{event['job']} was rolled back, and is there or ran")


def no_overlap(world: World) -> Iterator[Breach]:
    """What the kernel saw. A holder that was stopped does nothing until it goes on, and then notices soon."""
    for event in world.events:
        if event["event"] != "overlap" or not world.rules[event["queue"]].serial:
            continue
        holder = event["holder"].get("pid")
        if not any(pid == holder and begin <= event["at"] <= end for pid, begin, end in _pauses(world)):
            yield Breach("overlap", f"{event['queue']}/{event['key']}: {event['token']} beside {event['holder']}")


def _pauses(world: World) -> Iterator[tuple[int, float, float]]:
    for event in world.events:
        if event["event"] == "paused":
            yield event["process"], event["called"], event["at"] + RESUMED_SECONDS


def in_order(world: World) -> Iterator[Breach]:
    """If one send was acknowledged before the other was called, the first has ended before the second begins."""
    for before, after, run in orders(world):
        if not _had_ended(world, before, run):
            place = f"{before['queue']}/{before['key']}"
            yield Breach("order", f"{place}: {after['job']} began before {before['job']} had ended")


def orders(world: World) -> Iterator[tuple[Event, Event, Run]]:
    """All pairs of jobs whose order is promised, and the first run of the later one."""
    for (queue, key), runs in world.by_key.items():
        if not world.rules[queue].ordered:
            continue
        first: dict[str, Run] = {}
        for run in runs:
            first.setdefault(run.job, run)
        known = [(world.sent[job], run) for job, run in first.items() if job in world.sent]
        for before in world.sent_to[queue, key]:
            if before["delayed"] or world.may_be_lost(before["at"]):
                continue
            for after, run in known:
                if before["at"] < after["called"]:
                    yield before, after, run


def _had_ended(world: World, sent: Event, next_run: Run) -> bool:
    """Whether a job had its last run before the next job of its key began, or an operator had let its key go.

    Of jobs that were claimed together, each must have returned before the next began. If their worker dies before it
    stores the results, all of them run again.
    """
    job, queue, moment = sent["job"], sent["queue"], next_run.began
    if world.let_go_at(job, queue) < moment or world.is_unsure(moment, moment):
        return True
    row = world.by_id.get(job)
    if row is None:
        return True  # judged by another law
    runs = world.by_job[job]
    if world.rules[queue].batched and any(_returned_before(run, next_run) for run in runs):
        return True
    if any(run.began > moment or (run.ended or run.began) > moment for run in runs):
        return False
    return bool(runs) or row.state in DEAD


def _returned_before(run: Run, next_run: Run) -> bool:
    is_same_batch = (run.number, run.pid) == (next_run.number, next_run.pid)
    return is_same_batch and run.how == "returned" and run.ended is not None and run.ended <= next_run.began


def attempts_count_up(world: World) -> Iterator[Breach]:
    for job, runs in world.by_job.items():
        for one, other in pairwise(runs):
            explained = world.is_unsure(one.began, other.began) or world.let_go_at(job, one.queue) < other.began
            if other.attempt <= one.attempt and not explained:
                yield Breach("attempts", f"{job}: attempt {one.attempt}, then {other.attempt}")


def policies_keep_their_limits(world: World) -> Iterator[Breach]:
    """Two jobs of a key are never seen at once in a state of which the policy allows one."""
    for (queue, key), sends in world.sent_to.items():
        rules = world.rules[queue]
        if not (rules.one_waits or rules.one_unfinished):
            continue
        spans = []
        for event in sends:
            until = (
                _unfinished_until(world, event["job"]) if rules.one_unfinished else _waits_until(world, event["job"])
            )
            touched = world.let_go_at(event["job"], queue) < math.inf
            if until is not None and not touched and not world.is_unsure(event["at"], until):
                spans.append((event["at"], until, event["job"]))
        for (_, end, one), (begin, _, other) in pairwise(sorted(spans)):
            if begin < end:
                yield Breach("policy", f"{queue}/{key}: {other} was stored beside {one}")


def _waits_until(world: World, job: str) -> float | None:
    """Jobs are claimed ahead, so the begin of a run is not the moment."""
    return world.by_id[job].claimed if job in world.by_id else None


def _unfinished_until(world: World, job: str) -> float | None:
    """The last moment at which it certainly had not finished."""
    accepted = world.by_id[job].token if job in world.by_id else None
    for run in world.by_job[job]:
        if run.token == accepted:
            return run.ended
    return max((run.began for run in world.by_job[job]), default=None)


def no_stale_result(world: World) -> Iterator[Breach]:
    tokens = {run.token: run for run in world.runs}
    for row in world.rows:
        if row.state != "completed" or row.queue not in world.rules:
            continue
        run = tokens.get(row.token or "")
        if run is None or run.job != row.id:
            yield Breach("stale", f"{row.id} was completed by an unknown run: {row.token}")
        elif run.number != row.number:
            yield Breach("stale", f"{row.id} holds claim {row.number}, and was completed by claim {run.number}")
        elif run.how != "returned":
            yield Breach("stale", f"{row.id} was completed by {run.token}, which did not return")


def completed_is_final(world: World) -> Iterator[Breach]:
    for row in world.rows:
        if row.state != "completed" or world.touched[row.id]:
            continue
        accepted = next((run for run in world.by_job[row.id] if run.token == row.token), None)
        if accepted is None or accepted.ended is None or world.may_be_lost(accepted.ended):
            continue
        again = [run for run in world.by_job[row.id] if run.began > accepted.ended]
        if again:
            yield Breach("twice", f"{row.id} ran again after {accepted.token} had completed it")


def effects_once(world: World) -> Iterator[Breach]:
    for row in world.rows:
        if row.queue in world.rules and world.rules[row.queue].atomic:
            expected = 1 if row.state == "completed" else 0
            if world.effects[row.id] != expected and not world.touched[row.id]:
                yield Breach("effects", f"{row.id} is {row.state} and has {world.effects[row.id]} effects")


def blocked_keys_stay_blocked(world: World) -> Iterator[Breach]:
    for row in world.rows:
        if row.state not in DEAD or not world.rules.get(row.queue, Rules()).blocks or world.touched[row.id]:
            continue
        last = max((run.ended or run.began for run in world.by_job[row.id]), default=None)
        sent = world.sent.get(row.id)
        if last is None or sent is None:
            continue
        for run in world.by_key[row.queue, row.key]:
            later = world.sent.get(run.job)
            if run.began > last and later is not None and later["called"] > sent["at"]:
                yield Breach("blocked", f"{run.job} ran although {row.id} blocks {row.queue}/{row.key}")


def one_job_per_slot(world: World) -> Iterator[Breach]:
    for slot, number in world.slots.items():
        if number > 1:
            yield Breach("schedule", f"{number} jobs for {slot}")
    for slot in world.due_slots - world.slots.keys():
        yield Breach("schedule", f"no job for {slot}")


def streams_keep_their_capacity(world: World) -> Iterator[Breach]:
    held: Counter[str] = Counter()
    for event in world.events:
        if event["event"] == "delivered":
            held[event["stream"]] += 1
            if held[event["stream"]] > world.capacities[event["stream"]]:
                yield Breach("capacity", f"{event['stream']} holds {held[event['stream']]} jobs at {event['at']:.3f}")
        elif event["event"] == "finishing":
            held[event["stream"]] -= 1
        elif event["event"] == "stream_began":
            held[event["stream"]] = 0


def other_keys_go_on(world: World) -> Iterator[Breach]:
    """A free job is begun soon after it was sent, whatever holds other keys."""
    for job, event in world.sent.items():
        if not event.get("free") or world.may_be_lost(event["at"]):
            continue
        began = min((run.began for run in world.by_job[job]), default=None)
        for begin, end in world.quiet:
            waited_from = max(event["at"], begin)
            waited = min(end if began is None else began, end) - waited_from
            if event["at"] < end and waited > world.patience:
                yield Breach("delayed", f"{job} of a free key waited {waited:.1f} seconds")


CHECKS: tuple[Callable[[World], Iterator[Breach]], ...] = (
    nothing_is_lost,
    everything_ends,
    nothing_rolled_back_runs,
    no_overlap,
    in_order,
    attempts_count_up,
    policies_keep_their_limits,
    no_stale_result,
    completed_is_final,
    effects_once,
    blocked_keys_stay_blocked,
    one_job_per_slot,
    streams_keep_their_capacity,
    other_keys_go_on,
)
