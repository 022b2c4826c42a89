"""Streams: the contract of the push API, for the plain and the async kind alike."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from django_jobqueue import services
from django_jobqueue.engine.assignments import CANCELLED
from django_jobqueue.engine.notifications import subscribed
from django_jobqueue.exceptions import InvalidOption, InvalidTransition, QueueNotFound, StreamClosed
from django_jobqueue.models import Job, Worker
from django_jobqueue.services.stream import open_streams
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite
from tests.waiting import PATIENCE, until

from .lives import now, sent
from .streams import KINDS, Streams

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=KINDS)
def streams(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Streams]:
    opened = Streams(KINDS[request.param]())
    yield opened
    opened.end()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("jobqueue-stream")], "all have ended")


def active() -> int:
    return Job.objects.in_state(JobState.ACTIVE).count()


# ------------------------------------------------------------------------------------------------------ opening


@pytest.mark.parametrize(
    ("option", "value"),
    (
        ("worker", ""), ("worker", None), ("worker", 3), ("capacity", 0), ("capacity", -1), ("capacity", "2"),
        ("capacity", True), ("tags", "red"), ("tags", [1]), ("poll_interval", 0),
    ),
)  # fmt: skip
def test_bad_parameters_are_refused(queue, streams, option, value):  # R204 R205 R206 R207 R315
    with pytest.raises(InvalidOption, match=option):
        streams(**{"worker": "w", "queue": queue.name, "capacity": 1, option: value})


def test_a_queue_that_does_not_exist_is_refused(streams):  # R204 R313
    with pytest.raises(QueueNotFound):
        streams(queue="nothing", capacity=1)


def test_delivered_jobs_are_active_and_belong_to_the_worker(queue, streams):  # R204 R209 R210 R211 R134
    job = sent(queue, {"n": 1})

    (got,) = streams.get(streams("w1", queue=queue.name, capacity=5))

    row = reread(job)
    assert (got, got.data, got.state, got.assignee) == (job, {"n": 1}, JobState.ACTIVE, "w1")
    assert (row.state, row.assignee, row.assigned_at) == (JobState.ACTIVE, "w1", got.assigned_at)


def test_what_waits_is_delivered_at_once_up_to_the_capacity(queue, streams):  # R135 R218 R220 R225
    jobs = [sent(queue) for _ in range(5)]

    assert streams.get(streams(queue=queue.name, capacity=3)) == jobs[:3]
    assert active() == 3


def test_without_work_a_stream_waits_and_is_woken_by_a_send(queue, streams):  # R145 R149 R208 R224 R235 R190
    stream = streams(queue=queue.name, capacity=1)
    assert streams.nothing(stream)

    job = sent(queue)

    assert streams.get(stream) == [job]


def test_jobs_that_were_reset_before_it_connected_are_found(queue, streams):  # R219 R304
    job = sent(queue)
    services.fetch(queue.name)
    services.reset_running()

    (got,) = streams.get(streams(queue=queue.name, capacity=2))

    assert (got, got.attempt) == (job, 2)


def test_whoever_registers_is_told_to_look_once_more(queue):  # R219
    """What was sent before it could be notified of is found by that look, whether the listener begins or is there."""
    first: list[str] = []
    second: list[str] = []

    with subscribed("default", first.append):
        until(lambda: first, "it is told")
        with subscribed("default", second.append):
            assert second == [""]
    assert first[0] == ""


@override_settings(JOBQUEUE={"NOTIFY": False})
def test_without_notifications_it_polls(queue, streams):  # R224 R235
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.05)

    job = sent(queue)

    assert streams.get(stream) == [job]


def test_a_stream_without_a_queue_takes_from_all(queue, streams):  # R204
    other = QueueFactory(name="other")
    stream = streams(capacity=10)

    jobs = {sent(queue).pk, sent(other).pk}

    assert {job.pk for job in streams.collect(stream, 2)} == jobs


def test_of_all_queues_the_one_with_the_oldest_work_goes_first(queue, streams):  # R213
    other = QueueFactory(name="a queue that comes first by name")
    job = sent(queue)
    sent(other)

    assert streams.get(streams(capacity=1)) == [job]


def test_an_ordered_queue_streams_the_jobs_of_a_key_one_by_one(fifo_queue, streams):  # R001 R223
    jobs = [sent(fifo_queue, singleton_key="k") for _ in range(3)]
    stream = streams(queue=fifo_queue.name, capacity=10)

    for job in jobs:
        (got,) = streams.get(stream)
        assert got == job
        services.complete(got)


# --------------------------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize(
    ("wanted", "tags", "matches"),
    (
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["b", "c", "a"], True),
        (["a", "b"], ["a"], False),
        (["a"], ["A"], False),
        (["a"], [], False),
        ([], ["a"], True),
        ([], [], True),
    ),
)
def test_a_stream_gets_the_jobs_that_carry_all_its_tags(queue, streams, wanted, tags, matches):  # R138 R139 R140 R212
    job = sent(queue, tags=tags)
    stream = streams(queue=queue.name, tags=wanted, capacity=5)

    assert streams.get(stream, PATIENCE if matches else 0.3) == ([job] if matches else [])


def test_each_stream_has_its_own_tags_and_capacity(queue, streams):  # R136 R212 R215
    red = streams(queue=queue.name, tags=["red"], capacity=1)
    blue = streams(queue=queue.name, tags=["blue"], capacity=2)

    jobs = {tag: [sent(queue, tags=[tag]).pk for _ in range(3)] for tag in ("red", "blue")}

    assert [job.pk for job in streams.collect(red, 1)] == jobs["red"][:1]
    assert [job.pk for job in streams.collect(blue, 2)] == jobs["blue"][:2]
    assert streams.nothing(red)
    assert streams.nothing(blue)


# -------------------------------------------------------------------------------------------------------- order


def test_the_oldest_goes_first_by_its_last_retry_or_else_its_creation(queue, streams):  # R213
    first, second = sent(queue, "first"), sent(queue, "second")
    (failed,) = services.fetch(queue.name)
    services.fail(failed, "no")
    third = sent(queue, "third")
    stream = streams(queue=queue.name, capacity=1)

    for job in (second, first, third):
        (got,) = streams.get(stream)
        assert got == job
        services.complete(got)


# ----------------------------------------------------------------------------------------------------- capacity


def test_a_full_stream_gets_nothing_more(queue, streams):  # R215 R221
    for _ in range(5):
        sent(queue)
    stream = streams(queue=queue.name, capacity=2)
    streams.collect(stream, 2)

    assert streams.nothing(stream)
    assert (active(), stream.free) == (2, 0)


def lost(job: Job) -> None:
    services.mark_worker_unresponsive(job.assignee)


def cancelled(job: Job, was_executing: bool = True) -> None:
    services.cancel(job.pk)
    services.acknowledge_cancellation(job, was_executing=was_executing)


def stopped_with_retry(job: Job) -> None:
    services.cancel(job.pk)
    services.stop(job, "no", count_retry=True)


def expired(job: Job) -> None:
    rewrite(job, expire_at=ago(hours=1))
    services.expire()


ENDINGS: dict[str, Callable[[Job], object]] = {
    "completed": services.complete,  # R240
    "failed": lambda job: services.fail(job, "no", for_good=True),  # R252
    "to be retried": lambda job: services.fail(job, "no", retry_after=60),  # R252
    "stopped": services.stop,  # R257
    "stopped with a retry": stopped_with_retry,  # R262
    "unknown": services.mark_unknown_stopped,  # R264
    "cancelled": cancelled,  # R280
    "by a worker": lambda job: services.finish_many([(job, None)]),
    "given back": lambda job: services.give_back(job, "not now", delay=60),
    "expired": expired,
    "purged": lambda job: services.purge(job.queue_id, state="active"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_job_that_ends_frees_its_place(queue, streams, ending):  # R222 R223 R240 R252 R257 R262 R264 R280
    first = sent(queue)
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.2)
    (got,) = streams.get(stream)
    second = sent(queue, priority=1)
    assert (got, streams.nothing(stream)) == (first, True)

    ENDINGS[ending](got)

    assert streams.get(stream) == [second]
    assert (active(), stream.free) == (1, 0)


@pytest.mark.parametrize("lose", (lost, lambda _: services.reset_running()), ids=("unresponsive", "reset"))
def test_jobs_that_are_lost_free_their_places_and_come_again(queue, streams, lose):  # R288 R301 R222
    job = sent(queue)
    stream = streams(queue=queue.name, capacity=1)
    (got,) = streams.get(stream)

    lose(got)

    (again,) = streams.get(stream)
    assert (again, again.attempt) == (job, 2)
    assert stream.free == 0


def test_a_verb_of_this_process_frees_a_place_at_once(queue, streams):  # R223
    for _ in range(3):
        sent(queue)
    stream = streams(queue=queue.name, capacity=1, poll_interval=60)

    for _ in range(3):
        services.complete(streams.get(stream)[0])


def test_a_place_is_freed_when_the_verb_is_committed(queue, streams):  # R223 R314
    sent(queue)
    stream = streams(queue=queue.name, capacity=1)
    (job,) = streams.get(stream)
    sent(queue)

    with transaction.atomic():
        services.complete(job)
        assert streams.nothing(stream)

    assert len(streams.get(stream)) == 1


def test_a_place_is_freed_whoever_ends_the_job(queue, streams):  # R222 R223 R255
    """Written past the verbs, as another process would have: nothing here hears of it."""
    sent(queue)
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.1)
    (job,) = streams.get(stream)
    other = sent(queue)
    assert streams.nothing(stream)

    rewrite(job, state=JobState.COMPLETED, finalized_at=ago(seconds=0))

    assert streams.get(stream) == [other]


def test_cancelling_alone_frees_nothing(queue, streams):  # R278
    sent(queue)
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.1)
    (job,) = streams.get(stream)
    sent(queue)

    services.cancel(job.pk)

    assert streams.nothing(stream)
    services.acknowledge_cancellation(job, was_executing=True)
    assert len(streams.get(stream)) == 1


def test_a_cancellation_that_was_not_executing_frees_nothing(queue, streams):  # R281
    sent(queue)
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.1)
    (job,) = streams.get(stream)
    sent(queue)

    cancelled(job, was_executing=False)

    assert reread(job).state == JobState.UNKNOWN_STOPPED
    assert streams.nothing(stream)
    services.complete(job)  # it did run, as turns out
    assert len(streams.get(stream)) == 1


def test_capacity_never_rises_above_the_maximum(queue, streams):  # R222
    job = sent(queue)
    stream = streams(queue=queue.name, capacity=2)
    streams.get(stream)

    services.complete(job.pk)
    with pytest.raises(InvalidTransition):  # R312
        services.complete(job.pk)

    until(lambda: stream.free == 2, "its place is free")
    for _ in range(5):
        sent(queue)
    assert len(streams.collect(stream, 2)) == active() == 2


# ---------------------------------------------------------------------------------------- consumers that do not read


def test_jobs_are_assigned_to_a_consumer_that_does_not_read(queue, streams):  # R221 R226 R227
    stream = streams(queue=queue.name, capacity=3)
    jobs = [sent(queue) for _ in range(5)]
    until(lambda: stream.free == 0, "they are assigned")

    assert services.fetch(queue.name, 10) == jobs[3:]
    assert streams.get(stream) == jobs[:3]  # R225


def test_a_job_that_was_lost_before_it_was_delivered_is_not_delivered(queue, streams):  # R209 R227
    sent(queue)
    stream = streams(queue=queue.name, capacity=1)
    until(lambda: active() == 1, "it is assigned")
    services.pause(queue.name)

    services.mark_worker_unresponsive("w")

    until(lambda: stream.free == 1, "its place is free")
    assert streams.nothing(stream)


# ---------------------------------------------------------------------------------------------------------- the end


def test_closing_gives_back_what_was_not_delivered(queue, streams):  # R231 R232 B34
    stream = streams(queue=queue.name, capacity=2)
    delivered = sent(queue)
    assert streams.get(stream) == [delivered]
    undelivered = sent(queue)
    until(lambda: active() == 2, "it is assigned")

    streams.close(stream)

    row = reread(undelivered)
    assert (row.state, row.retry_count, row.error) == (JobState.RETRY, 0, CANCELLED)
    assert reread(delivered).state == JobState.ACTIVE
    services.complete(delivered.pk)


def test_after_closing_a_loop_ends_and_get_says_so(queue, streams):  # R216 R228 R311
    stream = streams(queue=queue.name, capacity=1)
    streams.close(stream)

    assert stream.is_closed
    assert streams.kind.following(stream) is None
    with pytest.raises(StreamClosed, match="'w' was closed"):
        streams.get(stream)


def test_closing_twice_is_harmless(queue, streams):  # R217
    stream = streams(queue=queue.name, capacity=1)
    streams.close(stream)
    streams.close(stream)


def test_closing_ends_a_consumer_that_waits(queue, streams):  # R208 R228 R311
    stream = streams(queue=queue.name, capacity=1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(streams.kind.following, stream)
        assert not waiting.done()
        streams.close(stream)
        assert waiting.result(PATIENCE) is None


def test_close_ends_all_streams_of_the_process(queue, streams):  # R229 R308
    opened = [streams(f"w{n}", queue=queue.name, capacity=1) for n in range(3)]
    jobs = [sent(queue) for _ in opened]
    until(lambda: active() == 3, "they are assigned")

    services.close()

    assert all(stream.is_closed for stream in opened)
    assert [streams.kind.following(stream) for stream in opened] == [None] * 3
    assert {reread(job).state for job in jobs} == {JobState.RETRY}


def test_after_close_another_stream_can_be_opened(queue, streams):  # R310
    streams(queue=queue.name, capacity=1)
    services.close()
    job = sent(queue)

    assert streams.get(streams(queue=queue.name, capacity=1)) == [job]


def test_closing_leaves_no_connection_behind(queue, streams):  # R309
    def others() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
            return int(cursor.fetchone()[0])

    stream = streams(queue=queue.name, capacity=1)
    until(lambda: others() >= 2, "it is connected")

    streams.close(stream)

    until(lambda: others() <= 1, "it is gone")  # the async verbs' own connection may stay


@pytest.fixture
def refusing(transactional_db: None) -> Iterator[None]:
    """A database that takes no job back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'nothing is taken back'; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON jobqueue_job_default FOR EACH ROW "
            "WHEN (NEW.state = 'retry') EXECUTE FUNCTION refuse()"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION refuse CASCADE")


