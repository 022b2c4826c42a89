"""Queues that do not exist, for every verb that takes one, and names that cannot be one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobqueue import services
from django_jobqueue.exceptions import (
    ImmutableOption,
    InvalidOption,
    JobNotFound,
    NotOrdered,
    QueueNotFound,
)
from django_jobqueue.models import Queue
from django_jobqueue.policies import POLICIES, QueuePolicy
from django_jobqueue.states import JobState

from . import bad_values
from .bad_input_verbs import BY_ID
from .lives import claimed, job_in, refused, refuses_all, shown, snapshot

Verb = Callable[..., object]
OF_ONE: dict[str, Verb] = {
    "send": services.send,
    "send, on duplicate": lambda name: services.send(name, on_duplicate="return"),
    "send_many": lambda name: services.send_many(name, [{}]),
    "send_many, on duplicate": lambda name: services.send_many(name, [{}], on_duplicate="ignore"),
    "send_many of none": lambda name: services.send_many(name, []),
    "asend": async_to_sync(services.asend),
    "asend_many": lambda name: async_to_sync(services.asend_many)(name, [{}]),
    "fetch": services.fetch,
    "fetch by tags": lambda name: services.fetch(name, tags=["a"]),
    "purge": services.purge,
    "list_jobs": services.list_jobs,
    "blocked_keys": services.blocked_keys,
    "get_queue": services.get_queue,
    "update_queue": services.update_queue,
    "update_queue, an option": lambda name: services.update_queue(name, retry_limit=1),
    "create_schedule": lambda name: services.create_schedule("s", name, "@daily"),
    "pause": services.pause,
    "resume": services.resume,
}
OF_ONE_OR_ALL: dict[str, Verb] = {
    "stats": services.stats,
    "activity": services.activity,
    "reset_running": services.reset_running,
    "cleanup": lambda name: services.cleanup(queue=name),
    "cleanup, ttl": lambda name: services.cleanup(1, queue=name),
}
ALL = OF_ONE | OF_ONE_OR_ALL


@pytest.fixture(autouse=True)
def _jobs(queue: Queue) -> None:
    for state in (JobState.CREATED, JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED):
        job_in(state, queue, tags=["a"])


@pytest.mark.parametrize("verb", ALL)
def test_a_queue_that_does_not_exist_is_told_with_the_closest_name(verb):  # R313
    with refused(QueueNotFound) as caught:
        ALL[verb]("wrok")

    assert caught.value.name == "wrok"
    assert "Did you mean 'work'?" in str(caught.value)


@pytest.mark.parametrize("verb", ALL)
def test_what_cannot_be_a_queue_is_refused(verb):  # R315
    none = [None] if verb in OF_ONE else []

    refuses_all(ALL[verb], [*bad_values.QUEUES, *none], QueueNotFound, InvalidOption)


@pytest.mark.parametrize("verb", ALL)
def test_a_queue_itself_is_as_good_as_its_name_or_refused(queue, verb):
    with transaction.atomic():
        with suppress(QueueNotFound, InvalidOption, NotOrdered):
            ALL[verb](queue)
        assert Queue.objects.filter(pk=queue.pk).exists()


def is_text(name: object) -> bool:
    """Whether PostgreSQL can store it as text, so that a queue could have that name."""
    return isinstance(name, str) and name not in (bad_values.NUL, bad_values.SURROGATE)


@pytest.mark.parametrize("name", tuple(filter(is_text, bad_values.QUEUES)), ids=shown)
def test_there_is_nothing_to_delete_where_there_is_no_queue(queue, name):
    before = snapshot()

    assert services.delete_queue(name) is False

    assert snapshot() == before
    assert services.delete_queue(queue.name) is True


def test_what_cannot_be_a_name_is_refused_by_a_deletion():  # R315
    names = [name for name in (*bad_values.QUEUES, None) if not is_text(name)]

    refuses_all(services.delete_queue, names, InvalidOption, option="queue")


@pytest.mark.parametrize("verb", ("complete", "fail", "stop", "delete", "retry", "get_job", "why", "reschedule"))
def test_a_name_that_prunes_and_cannot_be_a_queue_is_refused(queue, verb):
    job = claimed(queue)

    refuses_all(
        lambda name: BY_ID[verb](job.pk, queue=name), bad_values.QUEUES, JobNotFound, QueueNotFound, InvalidOption
    )


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {QueuePolicy.KEY_STRICT_FIFO}))
def test_only_ordered_queues_have_blocked_keys(policy):
    services.create_queue("unordered", policy=policy)

    with refused(NotOrdered) as caught:
        services.blocked_keys("unordered")

    assert (caught.value.queue, caught.value.policy) == ("unordered", policy)


@pytest.mark.parametrize("create", (services.create_queue, services.create_fifo_queue))
def test_a_name_that_cannot_be_a_queues_is_refused(create):  # R315
    also = (
        "x" * 101,
        "a;b",
        "a b",
        "a'b",
        'a"b',
        "a\\b",
        "a%b",
        "-a",
        ".a",
        "é",
        "a\n",
        "a\u200b",
        "../a",
        "<b>",
        None,
    )

    refuses_all(
        create, [*(name for name in bad_values.QUEUES if name != "WORK"), *also], InvalidOption, option="queue name"
    )


@pytest.mark.parametrize("name", ("select", "a.b/c:d-e_f", "0", "x" * 100, "jobqueue_job", "DROP.TABLE"))
def test_a_name_that_reads_like_sql_is_only_a_name(name):
    services.create_queue(name)

    job = services.send(name, {"a": 1})
    assert services.fetch(name) == [job]
    assert services.stats(name).running == 1
    assert services.delete_queue(name) is True


# ------------------------------------------------------------------------------------------------ options of queues

CREATE: dict[str, Verb] = {
    "create": lambda **options: services.create_queue("new", **options),
    "create again": lambda **options: services.create_queue("work", **options),
    "create_fifo": lambda **options: services.create_fifo_queue("new", **options),
    "update": lambda **options: services.update_queue("work", **options),
}


@pytest.mark.parametrize("verb", CREATE)
@pytest.mark.parametrize(
    ("option", "value"),
    (
        ("expire_in_seconds", 0), ("expire_in_seconds", None), ("heartbeat_seconds", 9), ("retention_seconds", 0),
        ("delete_after_seconds", -1), ("warning_queue_size", 0), ("warning_queue_size", "many"), ("dead_letter", ""),
        ("dead_letter", 5), ("dead_letter", bad_values.NUL), ("dead_letter", "a b"), ("delayed_head", "skip"),
        ("on_exhausted", "pass"), ("description", bad_values.NUL), ("description", "x" * 501), ("description", 5),
        ("partition", "yes"),
    ),
    ids=shown,
)  # fmt: skip
def test_a_bad_option_of_a_queue_is_refused(verb, option, value):  # R315
    with refused(InvalidOption) as caught:
        CREATE[verb](**{option: value})

    assert caught.value.option == option


@pytest.mark.parametrize("verb", CREATE)
@pytest.mark.parametrize(("name", "guess"), (("retention_second", "retention_seconds"), ("dead_leter", "dead_letter")))
def test_an_unknown_option_of_a_queue_is_told_with_the_closest(verb, name, guess):  # R315
    with refused(InvalidOption) as caught:
        CREATE[verb](**{name: 1})

    assert (caught.value.option, f"Did you mean '{guess}'?" in str(caught.value)) == (name, True)


@pytest.mark.parametrize("verb", ("create again", "update"))
@pytest.mark.parametrize(("option", "value"), (("policy", "fifo"), ("policy", "short"), ("partition", True)))
def test_policy_and_partition_cannot_be_changed(verb, option, value):
    with refused(ImmutableOption) as caught:
        CREATE[verb](**{option: value, "retry_limit": 9})

    assert (caught.value.queue, caught.value.option) == ("work", option)


@pytest.mark.parametrize("option", ("retry_limit", "retry_delay", "retry_backoff", "retry_delay_max", "policy"))
def test_a_fifo_queue_is_created_without_retry_options(option):
    with refused(InvalidOption) as caught:
        CREATE["create_fifo"](**{option: 1})

    assert caught.value.option == option


@pytest.mark.parametrize("verb", ("create", "create again", "update"))
def test_a_dead_letter_queue_must_exist_and_take_every_job(verb, short_queue, exclusive_queue):
    for unfit in (short_queue, exclusive_queue):
        with refused(InvalidOption) as caught:
            CREATE[verb](dead_letter=unfit.name)
        assert caught.value.option == "dead_letter"
    with refused(QueueNotFound) as missing:
        CREATE[verb](dead_letter="refreshs")
    assert "Did you mean 'refreshes'?" in str(missing.value)


def test_a_queue_cannot_be_its_own_dead_letter():
    for call in (
        lambda: services.create_queue("work", dead_letter="work"),
        lambda: services.create_queue("new", dead_letter="new"),
        lambda: services.update_queue("work", dead_letter="work"),
    ):
        with refused(InvalidOption) as caught:
            call()
        assert caught.value.option == "dead_letter"


def test_dead_letters_do_not_go_in_a_circle():
    services.create_queue("second", dead_letter="work")
    services.create_queue("third", dead_letter="second")

    with refused(InvalidOption) as caught:
        services.update_queue("work", dead_letter="third")

    assert "work → third → second → work" in str(caught.value)


@pytest.mark.django_db(transaction=True)
def test_a_partition_is_not_made_or_dropped_inside_atomic(partitioned_queue):
    with refused(InvalidOption) as caught:
        services.create_queue("new", partition=True)
    assert caught.value.option == "partition"

    with refused(InvalidOption):
        services.delete_queue(partitioned_queue.name)
