"""The rules of senders and workers: send, fetch, finish. Each asks both sides and compares the answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.services import Failure

from . import reference
from .database import SECONDS, database_now, units_ago
from .reference import BLOCKING, ELIGIBLE, FINAL, ORDERED, RETRYING, RUNNING, Refused
from .sides import (
    WORKERS,
    Answer,
    Sides,
    asked_tags,
    few_numbers,
    numbers,
    queue_names,
    sendings,
    sent_as,
    step,
    tag_sets,
)

workers = st.sampled_from(WORKERS)
ends = st.sampled_from(
    ["complete", "fail", "fail", "stop", "mark_unknown_stopped", "acknowledge", "give_back", "set_visibility"]
)


class Working(Sides):
    """What senders and workers do."""

    # ----------------------------------------------------------------------------------------- sending, fetching

    @step(
        4,
        items=st.lists(st.tuples(queue_names, sendings), min_size=1, max_size=3),
        on_duplicate=st.sampled_from([None, "return", "ignore"]),
    )
    def send_some(self, items, on_duplicate) -> None:
        for queue, item in items:
            self.send(queue, item, on_duplicate)

    @step(
        2,
        queue=queue_names,
        items=st.lists(sendings, max_size=4),
        on_duplicate=st.sampled_from([None, None, "return", "ignore"]),
    )
    def send_many(self, queue, items, on_duplicate) -> None:
        items = [self.fitting(queue, item) for item in items]
        answer = self.ask(lambda: services.send_many(queue, map(sent_as, items), on_duplicate=on_duplicate))

        if self.model.queues[queue].policy == ORDERED and not all(item.key for item in items):
            assert answer.error == "KeyRequired"
            return
        before, seq = dict(self.model.jobs), self.model.last_seq
        given, refused = set(self.model.jobs), []
        for place, item in enumerate(items):
            taken = [item.id] if item.id in given else []
            taken += [job.id for job in self.model.in_the_way(queue, item)]
            given |= {item.id} - {None}
            if taken:
                refused.append((place, taken))
                continue
            id = answer.value[place] if answer.value else item.id or UUID(int=1000 + place)
            assert id is not None, "refused without a reason"
            self.model.store(queue, id, item)
        if refused and on_duplicate is None:  # all or none
            self.model.jobs, self.model.last_seq = before, seq
            assert answer.error == "DuplicateJob"
            return
        assert answer.error is None
        for place, taken in refused:
            # Of two items with one id the first may have been refused itself: then no job has it.
            there = [id if id in self.model.jobs else None for id in taken]
            assert answer.value[place] in (there if on_duplicate == "return" else [None])

    @step(
        5,
        when=lambda self: self.in_state(*ELIGIBLE),
        number=numbers,
        limit=st.integers(1, 5),
        worker=workers,
        ends=st.lists(st.tuples(ends, numbers), max_size=2),
    )
    def work(self, number, limit, worker, ends) -> None:
        """Fetch, and end some of what was fetched; the rest is left for later."""
        self._work(self.queue(number), limit, worker, ends)

    @step(
        4,
        when=lambda self: self.model.turns("ordered")[0],
        limit=st.integers(1, 3),
        worker=workers,
        ends=st.lists(st.tuples(ends, numbers), max_size=2),
    )
    def work_on_heads(self, limit, worker, ends) -> None:
        self._work("ordered", limit, worker, ends)

    def _work(self, queue: str, limit: int, worker: str, ends: list[tuple[str, int]]) -> None:
        for claim, (verb, n) in zip(self.fetch(queue, limit, (), worker, None), ends, strict=False):
            self.both_agree()
            self._finish(verb, claim, claim.pk, claim.attempt, n)

    @step(
        2,
        when=lambda self: self.in_state(*ELIGIBLE),
        number=numbers,
        tags=tag_sets,
        worker=workers,
        lease=st.sampled_from([1, 2, None]),
    )
    def fetch_tagged_or_leased(self, number, tags, worker, lease) -> None:
        self.fetch(self.queue(number), 3, tags, worker, lease)

    def fetch(self, queue: str, limit: int, tags: Iterable[str], worker: str, lease: int | None) -> list[Job]:
        incarnation = self.incarnation(worker)
        seconds = None if lease is None else lease * SECONDS
        answer = self.ask(
            lambda: services.fetch(queue, limit, tags=tags, worker=worker, incarnation=incarnation, lease=seconds)
        )

        assert answer.error is None
        self.model.end_leases(queue)
        self.model.check_fetch(queue, tags, limit, [job.pk for job in answer.value])
        for job in answer.value:
            self.model.claim(self.model.jobs[job.pk], worker, incarnation, lease)
        self.claims += answer.value
        return list(answer.value)

    # ----------------------------------------------------------------------- finishing, with a claim and without

    def _finish(self, verb: str, target: Any, id: UUID, attempt: int | None, n: int) -> None:
        """One of the verbs that end or extend an attempt; ``n`` varies its arguments."""
        model, text = self.model, ["", "because", "late"][n % 3]
        if verb == "complete":
            answer = self.ask(lambda: services.complete(target, {"n": n}))
            self.agreed(answer, lambda: model.complete(id, attempt, {"n": n}))
        elif verb == "fail":
            delay, for_good = (None, None, 2)[n % 3], n > 4
            after = None if delay is None else delay * SECONDS
            answer = self.ask(lambda: services.fail(target, "oh", retry_after=after, for_good=for_good))
            self._check_failure(answer, self.agree(answer, lambda: model.fail(id, attempt, "oh", for_good, delay)))
        elif verb == "stop":
            answer = self.ask(lambda: services.stop(target, text, count_retry=n > 4))
            self.agreed(answer, lambda: model.stop(id, attempt, text, n > 4))
        elif verb == "mark_unknown_stopped":
            answer = self.ask(lambda: services.mark_unknown_stopped(target, text))
            self.agreed(answer, lambda: model.mark_unknown_stopped(id, attempt, text))
        elif verb == "acknowledge":
            answer = self.ask(lambda: services.acknowledge_cancellation(target, was_executing=n > 3))
            self.agreed(answer, lambda: model.acknowledge(id, attempt, n > 3))
        elif verb == "give_back":
            answer = self.ask(lambda: services.give_back(target, "not now", delay=n % 2 * SECONDS or None))
            self.agreed(answer, lambda: model.give_back(id, attempt, "not now", n % 2))
        else:
            answer = self.ask(lambda: services.set_visibility(target, n % 3 * SECONDS))
            self.agreed(answer, lambda: model.set_visibility(id, attempt, n % 3))

    def _check_failure(self, answer: Answer, job: reference.Job | None) -> None:
        if job is None:
            return
        found: Failure = answer.value
        waits = job.state in RETRYING
        assert (found.id, found.state, found.retry_count, found.will_retry) == (
            job.id, job.state, job.retry_count, waits,
        )  # fmt: skip
        ago = units_ago(found.next_retry_at, database_now())
        assert ago == (self.model.now - job.start_after if waits else None)

    @step(4, when=lambda self: self.claims, number=numbers, n=numbers, verb=ends)
    def finish_a_claim(self, number, n, verb) -> None:
        for claim in self.pick_claims([number]):
            self._finish(verb, claim, claim.pk, claim.attempt, n)

    @step(4, when=lambda self: self.outdated(), number=numbers, n=numbers, verb=ends)
    def finish_an_outdated_claim(self, number, n, verb) -> None:
        claims = self.outdated()
        claim = claims[number % len(claims)]
        self._finish(verb, claim, claim.pk, claim.attempt, n)

    @step(
        2,
        when=lambda self: self.model.jobs,
        number=numbers,
        n=numbers,
        verb=ends,
        states=st.sampled_from([RUNNING, RETRYING, FINAL, ()]),
    )
    def finish_by_id(self, number, n, verb, states) -> None:
        for id in self.ids([number], states):
            self._finish(verb, id, id, None, n)

    @step(when=lambda self: self.claims, number=numbers)
    def touch(self, number) -> None:
        for claim in self.pick_claims([number]):
            answer = self.ask(lambda claim=claim: services.touch(claim))  # type: ignore[misc]
            self.agreed(answer, lambda claim=claim: self.model.touch(claim.pk, claim.attempt))  # type: ignore[misc]

    @step(
        3,
        when=lambda self: self.claims,
        completed=few_numbers,
        failed=st.lists(numbers, max_size=2),
        tags=asked_tags,
        worker=workers,
        hand_over=st.sampled_from([True, True, False]),
        outdated=st.integers(0, 1),
    )
    def finish_many(self, completed, failed, tags, worker, hand_over, outdated) -> None:
        picked = [*self.pick_claims(completed), *self.outdated()[:outdated]]
        good = list({(claim.pk, claim.attempt): claim for claim in picked}.values())
        bad = [claim for claim in self.pick_claims(failed) if claim.pk not in {job.pk for job in good}]
        incarnation = self.incarnation(worker)
        answer = self.ask(
            lambda: services.finish_many(
                [(job, {"many": True}) for job in good],
                [(job, "oh") for job in bad],
                hand_over=hand_over,
                tags=tags,
                worker=worker,
                incarnation=incarnation,
            )
        )

        assert answer.error is None
        found, lost, done = answer.value, [], []
        keys: dict[tuple[str, str], bool] = {}  # and whether it was blocked by what was completed
        for claim in good:
            blocked = self.model.jobs[claim.pk].state in BLOCKING if claim.pk in self.model.jobs else False
            try:
                self.model.complete(claim.pk, claim.attempt, {"many": True})
            except Refused:
                lost.append(claim.pk)
                continue
            done.append(claim)
            if hand_over and claim.policy == ORDERED:
                keys[claim.queue_id, claim.singleton_key] = blocked
        self.model.moment += 1
        handed = self.model.check_hand_over(keys, tags, [job.pk for job in found.next])
        for job in handed:
            self.model.claim(job, worker, incarnation)
        self.claims += found.next
        failures, stopped = [], []
        for claim in bad:
            self.model.moment += 1
            cancelling = claim.pk in self.model.jobs and self.model.jobs[claim.pk].state == reference.CANCELLING
            try:
                if cancelling:
                    self.model.stop(claim.pk, claim.attempt, "oh", False)
                    stopped.append(claim.pk)
                else:
                    failures.append(self.model.fail(claim.pk, claim.attempt, "oh"))
            except Refused:
                lost.append(claim.pk)
        assert found.stopped == stopped
        assert sorted(found.completed) == sorted(job.pk for job in done)
        assert sorted(found.lost) == sorted(lost)
        assert found.busy == []
        assert [failure.id for failure in found.failed] == [job.id for job in failures]
        for failure, failed_job in zip(found.failed, failures, strict=True):
            self._check_failure(Answer(failure), failed_job)
