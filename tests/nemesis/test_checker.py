"""The checker itself: it says nothing about a history that is right, and names each breach that is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from . import history
from .checker import NOTICED_SECONDS, Breach, Row, Rules, World, check
from .configurations import FAILOVERS
from .strikes import plan

STRICT = Rules(serial=True, ordered=True, blocks=True)
STATELY, EXCLUSIVE = Rules(serial=True, one_waits=True), Rules(serial=True, one_unfinished=True)


class Story:
    """A history that is told event by event."""

    def __init__(self) -> None:
        atomic = Rules(serial=True, ordered=True, atomic=True)
        self.rules = {"fifo": STRICT, "atomic": atomic, "free": Rules(), "stately": STATELY, "exclusive": EXCLUSIVE}
        self.rules["grouped"] = replace(STRICT, batched=True)
        self.events: list[dict[str, Any]] = []
        self.rows: dict[str, Row] = {}
        self.now = 0.0
        self.more: dict[str, Any] = {}

    def tell(self, event: str, **facts: Any) -> Story:
        self.now += 1.0
        self.events.append({"event": event, "at": self.now, "pid": 1, **facts})
        return self

    def send(self, job: str, queue: str = "fifo", key: str = "k", **facts: Any) -> Story:
        row = Row(job, queue, key, len(self.rows), "created", 0, None, None)
        self.rows[job] = row
        given = {"job": job, "queue": queue, "key": key, "delayed": False, "called": self.now + 0.5, **facts}
        return self.tell("sent", **given)

    def begin(self, job: str, attempt: int = 1, pid: int = 1) -> Story:
        row = self.rows[job]
        if row.claimed is None:
            self.rows[job] = row = replace(row, claimed=self.now + 0.9)
        facts = {"job": job, "queue": row.queue, "key": row.key, "attempt": attempt, "number": 100 + attempt}
        return self.tell("began", token=f"{job}.{attempt}", **facts, pid=pid)

    def end(self, job: str, attempt: int = 1, how: str = "returned") -> Story:
        return self.tell("ended", token=f"{job}.{attempt}", how=how)

    def store(self, job: str, state: str = "completed", attempt: int = 1, **changes: Any) -> Story:
        row = self.rows[job]
        token = f"{job}.{attempt}" if state == "completed" else None
        values = {"state": state, "attempt": attempt, "number": 100 + attempt, "token": token, **changes}
        self.rows[job] = replace(row, **values)
        return self

    def run(self, job: str, attempt: int = 1) -> Story:
        return self.begin(job, attempt).end(job, attempt).store(job, attempt=attempt)

    def verb(self, verb: str, *jobs: str, queue: str = "fifo") -> Story:
        return self.tell("verb", verb=verb, jobs=list(jobs), queue=queue, called=self.now + 0.5)

    def breaches(self) -> list[Breach]:
        return check(World(self.rules, self.events, list(self.rows.values()), **self.more))

    def kinds(self) -> set[str]:
        return {breach.kind for breach in self.breaches()}


def two_jobs() -> Story:
    return Story().send("a").send("b")


def test_a_history_that_is_right_has_no_breach():
    story = two_jobs().begin("a").end("a", how="raised").run("a", 2).run("b").send("c", "free", "").run("c")
    story.send("d").begin("d").end("d", how="raised").store("d", "failed").verb("skip", "d").send("e").run("e")

    assert story.breaches() == []


@pytest.mark.parametrize(
    ("kind", "story"),
    (
        ("lost", lambda: two_jobs().run("a").run("b").tell(
            "sent", job="x", queue="fifo", key="k", delayed=False, called=9)),
        ("stuck", lambda: two_jobs().run("a")),
        ("ghost", lambda: Story().send("a").run("a").tell("rolled_back", job="a")),
        ("overlap", lambda: two_jobs().run("a").run("b").tell(
            "overlap", token="b.1", queue="fifo", key="k", holder={"pid": 7, "token": "a.1"})),
        ("order", lambda: two_jobs().run("b").run("a")),
        ("order", lambda: two_jobs().begin("a").begin("b").end("a").end("b").store("a").store("b")),
        ("order", lambda: two_jobs().begin("a").end("a", how="raised").run("b").run("a", 2)),
        ("attempts", lambda: Story().send("a").begin("a", 2).end("a", 2, "raised").run("a", 1)),
        ("stale", lambda: Story().send("a").run("a").store("a", number=7)),
        ("stale", lambda: Story().send("a").run("a").store("a", token="unknown")),
        ("stale", lambda: Story().send("a").begin("a").store("a")),
        ("twice", lambda: Story().send("a").run("a").begin("a", 2).end("a", 2)),
        ("effects", lambda: Story().send("a", "atomic").run("a")),
        ("policy", lambda: Story().send("a", "stately").send("b", "stately").run("a").run("b")),
        ("policy", lambda: Story().send("a", "exclusive").begin("a").send("b", "exclusive")
            .end("a").store("a").run("b")),
        ("policy", lambda: Story().send("a", "exclusive").begin("a").end("a", how="raised").send("b", "exclusive")
            .run("a", 2).run("b")),
        ("blocked", lambda: two_jobs().begin("a").end("a", how="raised").store("a", "failed").run("b")),
    ),
)  # fmt: skip
def test_each_breach_that_is_planted_is_named(kind, story):
    assert kind in story().kinds()


def test_effects_are_counted_for_what_did_not_complete_too():
    story = (
        Story().send("a", "atomic").begin("a").end("a", how="raised").store("a", "cancelled").send("b", "atomic", "l")
    )
    story.run("b")
    story.more = {"effects": Counter({"a": 1, "b": 1})}

    assert [breach.text for breach in story.breaches() if breach.kind == "effects"] == [
        "a is cancelled and has 1 effects"
    ]


def test_what_an_operator_did_is_no_breach():
    assert two_jobs().verb("cancel", "a").store("a", "cancelled").run("b").breaches() == []
    assert two_jobs().begin("a").end("a", how="raised").store("a", "failed").verb("skip", "a").run("b").breaches() == []
    deleted = two_jobs().verb("delete", "a").run("b")
    del deleted.rows["a"]
    assert deleted.breaches() == []
    late = two_jobs().run("b").verb("cancel", "a").store("a", "cancelled")
    assert "order" in late.kinds()  # it was done too late to explain it


def test_delayed_jobs_may_be_passed_by_and_only_those():
    assert Story().send("a", delayed=True).send("b").run("b").run("a").breaches() == []
    assert "order" in Story().send("a").send("b", delayed=True).run("b").run("a").kinds()


def test_a_stopped_process_may_hold_its_lock_until_shortly_after_it_goes_on():
    def story(at: float) -> Story:
        told = two_jobs().run("a").run("b").tell("paused", process=7, called=2.0)
        told.events[-1]["at"] = 6.0
        return told.tell("overlap", token="b.1", queue="fifo", key="k", holder={"pid": 7}, at=at)

    assert story(4.0).breaches() == []
    assert story(7.5).breaches() == []
    assert story(8.5).kinds() == {"overlap"}
    assert story(1.5).kinds() == {"overlap"}


def test_what_a_standby_lacked_may_be_lost_and_run_again_but_no_stale_result_is_taken():
    story = Story().send("a").send("b").begin("a").end("a").begin("a", 1)
    story.events[-1]["token"] = "a.again"
    story.tell("ended", token="a.again", how="returned").store("a", token="a.again")
    del story.rows["b"]
    assert {"attempts", "lost"} <= story.kinds()
    story.more = {"lost_between": [(1.5, 4.5)]}
    assert story.breaches() == []

    assert "stale" in story.store("a", number=9, token="a.again").kinds()


def test_long_after_a_standby_was_promoted_every_promise_holds_again():
    story = two_jobs().run("a").run("b").send("c").send("d").run("d").run("c")
    story.more = {"lost_between": [(1.5, 4.5)]}
    assert story.breaches() == []  # the workers may not yet have noticed

    story.now += NOTICED_SECONDS
    assert story.send("e").send("f").run("f").run("e").kinds() == {"order"}


def test_policies_let_the_next_job_in_when_the_one_before_is_past_the_state():
    stately = Story().send("a", "stately").begin("a").send("b", "stately").end("a").store("a").run("b")
    exclusive = Story().send("a", "exclusive").run("a").send("b", "exclusive").run("b")
    cancelled = Story().send("a", "exclusive").verb("cancel", "a", queue="exclusive").store("a", "cancelled")
    cancelled.send("b", "exclusive").run("b")

    assert [story.breaches() for story in (stately, exclusive, cancelled)] == [[], [], []]


def test_the_plan_follows_from_the_seed():
    assert plan(7, 600, frozenset()) == plan(7, 600, frozenset())
    assert plan(7, 600, frozenset()) != plan(8, 600, frozenset())
    assert sum(strike.name in FAILOVERS for strike in plan(7, 600, frozenset())) == 3
    assert not any(strike.name in FAILOVERS for strike in plan(7, 600, FAILOVERS))


def test_schedules_have_one_job_for_each_slot():
    story = Story()
    story.more = {"slots": Counter({("s", "1"): 1, ("s", "2"): 2}), "due_slots": frozenset({("s", "1"), ("s", "3")})}

    assert sorted(breach.text for breach in story.breaches()) == ["2 jobs for ('s', '2')", "no job for ('s', '3')"]


def test_a_stream_never_holds_more_than_its_capacity():
    story = Story()
    story.more = {"capacities": {"s": 2}}
    for event in ("delivered", "delivered", "finishing", "delivered"):
        story.tell(event, stream="s")
    assert story.breaches() == []

    assert story.tell("delivered", stream="s").kinds() == {"capacity"}
    assert story.tell("stream_began", stream="s").tell("delivered", stream="s").kinds() == {"capacity"}


def lost_batch(how: str = "returned") -> Story:
    """Two jobs of a group in one claim, whose worker died before it stored their results; then each runs again."""
    story = Story().send("a", "grouped").send("b", "grouped").begin("a").end("a", how=how).begin("b").end("b")
    return story.run("a", 2).run("b", 2)


def test_jobs_claimed_together_may_run_again_together():
    assert lost_batch().breaches() == []


def test_a_job_of_a_batch_waits_until_the_one_before_it_has_returned():
    assert lost_batch(how="raised").kinds() == {"order"}


def test_a_job_of_a_group_does_not_begin_in_another_batch_before_the_one_ahead_has_ended():
    story = Story().send("a", "grouped").send("b", "grouped").begin("a").end("a")

    story.begin("b", 7).end("b", 7).run("a", 8).run("b", 9)

    assert story.kinds() == {"order"}


def test_a_free_key_that_waits_in_a_quiet_time_is_delayed():
    story = Story().send("a", "free", "f", free=True)
    story.now = 20.0
    story.run("a")

    story.more = {"quiet": [(0.0, 5.0), (12.0, 30.0)], "patience": 10.0}
    assert story.breaches() == []  # nine seconds of the second quiet time
    story.more = {"quiet": [(0.0, 15.0)], "patience": 10.0}
    assert story.kinds() == {"delayed"}
    story.more["lost_between"] = [(0.5, 1.5)]  # then nothing may be left of it
    assert story.breaches() == []


# ------------------------------------------------------------------------------------------------------------- history


def test_the_kernel_sees_an_overlap_of_two_runs_and_of_two_processes(tmp_path, monkeypatch):
    monkeypatch.setenv(history.FOLDER, str(tmp_path))
    with history.alone("q", "k", "one"), history.alone("q", "other", "two"), history.alone("q", "k", "three"):
        code = "from tests.nemesis import history\nwith history.alone('q', 'k', 'four'): pass"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    with history.alone("q", "k", "five"):
        pass

    found = [(event["token"], event["holder"]["token"]) for event in history.read(tmp_path)]
    assert found == [("three", "one"), ("four", "one")]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv(history.FOLDER, str(tmp_path))
    history.write("one", at=2.0)
    history.write("two", at=1.0)
    with (tmp_path / history.HISTORY).open("a") as out:
        out.write('{"event": "thr')

    assert [event["event"] for event in history.read(tmp_path)] == ["two", "one"]
