"""Tasks that a worker runs: results, errors per attempt, contexts, signals."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.models import Job
from django_jobqueue.states import FailureReason
from django_jobqueue.tasks import JobQueueBackend, TaskResultStatus
from django_jobqueue.tasks.api import task_enqueued, task_finished, task_started
from django_jobqueue.tasks.results import EXPIRED, NO_EXCEPTION, exception_path

from .app import tasks as app

pytestmark = pytest.mark.django_db(transaction=True)


class Heard:
    """What Django's three signals told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any, TaskResultStatus, str]] = []
        self.results: list[Any] = []

    def __call__(self, name: str) -> Any:
        def receiver(sender: Any, task_result: Any, **kwargs: Any) -> None:
            self.told.append((name, sender, task_result.status, task_result.id))
            self.results.append(task_result)

        return receiver


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard, signals = Heard(), {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    for name, signal in signals.items():
        signal.connect(heard(name), weak=False, dispatch_uid="heard")
    yield heard
    for signal in signals.values():
        signal.disconnect(dispatch_uid="heard")


def test_a_task_that_succeeds_tells_its_value(finish, heard):
    result = finish(app.add.enqueue(1, b=2))

    assert (result.status, result.return_value, result.errors) == (TaskResultStatus.SUCCESSFUL, 3, [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert result.attempts == 1
    assert result.worker_ids == [Job.objects.get(pk=result.id).assignee]


def test_an_async_task_runs(finish):
    assert finish(app.slowly.enqueue("abc")).return_value == "ABC"


def test_a_task_that_fails_tells_its_error(finish):
    result = finish(app.fails.enqueue("no"))

    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is app.Refused
    assert error.exception_class_path == "tests.tasks.app.tasks.Refused"
    assert "raise Refused(message)" in error.traceback
    assert error.traceback.endswith("Refused: no\n")  # as Django's own backends have it
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018


def test_every_attempt_tells_its_error(finish):
    result = finish(app.recovers.using(retry_limit=5).enqueue())

    assert (result.return_value, result.attempts) == (3, 3)
    assert [error.traceback.splitlines()[-1].split(": ")[1] for error in result.errors] == ["attempt 1", "attempt 2"]
    assert len(set(result.worker_ids)) == 1
    assert result.started_at < result.last_attempted_at


def test_the_context_knows_the_task(finish):
    value = finish(app.looks.enqueue("a", b="c")).return_value

    assert value == {
        "attempt": 1, "id": value["id"], "status": "RUNNING", "args": ["a"], "kwargs": {"b": "c"}, "words": ["a"],
        "more": {"b": "c"},
    }  # fmt: skip
    assert Job.objects.get(pk=value["id"]).progress_text == "half"


def test_a_value_that_is_not_json_fails_the_task(finish):
    result = finish(app.returns_an_object.enqueue())

    assert [error.exception_class for error in result.errors] == [TypeError]


def test_a_value_is_normalized(finish):
    assert finish(app.returns_bytes.enqueue()).return_value == {"bytes": "abc", "tuple": [1, 2]}


def test_wrong_arguments_fail_the_task(finish):
    result = finish(app.add.enqueue(nonsense=1))

    assert [error.exception_class for error in result.errors] == [TypeError]


def test_a_task_goes_to_another_queue_of_its_own(finish):
    assert finish(app.add.using(queue_name="other").enqueue(1)).return_value == 1


def test_signals_tell_of_success(finish, heard):
    result = finish(app.add.enqueue(4))
    _until_told(heard, "finished")

    id, ours = result.id, JobQueueBackend
    assert heard.told == [
        ("enqueued", ours, TaskResultStatus.READY, id),
        ("started", ours, TaskResultStatus.RUNNING, id),
        ("finished", ours, TaskResultStatus.SUCCESSFUL, id),
    ]
    assert heard.results[-1].return_value == 4
    assert heard.results[-1].finished_at is not None


def test_signals_tell_of_failure_when_no_attempt_follows(finish, heard, caplog):
    with caplog.at_level(logging.ERROR):
        finish(app.fails.using(retry_limit=1).enqueue("no"))
        _until_told(heard, "finished")

    assert [name for name, *_ in heard.told] == ["enqueued", "started", "started", "finished"]
    assert heard.told[-1][2] == TaskResultStatus.FAILED
    assert len(heard.results[-1].errors) == 2
    (record,) = [one for one in caplog.records if one.name in ("django.tasks", "django_tasks")]
    assert record.exc_info is not None
    assert record.exc_info[0] is app.Refused


def test_a_receiver_that_raises_breaks_nothing(finish):
    def broken(**kwargs: Any) -> None:
        raise RuntimeError("no")

    task_started.connect(broken, dispatch_uid="broken")
    try:
        assert finish(app.add.enqueue(1)).return_value == 1
        assert finish(app.slowly.enqueue("a")).return_value == "A"
    finally:
        task_started.disconnect(dispatch_uid="broken")


def test_tasks_and_handlers_share_an_ordered_queue(finish):
    keyed = app.add.using(queue_name="ordered", singleton_key="a")
    bad = app.fails.using(queue_name="ordered", singleton_key="a", retry_limit=0)

    finish(keyed.enqueue(1))
    finish(bad.enqueue("no"))
    waiting = keyed.enqueue(2)

    assert services.blocked_keys("ordered") == ["a"]
    assert waiting.status == TaskResultStatus.READY
    services.skip(Job.objects.filter(state="failed"), reason="test")
    assert finish(waiting).return_value == 2


def _until_told(heard: Heard, name: str) -> None:
    from tests.waiting import until

    until(lambda: name in [told for told, *_ in heard.told], f"{name} was told")


@pytest.mark.parametrize(
    ("error", "path"),
    (
        ("ValueError: no", "builtins.ValueError"),
        ("KeyboardInterrupt", "builtins.KeyboardInterrupt"),
        ('Traceback (most recent call last):\n  File "x", line 1, in f\n    g()\na.b.C: one\ntwo: three', "a.b.C"),
        ('  File "x", line 1, in f\n    g()\n    ~^^\na.b.C', "a.b.C"),  # its beginning was cut off
        ("It took longer than the 5 seconds it was allowed.", NO_EXCEPTION),
        ("its worker vanished", NO_EXCEPTION),
        ("nonsense: no class", NO_EXCEPTION),
        ("print: no exception", NO_EXCEPTION),
        ("", NO_EXCEPTION),
    ),
)
def test_the_class_of_an_error_is_read_from_its_text(error, path):
    assert exception_path(error) == path
    assert exception_path(error, FailureReason.EXPIRED) == EXPIRED


def test_the_class_of_a_group_is_read_too():
    import traceback

    try:
        raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])
    except ExceptionGroup as group:
        text = "".join(traceback.format_exception(group))

    assert exception_path(text) == "builtins.ExceptionGroup"
