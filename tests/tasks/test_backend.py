"""What Django's documentation promises of a backend of tasks, and what ours adds."""

from __future__ import annotations

import asyncio
import pickle
from datetime import timedelta
from typing import Any

import django
import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import override_settings
from django.utils import timezone

import django_jobqueue.tasks
from django_jobqueue import handlers, services
from django_jobqueue.exceptions import DuplicateJob, InvalidData, KeyRequired
from django_jobqueue.models import Job, Queue
from django_jobqueue.services.queues import sync_declared
from django_jobqueue.states import FINAL, JobState
from django_jobqueue.tasks import (
    JobQueueBackend,
    JobQueueTask,
    Task,
    TaskResult,
    TaskResultStatus,
    task,
    task_backends,
)
from django_jobqueue.tasks.api import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch, task_enqueued
from tests.factories import JobFactory
from tests.past import reread

from .app import tasks as app

pytestmark = pytest.mark.django_db
BACKEND = "django_jobqueue.tasks.JobQueueBackend"
TAKES_OPTIONS = django.VERSION < (6, 0) or django.VERSION >= (6, 1)


@pytest.fixture(autouse=True)
def default() -> Queue:
    return services.create_queue("default", retry_limit=0)


def backend() -> JobQueueBackend:
    made = task_backends["default"]
    assert isinstance(made, JobQueueBackend)
    return made


def job_of(result: TaskResult[Any]) -> Job:
    return Job.objects.get(pk=result.id)


# ----------------------------------------------------------------------------------------------------------- what it is


def test_it_supports_everything():
    assert backend().supports_defer
    assert backend().supports_async_task
    assert backend().supports_get_result
    assert backend().supports_priority


def test_the_names_are_those_of_the_api_that_is_there():
    where = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"

    assert task.__module__.split(".base")[0] == where
    assert issubclass(JobQueueTask, Task)
    with pytest.raises(AttributeError, match="no attribute 'tusk'"):
        django_jobqueue.tasks.tusk  # noqa: B018


def test_without_any_api_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(django_jobqueue.tasks, "is_available", lambda: False)

    with pytest.raises(ImproperlyConfigured, match=r"django-jobqueue\[tasks\]"):
        django_jobqueue.tasks.__getattr__("task")
    assert django_jobqueue.tasks.find("tests.tasks.app.tasks.add") is None


def test_without_the_app_it_says_what_to_add():
    with (
        override_settings(INSTALLED_APPS=["django.contrib.contenttypes"]),
        pytest.raises(ImproperlyConfigured, match="INSTALLED_APPS"),
    ):
        django_jobqueue.tasks.__getattr__("JobQueueBackend")


# -------------------------------------------------------------------------------------------------------------- sending


def test_a_task_is_a_job():
    result = app.add.enqueue(1, b=2)

    job = job_of(result)
    assert (job.queue_id, job.name, job.state) == ("default", "tests.tasks.app.tasks.add", JobState.CREATED)
    assert job.data == {"args": [1], "kwargs": {"b": 2}}
    assert (result.id, result.status, result.backend) == (str(job.pk), TaskResultStatus.READY, "default")
    assert (result.args, result.kwargs, result.task) == ([1], {"b": 2}, app.add)
    assert result.enqueued_at == job.created_at
    assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
    assert (result.attempts, result.errors, result.worker_ids, result.is_finished) == (0, [], [], False)
    with pytest.raises(ValueError, match="not finished"):
        result.return_value  # noqa: B018


def test_a_task_rolled_back_was_never_sent():
    with transaction.atomic():
        app.add.enqueue(1)
        transaction.set_rollback(True)

    assert not Job.objects.exists()


def test_priority_and_run_after_are_those_of_the_job():
    soon = timezone.now() + timedelta(hours=1)

    result = app.important.using(run_after=soon, priority=-100).enqueue()

    job = job_of(result)
    assert (app.important.priority, job.priority) == (7, -100)
    assert (job.start_after, job.hold) == (soon, "until")
    fetched = backend().get_result(result.id)
    assert fetched.task == result.task == app.important.using(run_after=soon, priority=-100)


def test_higher_priorities_go_first():
    low, high = app.add.using(priority=-5).enqueue(1), app.add.using(priority=5).enqueue(2)

    assert [str(job.pk) for job in services.fetch("default", 2)] == [high.id, low.id]