def test_closing_reports_what_kept_it_from_giving_back(queue, refusing, streams):  # R309 R314
    stream = streams(queue=queue.name, capacity=1)
    sent(queue)
    until(lambda: active() == 1, "it is assigned")

    with pytest.raises(ExceptionGroup) as raised:
        services.close()
    assert "nothing is taken back" in str(raised.value.exceptions[0])
    with pytest.raises(Exception, match="nothing is taken back"):
        streams.close(stream)


def test_an_error_ends_the_stream_with_that_error(queue, streams):  # R216 R230 R314
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.1)
    assert streams.nothing(stream)

    services.delete_queue(queue.name)

    with pytest.raises(QueueNotFound):
        streams.get(stream)
    assert stream.is_closed
    with pytest.raises(QueueNotFound):
        streams.kind.following(stream)


def test_when_the_database_cuts_it_off_the_undelivered_go_back(queue, streams):  # R230 R231 R314
    stream = streams(queue=queue.name, capacity=1, poll_interval=0.1)
    job = sent(queue)
    until(lambda: active() == 1, "it is assigned")

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )

    until(lambda: stream.is_closed, "it has ended")
    with pytest.raises(OperationalError):
        streams.get(stream)
    until(lambda: reread(job).state == JobState.RETRY, "it returned to the queue")
    assert reread(job).retry_count == 0


