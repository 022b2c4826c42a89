"""``@job``: names and aliases, what it refuses, and what its sends store."""

from __future__ import annotations

import inspect
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
from django_jobqueue.exceptions import DuplicateJob, InvalidOption, KeyRequired
from django_jobqueue.handlers import JobContext, Snooze, autodiscover, find, missing_text
from django_jobqueue.models import Job
from django_jobqueue.options import JOB_OPTIONS
from django_jobqueue.send_options import NOT_OF_ITEMS, OF_DECORATOR, OF_SENDS, Item, JobOptions, SendOptions

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


# ------------------------------------------------------------------------------------------------ functions as keys


def declared(**options: Any) -> Any:
    """A handler with an argument that has a default."""

    def ship(customer: str, order: int = 1) -> None: ...

    return job(queue="orders", name="ship", **options)(ship)


def by_positional_only(customer: str, /, **rest: Any) -> str:
    return f"{customer} {sorted(rest.items())}"


@pytest.mark.parametrize(
    ("key", "expected"),
    (
        (lambda customer, **_: customer, "ada"),
        (lambda customer, order: f"{customer} {order}", "ada 1"),
        (lambda order: f"order {order}", "order 1"),
        (lambda *, order, customer: f"{customer} {order}", "ada 1"),
        (lambda **arguments: str(sorted(arguments)), "['customer', 'order']"),
        (lambda customer, other="fixed": f"{customer} {other}", "ada fixed"),
        (lambda *arguments: str(arguments), "('ada', 1)"),
        (lambda *_, **arguments: str(sorted(arguments)), "['customer', 'order']"),
        (by_positional_only, "ada [('order', 1)]"),
        (str.upper, "ADA"),
        (lambda: "constant", "constant"),
        (partial(lambda prefix, customer: prefix + customer, "to "), "to ada"),
    ),
)
@pytest.mark.parametrize(
    "call", (((), {"customer": "ada"}), (("ada",), {}), (("ada", 1), {}), (("ada",), {"order": 1}))
)
def test_a_key_function_gets_the_bound_arguments_with_defaults(fifo_queue, key, expected, call):
    ship = declared(singleton_key=key)
    args, kwargs = call

    assert ship.send(*args, **kwargs).singleton_key == expected


def test_every_way_of_sending_computes_the_keys(fifo_queue):
    ship = declared(singleton_key=lambda customer: customer, group_key=lambda order: f"order {order}")

    sent = [ship.send("a"), async_to_sync(ship.asend)("b"), ship.using(priority=1).send("c")]
    services.send_many("orders", [ship.item("d"), ship.using(delay=1).item("e", order=5)])

    assert [(one.singleton_key, one.group_key) for one in Job.objects.order_by("seq")] == [
        ("a", "order 1"), ("b", "order 1"), ("c", "order 1"), ("d", "order 1"), ("e", "order 5"),
    ]  # fmt: skip
    assert sent[0].data == {"customer": "a"}  # the default is left to the handler


def test_a_key_function_may_be_given_for_one_send(fifo_queue):
    ship = declared()

    assert (
        ship.using(singleton_key=lambda order: f"order {order}").using(delay=1).send("ada").singleton_key == "order 1"
    )


def test_a_key_function_gets_more_keywords_one_by_one(fifo_queue):
    @job(queue="orders", singleton_key=lambda customer, city: f"{customer} {city}")
    def ship(customer: str, **more: str) -> None: ...

    sent = ship.send("ada", city="Bern")

    assert sent is not None
    assert sent.singleton_key == "ada Bern"
    with pytest.raises(TypeError, match="city"):
        ship.send("ada")


def test_a_key_function_gets_the_data_of_a_handler_that_takes_it_whole(fifo_queue):
    @job(queue="orders", unpack=False, singleton_key=lambda whole: whole["customer"])
    def ship(data: Any) -> None: ...

    assert ship.send({"customer": "ada"}).singleton_key == "ada"  # type: ignore[union-attr]


def test_a_key_function_does_not_get_the_context(fifo_queue):
    @job(queue="orders", takes_context=True, singleton_key=lambda *arguments: str(arguments))
    def ship(context: JobContext, customer: str) -> None: ...

    assert ship.send("ada").singleton_key == "('ada',)"  # type: ignore[union-attr]


async def async_key(customer: str) -> str:
    return customer


@pytest.mark.parametrize(
    ("key", "text"),
    (
        (lambda custommer: "", "the function takes custommer, which is no argument of the handler"),
        (lambda customer, day: "", "the function takes day"),
        (async_key, "the function is asynchronous"),
    ),
)
def test_a_key_function_that_no_call_can_serve_is_refused_at_once(key, text):
    with pytest.raises(ImproperlyConfigured, match=f"singleton_key: {text}"):
        declared(singleton_key=key)
    with pytest.raises(InvalidOption, match=f"group_key: {text}"):
        declared().using(group_key=key)


# ---------------------------------------------------------------------------------------------- options of the sends