@pytest.mark.parametrize("priority", (-101, 101, 1.5))
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(InvalidTask, match="-100 and 100"):
        app.add.using(priority=priority)


def test_a_naive_run_after_is_refused_where_time_zones_are_used():
    with pytest.raises(InvalidTask, match="aware"):
        app.add.using(run_after=timezone.now().replace(tzinfo=None))


def test_a_naive_run_after_is_local_time_where_they_are_not():
    with override_settings(USE_TZ=False):
        soon = timezone.now().replace(microsecond=0) + timedelta(hours=1)
        result = app.add.using(run_after=soon).enqueue(1)
    assert job_of(result).start_after == timezone.make_aware(soon)


def test_a_function_inside_another_is_no_task():
    def inner() -> None: ...

    with pytest.raises(InvalidTask, match="module level"):
        task(inner)


def takes_nothing() -> None: ...


def test_a_context_must_be_taken_as_the_first_argument():
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(takes_nothing)


def test_a_queue_must_be_one_of_the_backend_s():
    with (
        override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}),
        pytest.raises(InvalidTask, match="Queue 'other'"),
    ):
        app.add.using(queue_name="other")


@pytest.mark.parametrize("argument", (object(), {1, 2}, timezone.now()))
def test_arguments_must_be_json(argument):
    with pytest.raises(TypeError, match="Unsupported type"):
        app.add.enqueue(argument)
    assert not Job.objects.exists()


def test_what_json_cannot_hold_is_named():
    with pytest.raises(InvalidData, match="args"):
        app.add.enqueue(float("nan"))


def test_arguments_are_normalized():
    result = app.looks.enqueue((1, 2), key=b"text")

    assert (result.args, result.kwargs) == ([[1, 2]], {"key": "text"})
    assert job_of(result).data == {"args": [[1, 2]], "kwargs": {"key": "text"}}


@pytest.mark.django_db(transaction=True)
def test_async_code_can_send_and_ask():
    async def send() -> tuple[TaskResult[Any], TaskResult[Any]]:
        sent = await app.slowly.aenqueue("a")
        await sent.arefresh()
        await app.slowly.aenqueue_many([{"text": "b"}])
        got = await app.slowly.aget_result(sent.id)
        await sync_to_async(connections.close_all)()  # those of the thread in which all of this ran
        return sent, got

    sent, got = asyncio.run(send())
    assert sent.id == got.id
    assert Job.objects.count() == 2


def test_a_task_can_be_pickled():
    if django.VERSION >= (6, 1):  # before, Django's tasks could not
        changed = app.add.using(singleton_key="a", retry_limit=None)
        assert pickle.loads(pickle.dumps(changed)) == changed
    assert hash(app.add.using(tags=["a", "b"])) == hash(app.add.using(tags=("a", "b")))


def test_many_can_be_sent_at_once(django_assert_max_num_queries):
    heard = []
    task_enqueued.connect(lambda task_result, **_: heard.append(task_result.id), weak=False, dispatch_uid="many")
    try:
        with django_assert_max_num_queries(6):
            results = app.add.enqueue_many([{"a": 1}, [2, 3], *({"a": n} for n in range(100))])
    finally:
        task_enqueued.disconnect(dispatch_uid="many")

    assert [(result.args, result.kwargs) for result in results[:2]] == [([], {"a": 1}), ([2, 3], {})]
    assert heard == [result.id for result in results]
    assert [str(id) for id in Job.objects.order_by("seq").values_list("pk", flat=True)] == heard
    with pytest.raises(Exception, match="calls: expected dicts"):
        app.add.enqueue_many(["a"])


# -------------------------------------------------------------------------------------------------- options of our own


def test_using_takes_the_options_of_a_job():
    changed = app.add.using(singleton_key="a", group_key="g", tags=["x"], retry_limit=9, retry_delay=3, priority=2)

    job = job_of(changed.enqueue(1))
    assert (job.singleton_key, job.group_key, job.tags, job.priority) == ("a", "g", ["x"], 2)
    assert (job.retry_limit, job.retry_delay) == (9, 3)
    assert job_of(changed.using(retry_limit=None, singleton_key="b").enqueue(1)).retry_limit is None
    assert job_of(app.add.enqueue(1)).retry_limit == 0  # of the queue


