"""The rules of operators, of maintenance, and of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from django_jobqueue import models, services
from django_jobqueue.expressions import StatementTimestamp

from .database import SECONDS, UNIT, database_now, pass_time
from .reference import CREATED, DEAD, ELIGIBLE, FINAL, RETRYING, RUNNING, Job
from .sides import QUEUES, WORKERS, Answer, Sides, asked_tags, few_numbers, numbers, queue_names, step


class Operating(Sides):
    """What operators and sweeps do."""

    @step(
        2,
        when=lambda self: self.model.jobs,
        wanted=st.lists(numbers, max_size=3),
        tags=asked_tags,
        force=st.sampled_from([False, False, True]),
        states=st.sampled_from([ELIGIBLE, RUNNING, {CREATED}, FINAL]),
    )
    def cancel(self, wanted, tags, force, states) -> None:
        ids = self.ids(wanted, states)
        before = {id: job.state for id, job in self.model.jobs.items()}
        answer = self.ask(lambda: services.cancel(ids, tags=tags, force=force))

        expected = self.agree(answer, lambda: self.model.cancel(ids, tags, force))
        if expected is not None:
            found = answer.value
            assert (sorted(found.cancelled), sorted(found.unknown)) == tuple(map(sorted, expected))
            known = (expected[0] | expected[1]) & set(before)
            assert found.previous == {id: before[id] for id in known}

    @step(
        3,
        when=lambda self: self.in_state(*DEAD),
        wanted=few_numbers,
        alone=st.booleans(),
        data=st.sampled_from([None, None, 9]),
    )
    def retry(self, wanted, alone, data) -> None:
        ids = self.ids(wanted, DEAD)[: 1 if alone else None]
        changed = {} if data is None else {"data": data}
        answer = self.ask(lambda: services.retry(ids[0] if alone else ids, **changed))

        if self._is_refused(answer, ids, alone, DEAD):
            return
        must, one_of = self.model.check_retry(ids)
        moved = [self.model.jobs[id] for id in answer.value.moved]
        assert {job.id for job in must} <= set(answer.value.moved)
        assert all(sum(job in moved for job in group) == 1 for group in one_of)
        assert len(moved) == len(must) + len(one_of)
        assert set(answer.value.refused) == set(ids) - set(answer.value.moved)
        for job in moved:
            self.model.retry(job, data)

    @step(
        when=lambda self: self.in_state(*DEAD | RETRYING),
        wanted=few_numbers,
        alone=st.booleans(),
        reason=st.sampled_from(["by hand", "by hand", ""]),
    )
    def skip(self, wanted, alone, reason) -> None:
        ids = self.ids(wanted, DEAD | RETRYING)[: 1 if alone else None]
        answer = self.ask(lambda: services.skip(ids[0] if alone else ids, reason=reason))

        if not reason:
            assert answer.error == "InvalidOption"
        elif not self._is_refused(answer, ids, alone, DEAD | RETRYING):
            moved = self.model.skip(ids, reason)
            assert sorted(answer.value.moved) == sorted(job.id for job in moved if job.id)
            assert set(answer.value.refused) == set(ids) - set(answer.value.moved)

    def _is_refused(self, answer: Answer, ids: list[UUID], alone: bool, allowed: frozenset[str]) -> bool:
        """One job given by itself is an error when it cannot move; one of many is only listed."""
        if not alone:
            assert answer.error is None
            return False
        return self.agree(answer, lambda: self.model.holder(ids[0], None, *allowed)) is None

    @step(when=lambda self: self.in_state(*FINAL), wanted=st.lists(numbers, max_size=2), tags=asked_tags)
    def delete(self, wanted, tags) -> None:
        ids = self.ids(wanted, FINAL)
        answer = self.ask(lambda: services.delete(ids, tags=tags))
        self.agreed(answer, lambda: self.model.delete(ids, tags))

    @step(
        2,
        when=lambda self: self.in_state(*ELIGIBLE),
        number=numbers,
        at=st.integers(-1, 3),
        states=st.sampled_from([ELIGIBLE, ELIGIBLE, ()]),
    )
    def reschedule(self, number, at, states) -> None:
        for id in self.ids([number], states):
            when = database_now() + at * UNIT
            answer = self.ask(lambda id=id, when=when: services.reschedule(id, when))  # type: ignore[misc]
            self.agreed(answer, lambda id=id: self.model.reschedule(id, self.model.now + at))  # type: ignore[misc]

    @step(
        queue=queue_names,
        what=st.sampled_from(["heads", "resume", "exhausted", "heads", "pause", "purge"]),
        state=st.sampled_from(["active", "failed", CREATED, "retry", "completed", None]),
    )
    def change_a_queue(self, queue, what, state) -> None:
        found = self.model.queues[queue]
        self._resume()
        if what == "purge":
            self.agreed(self.ask(lambda: services.purge(queue, state)), lambda: self.model.purge(queue, state))
        elif what == "pause":
            self.agreed(self.ask(lambda: services.pause(queue)), lambda: setattr(found, "paused", True))
        elif what == "heads":
            found.delayed_head = "pass" if found.delayed_head == "block" else "block"
            assert self.ask(lambda: services.update_queue(queue, delayed_head=found.delayed_head)).error is None
        elif what == "exhausted":
            found.on_exhausted = "skip" if found.on_exhausted == "block" else "block"
            assert self.ask(lambda: services.update_queue(queue, on_exhausted=found.on_exhausted)).error is None

    def _resume(self) -> None:
        for queue in self.model.queues.values():
            if queue.paused:
                assert self.ask(lambda queue=queue: services.resume(queue.name)).error is None  # type: ignore[misc]
                queue.paused = False

    # --------------------------------------------------------------------------------------------- by themselves

    def _sweep(self, verb: Callable[[], Any], expected: Callable[[], Counter[str]]) -> None:
        self.agreed(self.ask(verb), lambda: dict(expected()))

    @step(2, when=lambda self: self.in_state(*RUNNING), what=st.sampled_from(["expire", "silent", *WORKERS]))
    def sweep(self, what) -> None:
        """Overdue jobs, or those of silent workers, or of a worker that was seen to die."""
        if what == "expire":
            self._sweep(services.expire, self.model.expire)
        else:
            dead = [self.incarnation(what)] if what in WORKERS else []
            self._sweep(lambda: services.recover_lost(dead), lambda: self.model.recover_lost(dead))

    @step(when=lambda self: self.in_state(*RUNNING), what=st.sampled_from([*WORKERS, *QUEUES, None]))
    def take_back_uncharged(self, what) -> None:
        if what in WORKERS:
            self._sweep(
                lambda: services.mark_worker_unresponsive(what),
                lambda: self.model.take_back(lambda job: job.assignee == what),
            )
        else:
            self._sweep(
                lambda: services.reset_running(what),
                lambda: self.model.take_back(lambda job: what in (None, job.queue)),
            )

    @step(
        when=lambda self: self.model.jobs,
        ttl=st.sampled_from([None, None, 1, 3]),
        queue=st.one_of(st.none(), queue_names),
    )
    def clean_up(self, ttl, queue) -> None:
        self._clean_up(ttl, queue)

    def _clean_up(self, ttl: int | None, queue: str | None) -> None:
        seconds = None if ttl is None else ttl * SECONDS
        answer = self.ask(lambda: services.cleanup(seconds, queue=queue))

        assert answer.error is None
        must, may = self.model.cleaning(ttl)
        left = set(models.Job.objects.values_list("pk", flat=True))

        def meant(jobs: list[Job]) -> list[Job]:
            return [job for job in jobs if queue in (None, job.queue)]

        kept = [job.id for job in meant(must) if job.id in left]
        assert not kept, f"{kept} should have been deleted"
        deleted = meant(must) + [job for job in meant(may) if job.id not in left]
        assert answer.value == dict(Counter(job.queue for job in deleted))
        self.model.remove(deleted)

    @step(
        3,
        when=lambda self: self.model.jobs,
        units=st.sampled_from([1, 2, 1, 3, 13]),
        living=st.sampled_from([WORKERS, WORKERS[:1], ()]),
        then=st.sampled_from([None, "expire", "silent", "clean up"]),
    )
    def time_passes(self, units, living, then) -> None:
        pass_time(units)
        self.model.now += units
        for name in living:
            id = self.incarnation(name)
            models.Worker.objects.filter(pk=id).update(heartbeat_at=StatementTimestamp())
            self.model.workers[id].heartbeat_at = self.model.now
        if then == "clean up":
            self._clean_up(None, None)
        elif then is not None:
            self.sweep(then)