def test_a_stream_that_is_dropped_ends_by_itself(queue):  # R231
    stream = services.stream("w", queue=queue.name, capacity=1)
    job = sent(queue)
    until(lambda: active() == 1, "it is assigned")

    del stream
    gc.collect()

    until(lambda: reread(job).state == JobState.RETRY, "it returned to the queue")


def test_a_with_closes_it(queue):  # R216 R308
    with services.stream("w", queue=queue.name, capacity=1) as stream:
        job = sent(queue)
        for batch in stream:
            assert batch == [job]
            break

    assert stream.is_closed


@pytest.mark.parametrize("streams", ("async",), indirect=True)
def test_a_task_that_is_cancelled_gets_its_error_and_loses_nothing(queue, streams):  # R228 R231 R311
    async def consume() -> None:
        async with await services.astream("w", queue=queue.name, capacity=1) as stream:
            async for batch in stream:
                batches.append(batch)
                await asyncio.sleep(3600)

    batches: list[list[Job]] = []
    task = asyncio.run_coroutine_threadsafe(consume(), streams.kind.loop)
    first = sent(queue)
    until(lambda: batches, "a batch came")
    services.complete(first.pk)
    second = sent(queue)
    until(lambda: active() == 1, "another is assigned")

    task.cancel()

    until(lambda: reread(second).state == JobState.RETRY, "it returned to the queue")


