from __future__ import annotations

from typing import Any

import pytest

from django_jobqueue import services
from django_jobqueue.exceptions import ImmutableOption, InvalidOption, QueueNotFound
from django_jobqueue.models import Job, Operation, Queue, Schedule
from django_jobqueue.options import JOB_OPTIONS
from django_jobqueue.policies import POLICIES, QueuePolicy
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory

from .lives import sent

pytestmark = pytest.mark.django_db

DAY = 86400
CHANGED: dict[str, Any] = {
    "retry_limit": 5,
    "retry_delay": 7,
    "retry_backoff": True,
    "retry_delay_max": 70,
    "expire_in_seconds": 60,
    "heartbeat_seconds": 15,
    "retention_seconds": 120,
    "delete_after_seconds": 240,
    "delete_failed_after_seconds": 480,
}


def test_a_queue_is_created_from_a_name_and_a_definition():  # R076 R094 R336
    services.create_queue("dead")

    queue = services.create_queue(
        "mail", policy="stately", partition=False, dead_letter="dead", warning_queue_size=50, **CHANGED
    )

    queue.refresh_from_db()
    assert queue.policy == QueuePolicy.STATELY
    assert queue.dead_letter_id == "dead"
    assert queue.warning_queue_size == 50
    assert {name: getattr(queue, name) for name in CHANGED} == CHANGED


def test_a_queue_that_names_nothing_has_the_documented_defaults():  # R077 R092 R098 R099 R100 R105 R106 R116 R118 R120
    services.create_queue("plain")

    queue = Queue.objects.get(pk="plain")
    assert queue.policy == QueuePolicy.STANDARD
    assert queue.partition is False
    assert (queue.retry_limit, queue.retry_delay, queue.retry_backoff, queue.retry_delay_max) == (2, 0, False, None)
    assert queue.heartbeat_seconds is None
    assert queue.expire_in_seconds == 900
    assert queue.retention_seconds == 14 * DAY
    assert queue.delete_after_seconds == 7 * DAY
    assert queue.dead_letter is None
    assert queue.warning_queue_size is None


def test_the_policies_are_six():  # R007
    assert set(POLICIES) == {"standard", "short", "singleton", "stately", "exclusive", "key_strict_fifo"}
    assert services.create_queue("by-alias", policy="fifo").policy == "key_strict_fifo"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_queue_can_have_each_policy(policy):  # R007
    assert services.create_queue("q", policy=policy).policy == policy


def test_the_list_of_policies_cannot_be_changed():  # R008
    with pytest.raises(TypeError):
        POLICIES[0] = "mine"  # type: ignore[index]
    with pytest.raises(AttributeError):
        QueuePolicy.SHORT = "mine"  # type: ignore[misc, assignment]


def test_an_unknown_policy_is_refused():  # R007
    with pytest.raises(InvalidOption, match="standard"):
        services.create_queue("q", policy="lifo")
    assert not Queue.objects.filter(pk="q").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    (
        ("heartbeat_seconds", 9),  # R107
        ("expire_in_seconds", 0),  # R117
        ("retention_seconds", 0),  # R119
    ),
)
def test_an_option_below_its_minimum_is_refused(option, value):  # R107 R117 R119
    with pytest.raises(InvalidOption, match=option):
        services.create_queue("q", **{option: value})
    assert getattr(services.create_queue("q", **{option: value + 1}), option) == value + 1
    with pytest.raises(InvalidOption, match=option):
        services.update_queue("q", **{option: value})


def test_creating_a_queue_again_changes_what_is_given():  # R329
    services.create_queue("q", retry_limit=5, retry_delay=6)

    services.create_queue("q", retry_limit=9)

    queue = Queue.objects.get(pk="q")
    assert (queue.retry_limit, queue.retry_delay) == (9, 6)


