"""Several queues in one worker: which it serves, how many of their jobs run at once, and which goes first."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from django_jobqueue import job, services
from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.models import Job, Queue
from django_jobqueue.states import JobState
from django_jobqueue.worker import work
from django_jobqueue.worker.local import LocalWorker
from django_jobqueue.worker.options import WorkerOptions
from django_jobqueue.worker.turns import WeightedTurns
from tests.past import reread
from tests.waiting import PATIENCE, until

from .conftest import ends, sent

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def plain_worker(**options: object) -> Iterator[None]:
    """As ``runjobs`` without ``--queue``."""
    with LocalWorker(WorkerOptions.build(schedules=False, **options), None, {"POLL_SECONDS": 0.05}).start():
        yield


def test_every_declared_queue_is_served_but_not_the_dead_letter_queues(queue, settings):  # B42
    settings.JOBQUEUE = {"QUEUES": {"mails": {"dead_letter": "dead"}, "dead": {}, "out": {}}}
    services.create_queue("dead")
    services.create_queue("mails", dead_letter="dead")
    services.create_queue("out")
    services.create_queue("loose")
    handler = job(queue=queue.name, name="here")(lambda: None)
    job(queue="dead", name="there")(lambda: None)
    jobs = {name: handler.using(queue=name).send() for name in ("dead", "loose", "mails", "out", queue.name)}
    with plain_worker(exclude=("out",)):
        ends(jobs["mails"]), ends(jobs[queue.name])
        ends(handler.using(queue="mails").send())

    states = {name: reread(one).state for name, one in jobs.items()}
    assert states.pop("mails") == states.pop(queue.name) == JobState.COMPLETED
    assert states == dict.fromkeys(("dead", "loose", "out"), JobState.CREATED)
    with plain_worker(queues=("dead",)):
        ends(jobs["dead"])


class Crowd:
    """How many handlers of each queue run, and the most that ran at once."""

    def __init__(self) -> None:
        self.lock, self.opened = threading.Lock(), threading.Event()
        self.running, self.most = Counter[str](), Counter[str]()

    def enter(self, name: str) -> None:
        with self.lock:
            self.running[name] += 1
            self.most[name] = max(self.most[name], self.running[name])

    def leave(self, name: str) -> None:
        with self.lock:
            self.running[name] -= 1

    def plain(self, name: str, wait: bool = True) -> None:
        self.enter(name)
        assert not wait or self.opened.wait(PATIENCE)
        self.leave(name)

    async def asynchronous(self, name: str) -> None:
        self.enter(name)
        while not self.opened.is_set():
            await asyncio.sleep(0.01)
        self.leave(name)


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    made = Crowd()
    yield made
    made.opened.set()


@pytest.mark.parametrize("kind", ("standard", "ordered", "asynchronous"))
def test_a_queue_with_a_number_runs_that_many_and_blocks_no_other(queue, run, crowd, kind):
    policy = "key_strict_fifo" if kind == "ordered" else "standard"
    mails = services.create_queue("mails", policy=policy)
    is_async = kind == "asynchronous"

    @job(queue="mails", name="mail")
    def mail() -> None:
        crowd.plain("mails")

    @job(queue="mails", name="async-mail")
    async def async_mail() -> None:
        await crowd.asynchronous("mails")

    @job(queue=queue.name, name="other")
    def other() -> None:
        crowd.plain("other", wait=False)

    for number in range(12):
        options = {"singleton_key": str(number % 4)} if kind == "ordered" else {}
        sent(mails, name="async-mail" if is_async else "mail", **options)
    run({"mails": 3, queue.name: None}, concurrency=4)
    until(lambda: crowd.running["mails"] == 3, "as many run as there may be")

    for _ in range(20):  # one thread is left for them
        ends(sent(queue, name="other"))
    assert crowd.running["mails"] == 3
    assert Job.objects.in_queue("mails").running().count() == 3, "none is claimed before it can begin"
    crowd.opened.set()
    until(lambda: not Job.objects.in_queue("mails").eligible().exists(), "all have run")
    assert (crowd.most["mails"], crowd.most["other"]) == (3, 1)


def test_a_queue_without_a_number_takes_no_thread_of_one_that_has(queue, run, crowd):
    mails = services.create_queue("mails")
    job(queue=queue.name, name="slow")(lambda: crowd.plain("slow"))
    job(queue="mails", name="mail")(lambda: None)
    for _ in range(20):
        sent(queue, name="slow")
    run({"mails": 1, queue.name: None}, concurrency=3)
    until(lambda: crowd.running["slow"] == 2, "they fill their threads")

    for _ in range(5):
        ends(sent(mails, name="mail"))

    assert crowd.most["slow"] == 2


def ran_in_order(queues: dict[str, int | None], order: str, counts: dict[str, int]) -> str:
    """The first letters of the queues, in the order in which their jobs ran in a single thread."""
    ran: list[str] = []
    for name, count in counts.items():
        services.create_queue(name)
        job(queue=name, name=name)(lambda name=name: ran.append(name[0]))
        for _ in range(count):
            sent(name, name=name, data={})
    with work(queues, concurrency=1, queue_order=order, poll_seconds=0.05):
        until(lambda: len(ran) == sum(counts.values()), "all have run")
    return "".join(ran)


def test_in_strict_order_a_later_queue_waits_for_the_earlier_ones(db):
    ran = ran_in_order({"urgent": None, "bulk": None}, "strict", {"bulk": 30, "urgent": 30})

    assert ran == "u" * 30 + "b" * 30


def test_with_weights_each_queue_gets_its_share(db):
    ran = ran_in_order({"bulk": 1, "urgent": 3}, "weighted", {"bulk": 30, "urgent": 30})

    assert 5 * 3 <= ran[:24].count("u") <= 20, ran
    assert ran[-10:] == "b" * 10, "the share of an empty queue is not lost"


def test_a_queue_that_had_no_jobs_saves_up_no_turns():
    turns = WeightedTurns({"a": 2})
    turns.serve(["a", "b"])
    for _ in range(50):
        turns.count("b", 1)

    got = []
    for _ in range(30):
        name = turns.in_turn()[0]
        got.append(name)
        turns.count(name, 1)

    assert 20 <= got.count("a") <= 22


def test_in_strict_order_a_lane_ends_its_turn_for_an_earlier_queue(queue, run):
    lanes = services.create_queue("lanes", policy="key_strict_fifo")
    ran: list[str] = []

    def lane() -> None:
        ran.append("lane")
        if len(ran) == 3:
            sent(queue, name="first")

    job(queue=queue.name, name="first")(lambda: ran.append("first"))
    job(queue="lanes", name="lane")(lane)
    jobs = [sent(lanes, name="lane", singleton_key="k") for _ in range(40)]
    run([queue.name, "lanes"], concurrency=1, queue_order="strict")

    ends(jobs[-1])
    assert ran.index("first") < 20, "not after all jobs of the lane"


@pytest.mark.parametrize(
    ("queues", "options", "told"),
    (
        ({"work": 0}, {}, "from 1 to 1,000, got 0"),
        ({"work": True}, {}, "work"),
        (["work"], {"queue_order": "random"}, "fair, strict, weighted"),
        ({"work": 4, "more": None}, {"concurrency": 4}, "4 is too few"),
    ),
)
def test_what_makes_no_sense_is_refused(queue: Queue, queues, options, told):
    services.create_queue("more")

    with pytest.raises(InvalidOption, match=told):
        work(queues, **options)


@pytest.mark.parametrize(
    ("own", "queues", "concurrency", "threads"),
    (
        ({}, (), None, (8, 0)),
        ({}, ("a",), 3, (3, 0)),
        ({"a": 4, "b": 1}, ("a", "b"), None, (0, 5)),
        ({"a": 4, "b": 1}, ("a", "b"), 2, (0, 2)),
        ({"a": 4, "b": 1}, ("a", "b"), 9, (0, 5)),
        ({"a": 4}, ("a", "b"), None, (8, 4)),
        ({"a": 4}, ("a", "b"), 6, (2, 4)),
    ),
)
def test_threads_are_counted_per_child(db, own, queues, concurrency, threads):
    options = WorkerOptions.build(own=own, queues=queues, concurrency=concurrency)

    assert (options.shared_threads, options.own_threads) == threads
    assert not options.problem()