# ------------------------------------------------------------------------------------------------- notifications


def test_a_batch_wakes_each_stream_once_whatever_its_tags(queue):  # R146 R148 R198
    calls: list[str] = []
    ready, done = threading.Event(), threading.Event()

    def woken(name: str) -> None:
        calls.append(name)
        (done if name == "done" else ready).set()

    QueueFactory(name="done")
    with subscribed("default", woken):
        assert ready.wait(PATIENCE)
        items: list[services.Item] = [{"tags": tags} for tags in (["a"], ["b"], ["a", "b"], ["a"], [])]
        services.send_many(queue.name, items)
        services.send("done")
        assert done.wait(PATIENCE)

    assert [name for name in calls if name] == [queue.name, "done"]


def test_all_streams_with_room_for_one_of_the_jobs_are_served(queue, streams):  # R146 R149 R214
    one = streams("one", queue=queue.name, tags=["a"], capacity=2)
    other = streams("other", queue=queue.name, tags=["b"], capacity=2)
    assert streams.nothing(one)
    assert streams.nothing(other)

    services.send_many(queue.name, [{"tags": [tag]} for tag in ("a", "b", "a", "b")])

    assert {tuple(job.tags) for job in streams.collect(one, 2)} == {("a",)}
    assert {tuple(job.tags) for job in streams.collect(other, 2)} == {("b",)}