@pytest.mark.parametrize("name", ("", " ", "a\x00b", "a b", "a'b", "a%s", "a" * 101, 7, None))
def test_a_name_that_is_no_name_is_refused(name):
    with pytest.raises(InvalidOption):
        services.create_queue(name)


def test_every_option_but_policy_and_partition_can_be_updated(queue):  # R123
    services.create_queue("dead")
    other: dict[str, Any] = {
        "dead_letter": "dead",
        "warning_queue_size": 3,
        "on_exhausted": "skip",
        "delayed_head": "block",
    }

    changed = services.update_queue(queue.name, description="changed", **other, **CHANGED)

    stored = Queue.objects.get(pk=queue.name)
    assert {name: getattr(stored, name) for name in CHANGED} == CHANGED
    assert (stored.dead_letter_id, stored.warning_queue_size) == ("dead", 3)
    assert (stored.on_exhausted, stored.delayed_head, stored.description) == ("skip", "block", "changed")
    assert changed == stored
    assert stored.updated_at > stored.created_at


@pytest.mark.parametrize("change", ({"policy": "short"}, {"partition": True}))
@pytest.mark.parametrize("verb", (services.update_queue, services.create_queue))
def test_policy_and_partition_cannot_be_changed(queue, verb, change):  # R123 R124
    with pytest.raises(ImmutableOption, match="cannot be changed"):
        verb(queue.name, retry_limit=9, **change)

    queue.refresh_from_db()
    assert (queue.policy, queue.partition, queue.retry_limit) == ("standard", False, 2)


def test_naming_the_policy_a_queue_has_is_no_change(fifo_queue):  # R329
    assert services.create_queue(fifo_queue.name, policy="fifo", partition=False) == fifo_queue


def test_updating_a_queue_that_does_not_exist_is_refused():
    services.create_queue("invoices")

    with pytest.raises(QueueNotFound, match="Did you mean 'invoices'"):
        services.update_queue("invoice", retry_limit=1)


def test_a_queue_can_be_deleted_with_all_its_jobs(queue):  # R125 R339
    kept = JobFactory()
    for state in JobState:
        JobFactory(queue=queue, state=state)
    Schedule.objects.create(name="s", queue=queue, cron="* * * * *")

    assert services.delete_queue(queue.name) is True

    assert not Queue.objects.filter(pk=queue.name).exists()
    assert list(Job.objects.all()) == [kept]
    assert not Schedule.objects.exists()


def test_deleting_a_queue_that_does_not_exist_is_false():  # R339
    assert services.delete_queue("nothing") is False


def test_deleting_a_dead_letter_queue_leaves_the_queues_that_name_it(queue):
    services.create_queue("dead")
    services.update_queue(queue.name, dead_letter="dead")

    services.delete_queue("dead")

    queue.refresh_from_db()
    assert queue.dead_letter_id is None


def test_one_queue_is_fetched_by_name_with_its_counts(queue):  # R127 R337
    JobFactory(queue=queue)
    JobFactory.create_batch(2, queue=queue, state=JobState.FAILED)
    JobFactory()

    found = services.get_queue(queue.name)

    counts = {state: getattr(found, f"{state}_count") for state in JobState}
    assert found == queue
    assert counts == dict.fromkeys(JobState, 0) | {JobState.CREATED: 1, JobState.FAILED: 2}


def test_a_queue_that_does_not_exist_is_an_error(db):  # R127
    with pytest.raises(QueueNotFound) as caught:
        services.get_queue("nothing")
    assert caught.value.name == "nothing"


def test_all_queues_are_listed_with_their_counts(queue, fifo_queue):  # R126 R338
    Queue.objects.exclude(pk__in=[queue.name, fifo_queue.name]).delete()
    JobFactory.create_batch(2, queue=queue)
    for state in (JobState.ACTIVE, JobState.COMPLETED, JobState.FAILED):
        JobFactory(queue=fifo_queue, state=state, singleton_key=state)

    counts = ("created_count", "active_count", "completed_count", "failed_count")
    listed = {name: numbers for name, *numbers in Queue.objects.with_counts().values_list("name", *counts)}

    assert listed == {queue.name: [2, 0, 0, 0], fifo_queue.name: [0, 1, 1, 1]}