def paid(order_id: int, **_: Any) -> None: ...


def delivered(order_id: int, step: str = "pack") -> None: ...


def test_a_key_function_gets_the_bound_arguments_with_defaults():
    made = task(queue_name="default")(delivered)
    keyed = made.using(singleton_key=lambda order_id, step: f"{step} {order_id}", group_key=lambda step: step)

    results = [keyed.enqueue(7), keyed.enqueue(order_id=8), *keyed.enqueue_many([[9, "ship"], {"order_id": 10}])]

    assert [(job_of(one).singleton_key, job_of(one).group_key) for one in results] == [
        ("pack 7", "pack"), ("pack 8", "pack"), ("ship 9", "ship"), ("pack 10", "pack"),
    ]  # fmt: skip
    with pytest.raises(TypeError, match="order_id"):
        keyed.enqueue(step="ship")
    with pytest.raises(InvalidTask, match="the function takes order, which is no argument of the handler"):
        made.using(singleton_key=lambda order: order)
    del handlers.registry.by_name[made.module_path]


def test_the_decorator_takes_them_where_django_lets_it():
    make = lambda: task(singleton_key=lambda order_id, **_: f"order {order_id}", retry_limit=5)(paid)  # noqa: E731
    if not TAKES_OPTIONS:
        with pytest.raises(TypeError):
            make()
        return
    job = job_of(make().enqueue(order_id=7))

    assert (job.singleton_key, job.retry_limit) == ("order 7", 5)
    del handlers.registry.by_name[job.name]


@pytest.mark.parametrize(
    "wrong", ({"retry_limit": -1}, {"tags": "text"}, {"singleton_key": 7}, {"throttle_seconds": 0})
)
def test_an_option_that_makes_no_sense_is_refused_when_it_is_given(wrong):
    with pytest.raises(InvalidTask, match=next(iter(wrong))):
        app.add.using(**wrong)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match=r"no option 'retry_limt'\. Did you mean 'retry_limit'\?"):
        app.add.using(retry_limt=3)  # type: ignore[call-arg]


def test_an_ordered_queue_needs_a_key():
    services.create_fifo_queue("ordered")

    with pytest.raises(KeyRequired):
        app.add.using(queue_name="ordered").enqueue(1)
    keyed = app.add.using(queue_name="ordered", singleton_key="a")
    first, second = keyed.enqueue(1), keyed.enqueue(2)

    assert [str(job.pk) for job in services.fetch("ordered", 2)] == [first.id]
    assert job_of(second).state == JobState.CREATED


def test_a_task_whose_place_is_taken_has_the_result_of_the_job_in_the_way():
    once = app.add.using(singleton_key="a")

    first, again = once.enqueue(1), once.enqueue(2)

    assert (again.id, again.args) == (first.id, [1])
    services.send("default", name="no.task", singleton_key="b")
    with pytest.raises(DuplicateJob):
        app.add.using(singleton_key="b").enqueue(1)


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_a_status(default, state):
    job = JobFactory(queue=default, state=state, name="tests.tasks.app.tasks.add")

    result = backend().get_result(str(job.pk))

    assert result.is_finished == (state in FINAL)
    assert (result.status == TaskResultStatus.SUCCESSFUL) == (state == JobState.COMPLETED)
    assert (result.status == TaskResultStatus.RUNNING) == (state in {JobState.ACTIVE, JobState.CANCELLING})
    assert (result.finished_at is not None) == (state in FINAL)
    assert result.attempts == len(result.worker_ids) == min(job.attempt, 1)
    if state == JobState.FAILED:
        with pytest.raises(ValueError, match="failed"):
            result.return_value  # noqa: B018
        assert [error.exception_class for error in result.errors] == [ValueError]


@pytest.mark.parametrize("id", ("nonsense", "", "01a1e365-0c4d-7728-a306-4178eeb0ba89"))
def test_an_unknown_result_does_not_exist(id):
    with pytest.raises(TaskResultDoesNotExist):
        backend().get_result(id)
    with pytest.raises(TaskResultDoesNotExist):
        app.add.get_result(id)


