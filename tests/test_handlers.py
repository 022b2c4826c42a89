"""``@job``: names and aliases, what it refuses, and what its sends store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_jobqueue import handlers, job, services
from django_jobqueue.exceptions import InvalidOption, KeyRequired
from django_jobqueue.handlers import JobContext, Snooze, autodiscover, find, missing_text
from django_jobqueue.models import Job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """What a test declares is forgotten after it."""
    with handlers.registry.restored(empty=True):
        yield


# ------------------------------------------------------------------------------------------------- names and aliases


def test_a_handler_is_named_by_its_dotted_path():
    @job(queue="work")
    def remind(user_id: int) -> None: ...

    assert remind.name == f"{__name__}.{remind.function.__qualname__}"
    assert find("work", remind.name) is remind
    assert getattr(remind, "__name__", "") == "remind"  # it looks like the function it wraps


def test_a_handler_is_found_by_its_name_and_its_former_names():
    @job(queue="work", name="mail.remind", aliases=["mail.nag", "remind"])
    def remind() -> None: ...

    assert [find("work", name) for name in ("mail.remind", "mail.nag", "remind")] == [remind] * 3
    assert handlers.all_handlers() == [remind]


def test_calling_a_handler_calls_the_function():
    @job(queue="work")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42


def test_two_handlers_of_one_name_are_refused():
    @job(queue="work", name="same")
    def one() -> None: ...

    with pytest.raises(ImproperlyConfigured, match="Two handlers are named 'same'"):

        @job(queue="work", name="other", aliases=["same"])
        def two() -> None: ...

    assert find("work", "same") is one


def test_a_module_that_is_imported_again_replaces_its_own_handlers():
    def declare() -> Any:
        @job(queue="work", name="again")
        def again() -> None: ...

        return again

    declare()
    second = declare()

    assert find("work", "again") is second


def test_a_job_without_a_name_goes_to_the_only_handler_of_its_queue():
    @job(queue="work")
    def only() -> None: ...

    assert find("work", "") is only
    assert find("elsewhere", "") is None


def test_of_several_handlers_one_may_be_the_default():
    @job(queue="work")
    def one() -> None: ...

    assert find("work", "") is one

    @job(queue="work", default=True)
    def two() -> None: ...

    assert find("work", "") is two


def test_without_a_default_nobody_guesses():
    for name in ("a", "b"):
        job(queue="work", name=name)(lambda: None)

    assert find("work", "") is None
    assert "has several: a, b; mark one default=True" in missing_text("work", "")


def test_a_missing_handler_is_told_with_the_closest_name():
    job(queue="work", name="shop.send_invoice")(lambda: None)

    assert missing_text("work", "shop.send_invoise") == (
        "There is no handler named 'shop.send_invoise'. Did you mean 'shop.send_invoice'?"
    )
    assert missing_text("other", "") == "The job names no handler, and queue 'other' has none."


# ------------------------------------------------------------------------------------------------ what is refused


def generator():
    yield 1


async def async_generator():
    yield 1


def star(*args: Any) -> None: ...


def positional(a: int, /) -> None: ...


def nothing() -> None: ...


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "text"),
    (
        (generator, {}, "is a generator"),
        (async_generator, {}, "is a generator"),
        (star, {}, "by the names of its arguments"),
        (positional, {}, "by the names of its arguments"),
        (nothing, {"takes_context": True}, "takes the context as its first argument"),
        (coroutine, {"atomic": True}, "atomic=True needs a plain function"),
        (nothing, {"priorty": 1}, "has no option 'priorty'. Did you mean 'priority'?"),
        (nothing, {"aliases": "old.name"}, "aliases must be a list"),
        (nothing, {"aliases": [""]}, "aliases must be a list"),
        (nothing, {"queue": "no such name!"}, "@job"),
        (nothing, {"queue": ""}, "@job"),
        (nothing, {"name": "x" * 256}, "longer than 255"),
        (nothing, {"retries": {"ValueError": 1}}, "is not an exception class"),
        (nothing, {"retries": {ValueError: "later"}}, "needs False, True or seconds"),
        (nothing, {"retries": {ValueError: -1}}, "needs False, True or seconds"),
        (nothing, {"retries": {ValueError: float("nan")}}, "needs False, True or seconds"),
        (partial(nothing), {}, "has no name of its own"),
    ),
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:30],
)
def test_what_no_job_could_ever_call_is_refused_when_it_is_declared(function, options, text):
    with pytest.raises(ImproperlyConfigured) as caught:
        job(**{"queue": "work", **options})(function)

    assert text in str(caught.value)
    assert handlers.all_handlers() == []


def test_a_partial_with_a_name_is_a_handler():
    handler = job(queue="work", name="partial")(partial(lambda a, b: a + b, b=2))

    assert handler(1) == 3


def test_a_context_has_sensible_arguments():
    context = JobContext(Job(id="018f0000-0000-7000-8000-000000000000", attempt=3, singleton_key="k", queue_id="work"))

    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidOption):
            context.progress(wrong)
    assert context.attempt == 3
    assert context.logger.extra == {"job": str(context.job.pk), "queue": "work", "key": "k", "attempt": 3}


def test_a_snooze_says_for_how_long():
    assert str(Snooze(5)) == "snoozed for 5 seconds"


# ------------------------------------------------------------------------------------------------------ what is sent


def test_a_send_stores_a_job_with_the_arguments_by_name(queue):
    @job(queue=queue.name, name="remind")
    def remind(user_id: int, text: str = "hello") -> None: ...

    sent = remind.send(7, text="hi")

    assert sent is not None
    found = services.get_job(sent.pk)
    assert (found.queue_id, found.name, found.data) == (queue.name, "remind", {"user_id": 7, "text": "hi"})


def test_a_send_without_arguments_stores_no_data(queue):
    @job(queue=queue.name)
    def tick() -> None: ...

    sent = tick.send()

    assert sent is not None
    assert sent.data is None


def test_defaults_of_arguments_are_left_to_the_handler(queue):
    @job(queue=queue.name)
    def remind(user_id: int, text: str = "hello") -> None: ...

    sent = remind.send(user_id=1)

    assert sent is not None
    assert sent.data == {"user_id": 1}


@pytest.mark.parametrize(("args", "kwargs"), (((), {}), ((1, 2), {}), ((1,), {"wrong": 1})))
def test_arguments_that_the_handler_does_not_take_are_refused_at_the_send(queue, args, kwargs):
    @job(queue=queue.name)
    def remind(user_id: int) -> None: ...

    with pytest.raises(TypeError):
        remind.send(*args, **kwargs)
    assert not Job.objects.exists()


def test_the_context_is_not_an_argument_of_the_send(queue):
    @job(queue=queue.name, takes_context=True)
    def remind(context: JobContext, user_id: int) -> None: ...

    sent = remind.send(user_id=3)

    assert sent is not None
    assert sent.data == {"user_id": 3}


def test_a_handler_may_take_its_data_whole(queue):
    @job(queue=queue.name, unpack=False)
    def ingest(data: Any) -> None: ...

    sent = ingest.send([1, {"two": 3}])

    assert sent is not None
    assert sent.data == [1, {"two": 3}]
    with pytest.raises(TypeError, match="one argument"):
        ingest.send(1, 2)  # type: ignore[call-arg]


def test_more_keywords_are_data_too(queue):
    @job(queue=queue.name)
    def remind(user_id: int, **more: int) -> None: ...

    sent = remind.send(1, a=2, b=3)

    assert sent is not None
    assert sent.data == {"user_id": 1, "a": 2, "b": 3}


def test_options_of_the_decorator_are_defaults_of_the_send(queue):
    @job(queue=queue.name, priority=5, retry_limit=9, tags=["mail"], expire_in_seconds=60)
    def remind() -> None: ...

    sent = remind.send()
    other = remind.using(priority=1).using(delay=60).send()

    assert sent is not None
    assert other is not None
    assert (sent.priority, sent.retry_limit, sent.tags, sent.expire_in_seconds) == (5, 9, ["mail"], 60)
    assert (other.priority, other.retry_limit) == (1, 9)
    assert other.start_after > sent.start_after


def test_keys_may_be_functions_of_the_arguments(fifo_queue):
    @job(queue=fifo_queue.name, singleton_key=lambda order_id, **_: f"order {order_id}", group_key="fixed")
    def ship(order_id: int, step: str = "") -> None: ...

    first, second = ship.send(order_id=7, step="pack"), ship.send(order_id=8)

    assert first is not None
    assert second is not None
    assert (first.singleton_key, second.singleton_key, first.group_key) == ("order 7", "order 8", "fixed")


def test_a_handler_of_an_ordered_queue_needs_a_key(fifo_queue):
    @job(queue=fifo_queue.name)
    def ship() -> None: ...

    with pytest.raises(KeyRequired):
        ship.send()
    assert ship.using(singleton_key="a").send() is not None


def test_a_send_may_go_to_another_queue(queue, short_queue):
    @job(queue=queue.name)
    def remind() -> None: ...

    sent = remind.using(queue=short_queue.name).send()

    assert sent is not None
    assert (sent.queue_id, sent.name) == (short_queue.name, remind.name)


def test_many_jobs_of_a_handler_are_sent_at_once(queue):
    @job(queue=queue.name, priority=3)
    def remind(user_id: int) -> None: ...

    sent = services.send_many(queue.name, [remind.using(delay=1).item(user_id=n) for n in range(3)])

    assert [one.data for one in Job.objects.order_by("seq")] == [{"user_id": n} for n in range(3)]
    assert {one.name for one in Job.objects.all()} == {remind.name}
    assert {one.priority for one in Job.objects.all()} == {3}
    assert len(sent) == 3


def test_an_async_view_sends_with_asend(queue):
    @job(queue=queue.name)
    def remind(user_id: int) -> None: ...

    sent = async_to_sync(remind.asend)(user_id=4)

    assert sent is not None
    assert services.get_job(sent.pk).data == {"user_id": 4}


def test_data_that_json_cannot_hold_is_refused_at_the_send(queue):
    @job(queue=queue.name)
    def remind(what: Any) -> None: ...

    with pytest.raises(services_error("InvalidData")):
        remind.send(what={1, 2})


def services_error(name: str) -> type[Exception]:
    from django_jobqueue import exceptions

    found: type[Exception] = getattr(exceptions, name)
    return found


# ---------------------------------------------------------------------------------------------------- autodiscovery

APP = """
from django_jobqueue import job

