"""The two sides of the machine, how they are asked, and what is compared after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from django_jobqueue import models, services
from django_jobqueue.exceptions import JobQueueError

from .database import (
    SECONDS,
    InOneTransaction,
    InOwnTransactions,
    committed,
    differences,
    job_options,
    lawful,
    options_of,
    snapshot,
)
from .reference import BLOCKING, DEAD, ORDERED, RETRYING, RUNNING, Options, Queue, Refused, Worker
from .verbs import Model, Sending

T = TypeVar("T")
GIVEN_IDS = [UUID(int=number) for number in (7, 5)]  # which will be given again
FRESH = UUID(int=9)  # stands for an id lower than all before it, so that ids and sends have opposite orders
QUEUES = ("ordered", "other", "dead")
WORKERS = ("w1", "w2")

queue_names = st.sampled_from(["ordered", "other", "ordered", "other", "dead"])
tag_sets = st.sampled_from([frozenset(), frozenset("x"), frozenset("xy"), frozenset("y")])
asked_tags = st.sampled_from([frozenset(), frozenset(), frozenset(), frozenset("x"), frozenset("y")])
numbers = st.integers(0, 7)
few_numbers = st.lists(numbers, min_size=1, max_size=4)
options = st.fixed_dictionaries(
    {},
    optional={
        "retry_limit": st.sampled_from([0, 1, None, 2]),
        "retry_delay": st.sampled_from([0, 1, 2]),
        "expire_in": st.sampled_from([1, 3]),
        "heartbeat": st.sampled_from([None, 1, 2]),
        "retention": st.sampled_from([2, 12]),
        "delete_after": st.sampled_from([0, 1, 4]),
        "delete_failed_after": st.sampled_from([0, 1, 6]),
    },
)
sendings = st.builds(
    Sending,
    id=st.sampled_from([None, None, FRESH, FRESH, FRESH, *GIVEN_IDS]),
    key=st.sampled_from(["a", "b", "a", "b", "a", "c", "a", "b", ""]),
    priority=st.sampled_from([0, 0, 5, -1]),
    delay=st.sampled_from([0, 0, 0, 1, 3]),
    tags=tag_sets,
    data=st.integers(0, 3),
    options=st.one_of(st.just({}), options),
)


def sent_as(item: Sending) -> Any:
    """The names and seconds of ``send()``."""
    return {
        "id": item.id,
        "data": item.data,
        "singleton_key": item.key,
        "priority": item.priority,
        "delay": item.delay * SECONDS,
        "tags": sorted(item.tags),
        **job_options(item.options),
    }


@dataclass(frozen=True)
class Step:
    """Something that a sequence may contain: how often, with which arguments, and when it makes sense."""

    weight: int
    when: Callable[[Any], Any]
    arguments: st.SearchStrategy[dict[str, Any]]


STEPS: dict[str, Step] = {}
Verb = TypeVar("Verb", bound=Callable[..., None])


def step(weight: int = 1, *, when: Callable[[Any], Any] = bool, **arguments: Any) -> Callable[[Verb], Verb]:
    """Mark a method as a step. All steps are one rule, because Hypothesis would leave out half of many rules."""

    def mark(verb: Verb) -> Verb:
        STEPS[verb.__name__] = Step(weight, when, st.fixed_dictionaries(arguments))
        return verb

    return mark


def steps() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    names = [name for name, found in STEPS.items() for _ in range(found.weight)]
    return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), STEPS[name].arguments))


@dataclass(frozen=True)
class Answer:
    """What a verb returned, or the error it raised."""

    value: Any = None
    error: str | None = None


class Sides(RuleBasedStateMachine):
    """The two sides, and how they are compared."""

    def __init__(self, policy: str, inside: type[InOneTransaction] | type[InOwnTransactions]) -> None:
        super().__init__()
        self.policy = policy  # of the queue beside the ordered one
        self.place = inside()
        self.model = Model()
        self.lowest_id = 10**6
        self.claims: list[models.Job] = []  # every job that was ever fetched, as it was fetched

    def teardown(self) -> None:
        self.place.close()

    @initialize(
        heads=st.sampled_from(["pass", "block"]),
        skips=st.sampled_from(["block", "block", "skip"]),
        dead=st.sampled_from(["standard", ORDERED]),
        letters=st.tuples(st.booleans(), st.booleans()),
        defaults=options,
        items=st.lists(st.tuples(queue_names, sendings), min_size=3, max_size=8),
    )
    def some_jobs(self, heads, skips, dead, letters, defaults, items) -> None:
        both = Options(**defaults)
        for queue in (
            Queue("dead", dead),
            Queue("ordered", ORDERED, both, heads, skips, "dead" if letters[0] else None),
            Queue("other", self.policy, both, heads, skips, "dead" if letters[1] else None),
        ):
            services.create_queue(queue.name, **options_of(queue))
            self.model.queues[queue.name] = queue
        for name, item in items:
            self.send(name, item, "ignore")

    # --------------------------------------------------------------------------------------------- asking both

    def ask(self, verb: Callable[[], Any]) -> Answer:
        self.model.moment += 1
        try:
            with committed():
                return Answer(verb())
        except JobQueueError as error:
            return Answer(error=type(error).__name__)

    def agree(self, answer: Answer, expected: Callable[[], T]) -> T | None:
        """What the reference answers; nothing, when both refuse."""
        value: T | None = None
        errors: list[str | None] = [None]
        try:
            value = expected()
        except Refused as refused:
            errors = [*refused.errors]
        assert answer.error in errors
        return value

    def fitting(self, queue: str, item: Sending) -> Sending:
        """With a fresh id, if it asks for one; where a key is no lane, more often without, or three fill a queue."""
        if item.id == FRESH or item.id in self.model.gone:  # an old claim on the same id would mean the new job
            self.lowest_id -= 1
            item = replace(item, id=UUID(int=self.lowest_id))
        without = {ORDERED: "", "standard": "bc"}.get(self.model.queues[queue].policy, "c")
        return replace(item, key="") if item.key in without else item

    def send(self, queue: str, item: Sending, on_duplicate: str | None) -> None:
        item = self.fitting(queue, item)
        answer = self.ask(lambda: services.send(queue, on_duplicate=on_duplicate, **sent_as(item)))  # type: ignore[arg-type]

        duplicate = item.id in self.model.jobs
        room = self.agree(answer, lambda: self.model.check_send(queue, item, refuse=on_duplicate is None))
        if room:
            self.model.store(queue, answer.value.pk, item)
            assert item.id in (None, answer.value.pk)
        elif answer.error is None and on_duplicate == "return":
            others = [item.id] if duplicate else [job.id for job in self.model.in_the_way(queue, item)]
            assert answer.value.pk in others
        else:
            assert answer.value is None

    def agreed(self, answer: Answer, expected: Callable[[], Any]) -> None:
        value = self.agree(answer, expected)
        if answer.error is None:
            assert answer.value == value

    # ---------------------------------------------------------------------------------------------- choosing

    def ids(self, wanted: Iterable[int], states: Iterable[str] = ()) -> list[UUID]:
        """Some of the jobs: most likely in these states, sometimes any, sometimes one that is not there."""
        liked = [job.id for job in self.model.some(lambda job: job.state in states)]
        everything = [*reversed(liked), *sorted(self.model.jobs), *self.model.gone[-2:]]
        return list(dict.fromkeys(everything[number % len(everything)] for number in wanted))  # type: ignore[misc]

    def in_state(self, *states: str) -> bool:
        return any(job.state in states for job in self.model.jobs.values())

    def queue(self, number: int) -> str:
        """A queue, most likely one with a fetchable job."""
        busy = [name for name in QUEUES if self.model.turns(name)[0]]
        every = busy * 3 + list(QUEUES)
        return every[number % len(every)]

    def holding(self) -> list[models.Job]:
        """The claims that stand."""
        held = []
        for claim in self.claims:
            job = self.model.jobs.get(claim.pk)
            if job is not None and job.state in RUNNING and job.attempt == claim.attempt:
                held.append(claim)
        return held

    def outdated(self) -> list[models.Job]:
        """The claims on jobs that were claimed again since, most dangerous first: while the new claim is held."""
        jobs = self.model.jobs
        lost = [claim for claim in self.claims if claim.pk in jobs and jobs[claim.pk].attempt != claim.attempt]
        return sorted(lost, key=lambda claim: jobs[claim.pk].state not in RUNNING)

    def pick_claims(self, wanted: Iterable[int]) -> list[models.Job]:
        """Claims that stand first, then those that were lost."""
        held = self.holding()
        known = {(claim.pk, claim.attempt) for claim in held}  # jobs are equal whatever their attempt
        every = held + [claim for claim in reversed(self.claims) if (claim.pk, claim.attempt) not in known]
        chosen = {number % len(every): every[number % len(every)] for number in wanted} if every else {}
        return list(chosen.values())

    def incarnation(self, name: str) -> UUID:
        """The worker's row; a worker that was declared dead has started anew."""
        for id, worker in self.model.workers.items():
            if worker.name == name and not worker.stopped:
                return id
        row = models.Worker.objects.create(name=name)
        self.model.workers[row.pk] = Worker(name, self.model.now)
        return row.pk

    # ------------------------------------------------------------------------------------- after every step

    @invariant()
    def both_agree(self) -> None:
        self.rows_are_as_the_reference_says()
        self.one_job_blocks_a_key()
        self.nobody_waits_for_nobody()
        (self.statistics_add_up, self.blocked_keys_are_those_of_dead_jobs)[self.model.moment % 2]()

    def rows_are_as_the_reference_says(self) -> None:  # I4 I5 I6 I7
        rows, now = snapshot()
        fresh = sorted((row for id, row in rows.items() if id not in self.model.jobs), key=lambda row: row["seq"])
        self.model.adopt([(row["id"], row["source_id"]) for row in fresh])
        assert set(rows) == set(self.model.jobs)
        in_order = self.model.some(lambda _: True)
        assert [job.id for job in in_order] == sorted(rows, key=lambda id: rows[id]["seq"])
        wrong = {id: differences(self.model, job, rows[id], now) for id, job in self.model.jobs.items()}
        assert not any(wrong.values()), {id: what for id, what in wrong.items() if what}
        assert all(map(lawful, rows.values()))

    def one_job_blocks_a_key(self) -> None:  # I1
        blocking = self.model.some(lambda job: job.policy == ORDERED and job.state in BLOCKING)
        assert len({(job.queue, job.key) for job in blocking}) == len(blocking)

    def nobody_waits_for_nobody(self) -> None:
        assert services.check_lanes() == []

    def statistics_add_up(self) -> None:  # I8
        found = services.stats()
        expected = Counter(job.state for job in self.model.jobs.values())
        assert {state.value: number for state, number in found.by_state.items() if number} == expected
        parts = found.pending + found.running + found.failed + found.completed + found.stopped + found.cancelling
        assert parts == found.total == len(self.model.jobs)
        assert found.failed == sum(expected[state] for state in RETRYING)
        assert found.retries == sum(job.retry_count for job in self.model.jobs.values())

    def blocked_keys_are_those_of_dead_jobs(self) -> None:
        queue = self.model.queues[QUEUES[self.model.moment // 2 % len(QUEUES)]]
        if queue.policy == ORDERED:
            dead = self.model.some(lambda job: job.queue == queue.name and job.state in DEAD)
            longest = sorted(dead, key=lambda job: (job.ended, job.seq))
            assert services.blocked_keys(queue.name) == [job.key for job in longest]