def test_a_job_that_is_no_task_has_no_result(default):
    for name in ("", "shop.jobs.pay", "tests.tasks.app.tasks.no_task"):
        with pytest.raises(TaskResultDoesNotExist):
            backend().get_result(str(JobFactory(queue=default, name=name).pk))


def test_a_result_belongs_to_its_task():
    result = app.add.enqueue(1)

    assert app.add.get_result(result.id).id == result.id
    with pytest.raises(TaskResultMismatch, match=r"tests\.tasks\.app\.tasks\.add"):
        app.important.get_result(result.id)


def test_a_result_whose_queue_is_no_longer_allowed_can_still_be_read():
    result = app.add.using(queue_name="default", priority=3).enqueue(1)

    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["mails"]}}):
        assert backend().get_result(result.id).id == result.id


# -------------------------------------------------------------------------------------------------- finding tasks again


@pytest.fixture
def forgotten() -> Any:
    """As in a process that has imported no tasks."""
    with handlers.registry.restored(empty=True):
        yield


def test_a_task_is_found_by_its_path_in_an_installed_app(forgotten, settings):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.tasks.app"]

    found = handlers.find("default", "tests.tasks.app.tasks.add")

    assert found is not None
    assert found.name == "tests.tasks.app.tasks.add"


@pytest.mark.parametrize(
    "path",
    (
        "tests.tasks.app.tasks.no_task",  # a function that is not declared as a task
        "tests.tasks.app.tasks.Refused",
        "tests.tasks.app.tasks.missing",
        "tests.tasks.app.nowhere.add",
        "tests.tasks.app",
        "os.system",
        "subprocess.run",
        "add",
        "..",
    ),
)
def test_nothing_but_a_task_is_found(forgotten, settings, path):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.tasks.app"]

    assert handlers.find("default", path) is None


def test_a_task_outside_installed_apps_is_not_imported(forgotten):
    assert handlers.find("default", "tests.tasks.app.tasks.add") is None


def test_a_job_without_a_name_goes_to_no_task(forgotten):
    app.add.using(priority=1)  # makes it known

    assert handlers.known("tests.tasks.app.tasks.add") is not None
    assert handlers.find("default", "") is None


def test_workers_serve_every_queue_that_tasks_may_go_to(forgotten):
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mails"]}}):
        app.add.using(priority=1)

        assert handlers.served(handlers.all_handlers()) == {"default", "mails"}


# --------------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("params", "said"),
    (
        ({"QUEUES": ["a b\n"]}, "QUEUES"),
        ({"OPTIONS": {"databse": "default"}}, "Did you mean 'database'"),
        ({"OPTIONS": {"database": "nowhere"}}, "not in DATABASES"),
    ),
)
def test_settings_that_make_no_sense_are_found(params, said):
    made = JobQueueBackend("default", {"BACKEND": BACKEND, **params})

    (found,) = made.check()
    assert found.id == "jobqueue.E021"
    assert said in f"{found.msg} {found.hint}"


def test_settings_that_are_fine_are_not_complained_of():
    assert list(JobQueueBackend("default", {"BACKEND": BACKEND, "OPTIONS": {"database": "default"}}).check()) == []


def test_the_queues_of_tasks_exist_without_being_declared_twice():
    tasks: dict[str, Any] = {
        "default": {"BACKEND": BACKEND, "QUEUES": ["default", "letters"]},
        "x": {"BACKEND": "other.Backend"},
    }
    with override_settings(TASKS=tasks, JOBQUEUE={"QUEUES": {"letters": {"retry_limit": 9}}}):
        sync_declared(using="default")
    with override_settings(TASKS={"default": {**tasks["default"], "QUEUES": ["plain"]}}):
        sync_declared(using="default")

    assert Queue.objects.get(pk="letters").retry_limit == 9
    assert Queue.objects.filter(pk="plain").exists()


def test_a_job_sent_by_a_verb_runs_the_task_with_its_data(default):
    job = services.send("default", {"a": 1, "b": 2}, name="tests.tasks.app.tasks.add")
    assert job is not None

    result = backend().get_result(str(job.pk))

    assert (result.args, result.kwargs) == ([], {"a": 1, "b": 2})
    handler = handlers.find("default", job.name)
    assert handler is not None
    (fetched,) = services.fetch("default")
    assert handler.call(fetched, None) == 3
    assert reread(job).state == JobState.ACTIVE