def test_a_send_does_not_wait_for_consumers(queue, streams):  # R147
    streams(queue=queue.name, capacity=1)

    for _ in range(200):
        sent(queue)

    until(lambda: active() == 1, "one is assigned")
    assert Job.objects.eligible().count() == 199


# -------------------------------------------------------------------------------------------------- signs of life


def test_a_stream_is_a_worker_while_it_is_open(queue, streams):
    stream = streams("w7", queue=queue.name, tags=["a"], capacity=3)
    until(lambda: Worker.objects.filter(name="w7").exists(), "it has a row")

    row = Worker.objects.get(name="w7")
    assert (row.queues, row.tags, row.capacity, row.stopped_at) == ([queue.name], ["a"], 3, None)
    streams.close(stream)
    assert not Worker.objects.filter(name="w7").exists()


@override_settings(JOBQUEUE={"WORKER_HEARTBEAT_SECONDS": 0.05})
def test_a_stream_can_be_asked_to_stop(queue, streams):  # R389
    stream = streams("w7", queue=queue.name, capacity=3)
    until(lambda: Worker.objects.filter(name="w7").exists(), "it has a row")

    services.stop_worker("w7")

    until(lambda: stream.is_closed, "it has ended")
    assert streams.kind.following(stream) is None


@override_settings(JOBQUEUE={"WORKER_HEARTBEAT_SECONDS": 0.05})
def test_a_stream_that_was_given_up_goes_on_with_a_new_row(queue, streams):  # R222
    job = sent(queue)
    stream = streams("w7", queue=queue.name, capacity=1, poll_interval=0.1)
    (got,) = streams.get(stream)
    row = Worker.objects.get(name="w7")

    Worker.objects.filter(name="w7").update(stopped_at=ago(seconds=1))
    services.recover_lost()

    (again,) = streams.get(stream)
    assert (again, again.attempt) == (job, got.attempt + 1)
    until(lambda: Worker.objects.filter(name="w7", stopped_at=None).exclude(pk=row.pk).exists(), "it has a new row")


def test_the_jobs_of_a_stream_whose_process_died_are_recovered(queue):  # R222
    job = JobFactory(queue=queue, state=JobState.ACTIVE, assignee="w9")
    row = Worker.objects.create(name="w9", heartbeat_at=ago(hours=1))
    rewrite(job, incarnation=row.pk)

    assert services.recover_lost() == {queue.name: 1}
    assert now(job).state == JobState.UNKNOWN_RETRY


def test_what_was_delivered_to_a_process_that_ends_is_recovered(queue):  # R222 R231
    stream = services.stream("w", queue=queue.name, capacity=2, poll_interval=60)
    delivered = sent(queue)
    assert stream.get(PATIENCE) == [delivered]
    undelivered = sent(queue)
    until(lambda: active() == 2, "it is assigned")

    open_streams.exit()  # what Python does then

    assert now(undelivered).state == JobState.RETRY
    assert services.recover_lost() == {queue.name: 1}
    assert now(delivered).state == JobState.UNKNOWN_RETRY


def test_observed_states_agree(queue, streams):  # R316
    job = sent(queue, tags=["a"])
    stream = streams(queue=queue.name, capacity=1)
    (got,) = streams.get(stream)
    assert services.stats(tags=["a"]).running == 1

    services.complete(got)

    assert (services.get_job(job.pk).state, services.stats(tags=["a"]).completed) == (JobState.COMPLETED, 1)