def test_a_misspelled_option_of_one_send_is_refused_before_the_send():
    ship = declared()

    for sender in (ship, ship.using(priority=1)):
        with pytest.raises(InvalidOption, match=r"dely: there is no such option\. Did you mean 'delay'\?"):
            sender.using(dely=3)


@pytest.mark.parametrize("option", OF_SENDS)
def test_all_options_are_considered_for_what_was_meant(option):
    misspelled = f"{option}s"

    with pytest.raises(InvalidOption, match=f"Did you mean '{option}'"):
        declared().using(**{misspelled: 1})
    if option not in NOT_OF_ITEMS:
        with pytest.raises(InvalidOption, match=f"Did you mean '{option}'"):
            services.send_many("default", [{misspelled: 1}])  # type: ignore[misc]
    if option in OF_DECORATOR:
        with pytest.raises(ImproperlyConfigured, match=f"Did you mean '{option}'"):
            declared(**{misspelled: 1})


def test_the_types_of_options_name_those_that_there_are():
    assert set(JOB_OPTIONS) == JobOptions.__optional_keys__
    parameters = inspect.signature(services.send).parameters.keys() - {"queue", "data", "options"}
    assert parameters | set(JOB_OPTIONS) == SendOptions.__optional_keys__ | {"on_duplicate"}
    assert set(OF_SENDS) == parameters | {"queue"} | set(JOB_OPTIONS)
    assert Item.__optional_keys__ == {"data", *OF_SENDS} - NOT_OF_ITEMS


def test_arguments_of_send_many_are_left_out_of_its_items(queue):
    maybe = declared(on_duplicate="ignore").using(queue="work", using="default")

    assert maybe.item("ada") == {"data": {"customer": "ada"}, "name": "ship"}
    with pytest.raises(InvalidOption, match=r"on_duplicate: is an argument of send_many\(\), not of its items"):
        services.send_many("work", [{"on_duplicate": "ignore"}])  # type: ignore[typeddict-unknown-key]


# ------------------------------------------------------------------------------------------- what a send returns


def test_a_job_without_a_key_is_returned_or_an_error(exclusive_queue):  # B32: the type of this send has no None
    backup = job(queue="backups", name="backup")(lambda: None)

    first = backup.send()
    with pytest.raises(DuplicateJob, match="the policy of the queue allows no further job now"):
        backup.send()
    with pytest.raises(DuplicateJob):
        async_to_sync(backup.asend)()

    assert backup.using(on_duplicate="ignore").send() is None
    assert backup.using(on_duplicate="return").send() == first
    assert services.send("backups") is None


def test_a_job_with_a_key_or_a_window_may_be_refused(queue):  # B32 B39
    remind = job(queue="work", name="remind")(lambda: None)

    for sender in (remind.using(singleton_key="a"), remind.using(throttle_seconds=10**6)):
        assert sender.send() is not None
        assert sender.send() is None


def test_without_parentheses_the_queue_is_the_default():
    @job
    def bare(n: int) -> int:
        return n

    @job()
    def empty() -> None: ...

    services.create_queue("default")

    assert (bare.queue, empty.queue) == ("default", "default")
    assert bare.send(3).data == {"n": 3}
    assert bare(4) == 4


def test_a_queue_in_the_place_of_the_function_is_explained():
    with pytest.raises(ImproperlyConfigured, match=r"@job\(queue='mails'\)"):
        job("mails")  # type: ignore[call-overload]


# ------------------------------------------------------------------------------------------------------- methods


def in_class(decorate: Any) -> None:
    class Shop:
        @decorate
        def ship(self, order: int) -> None: ...


def static_below(decorate: Any) -> None:
    class Shop:
        @decorate
        @staticmethod
        def ship(order: int) -> None: ...


def static_above(decorate: Any) -> None:
    class Shop:
        @staticmethod
        @decorate
        def ship(order: int) -> None: ...


def class_below(decorate: Any) -> None:
    class Shop:
        @decorate
        @classmethod
        def ship(cls, order: int) -> None: ...


def class_above(decorate: Any) -> None:
    class Shop:
        @classmethod
        @decorate
        def ship(cls, order: int) -> None: ...


def nested(decorate: Any) -> None:
    class Shop:
        class Inner:
            @decorate
            async def ship(self) -> None: ...


@pytest.mark.parametrize("decorate", (job, job(), job(queue="orders", name="ship", unpack=False)))
@pytest.mark.parametrize("declare", (in_class, static_below, static_above, class_below, class_above, nested))
def test_a_method_is_refused_when_it_is_declared(declare, decorate):
    with pytest.raises(ImproperlyConfigured, match=r"ship\(\) is a \w+ of the class (Shop|Inner)"):
        declare(decorate)

    assert handlers.all_handlers() == []


def test_a_function_in_a_method_is_a_handler():
    class Shop:
        def declare(self) -> Any:
            @job(queue="orders")
            def ship(self: int) -> int:  # a name like any other
                return self

            return ship

    assert Shop().declare()(5) == 5