@job(queue="work", name="{name}")
def handler():
    pass
"""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[str]:
    """An app with ``jobs.py``, ``tasks.py`` and ``chores.py``, each with a handler."""
    folder = tmp_path / "discovered"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for module in ("jobs", "tasks", "chores"):
        (folder / f"{module}.py").write_text(APP.format(name=f"from-{module}"))
    sys.path.insert(0, str(tmp_path))
    yield "discovered"
    sys.path.remove(str(tmp_path))
    for module in [name for name in sys.modules if name.split(".")[0] == "discovered"]:
        del sys.modules[module]


def test_handlers_are_found_in_jobs_and_tasks_of_installed_apps(app, settings):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app]

    found = {handler.name for handler in autodiscover()}

    assert found == {"from-jobs", "from-tasks"}
    assert apps.is_installed(app)


def test_where_handlers_are_looked_for_is_a_setting(app, settings):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app]

    with override_settings(JOBQUEUE={"HANDLER_MODULES": ["chores"]}):
        found = {handler.name for handler in autodiscover()}

    assert found == {"from-chores"}


def test_an_error_in_a_module_of_handlers_is_not_hidden(app, settings, tmp_path):
    (tmp_path / "discovered" / "jobs.py").write_text("import no_such_module_at_all\n")
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, app]

    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        autodiscover()


def test_an_option_named_options_is_none():
    with pytest.raises(ImproperlyConfigured, match="no option 'options'"):
        job(queue="work", options={"priority": 1})  # type: ignore[call-overload]