def test_a_job_inherits_every_option_of_its_queue():  # R122
    services.create_queue("q", **CHANGED)

    one = sent("q")
    (many,) = services.send_many("q", [{}])
    assert many is not None

    assert set(CHANGED) == set(JOB_OPTIONS)
    for id in (one.pk, many):
        job = services.get_job(id)
        assert {name: getattr(job, name) for name in JOB_OPTIONS} == CHANGED


def test_a_job_overrides_any_option_of_its_queue():  # R108 R122 R344
    services.create_queue("q", **CHANGED)
    other: Any = dict.fromkeys(CHANGED, 11) | {"retry_backoff": False}

    one = sent("q", **other)
    (many,) = services.send_many("q", [other])
    assert many is not None

    for id in (one.pk, many):
        job = services.get_job(id)
        assert {name: getattr(job, name) for name in JOB_OPTIONS} == other


def test_jobs_already_sent_keep_their_options(queue):  # R122
    job = sent(queue.name)

    services.update_queue(queue.name, retry_limit=9)

    assert services.get_job(job.pk).retry_limit == 2
    assert sent(queue.name).retry_limit == 9


def test_a_paused_queue_hands_out_nothing_and_takes_sends(queue):
    services.pause(queue.name)

    job = sent(queue.name)
    assert services.fetch(queue.name) == []
    assert services.get_queue(queue.name).is_paused

    services.resume(queue.name)
    assert services.fetch(queue.name) == [job]


def test_pausing_twice_keeps_the_first_time(queue):
    services.pause(queue.name)
    since = services.get_queue(queue.name).paused_at

    services.pause(queue.name)

    assert services.get_queue(queue.name).paused_at == since


def test_who_paused_and_resumed_a_queue_is_recorded_once(queue):
    for _ in range(2):
        services.pause(queue.name, operator="ann", reason="the printer is on fire")
    services.resume(queue.name, operator="ben")
    services.pause(queue.name)

    operations = Operation.objects.order_by("started_at").values_list("verb", "queue", "operator", "reason")
    assert list(operations) == [
        ("pause", queue.name, "ann", "the printer is on fire"),
        ("resume", queue.name, "ben", ""),
    ]


@pytest.mark.parametrize("verb", (services.pause, services.resume))
def test_pausing_a_queue_that_does_not_exist_is_refused(db, verb):
    with pytest.raises(QueueNotFound):
        verb("nothing")


def test_what_runs_in_a_paused_queue_goes_on(queue):
    job = sent(queue.name)
    (claimed,) = services.fetch(queue.name)
    services.pause(queue.name)

    services.complete(claimed)

    assert services.get_job(job.pk).state == JobState.COMPLETED


def test_a_dead_letter_queue_must_exist_and_accept_everything():  # R094 B35
    QueueFactory(name="picky", policy="exclusive")
    QueueFactory(name="ordered", policy="key_strict_fifo")

    with pytest.raises(QueueNotFound, match="'nothing'"):
        services.create_queue("q", dead_letter="nothing")
    with pytest.raises(InvalidOption, match="exclusive"):
        services.create_queue("q", dead_letter="picky")
    assert not Queue.objects.filter(pk="q").exists()
    assert services.create_queue("q", dead_letter="ordered").dead_letter_id == "ordered"


def test_dead_letters_cannot_go_in_a_circle():
    services.create_queue("a")
    services.create_queue("b", dead_letter="a")
    services.create_queue("c", dead_letter="b")

    with pytest.raises(InvalidOption, match="a → c → b → a"):
        services.update_queue("a", dead_letter="c")
    with pytest.raises(InvalidOption, match="own dead letter"):
        services.update_queue("a", dead_letter="a")
