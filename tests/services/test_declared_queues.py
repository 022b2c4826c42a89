"""Queues that settings declare, and defaults that settings change."""

from __future__ import annotations

import logging

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection

from django_jobqueue import services
from django_jobqueue.models import Queue
from django_jobqueue.partitions import partition_name
from django_jobqueue.states import JobState
from tests.past import ago, reread, rewrite

from .lives import sent

pytestmark = pytest.mark.django_db

OTHER_DEFAULTS = {
    "retry_limit": 3,
    "retry_delay": 60,
    "retry_backoff": True,
    "expire_in_seconds": 900,
    "delete_after_seconds": 86_400,
    "delete_failed_after_seconds": 604_800,
}


def migrate() -> None:
    call_command("migrate", verbosity=0)


def test_the_default_queue_exists_without_being_declared():
    queue = Queue.objects.get(pk="default")

    assert (queue.policy, queue.from_code) == ("standard", False)


def test_declared_queues_exist_after_migrate(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"retry_limit": 7}, "orders": {"policy": "fifo"}}}

    migrate()

    assert services.get_queue("mail").retry_limit == 7
    assert services.get_queue("orders").policy == "key_strict_fifo"
    assert set(Queue.objects.filter(from_code=True).values_list("name", flat=True)) == {"mail", "orders"}
    assert Queue.objects.filter(pk="default", from_code=False).exists()


def test_a_declared_queue_follows_its_declaration(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"retry_limit": 7}}}
    migrate()

    settings.JOBQUEUE = {"QUEUES": {"mail": {"retry_limit": 9}}}
    migrate()
    assert services.get_queue("mail").retry_limit == 9

    settings.JOBQUEUE = {}
    migrate()
    assert (services.get_queue("mail").retry_limit, services.get_queue("mail").from_code) == (9, False)


def test_migrating_twice_changes_nothing(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {"retry_limit": 7}}}
    migrate()
    before = Queue.objects.filter(pk="mail").values().get()

    migrate()

    assert Queue.objects.filter(pk="mail").values().get() == before


def test_a_dead_letter_queue_may_be_declared_after_the_queue_that_names_it(settings):  # R094
    settings.JOBQUEUE = {
        "QUEUES": {"a": {"dead_letter": "b"}, "b": {"dead_letter": "c"}, "c": {}, "d": {"dead_letter": "default"}}
    }

    migrate()

    found = dict(Queue.objects.filter(dead_letter__isnull=False).values_list("name", "dead_letter_id"))
    assert found == {"a": "b", "b": "c", "d": "default"}


def test_the_default_queue_can_be_declared_too(settings):
    settings.JOBQUEUE = {"QUEUES": {"default": {"retry_limit": 1}}}

    migrate()

    assert (services.get_queue("default").retry_limit, services.get_queue("default").from_code) == (1, True)


def test_a_declared_queue_keeps_the_policy_it_has(settings, caplog):
    """A changed policy is an error of the system checks, which run before; here jobs may not be lost."""
    caplog.set_level(logging.WARNING)
    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "short"}}}
    migrate()

    settings.JOBQUEUE = {"QUEUES": {"mail": {"policy": "singleton", "retry_limit": 8}}}
    call_command("migrate", verbosity=0, skip_checks=True)

    assert (services.get_queue("mail").policy, services.get_queue("mail").retry_limit) == ("short", 8)


@pytest.mark.django_db(transaction=True)
def test_a_declared_queue_with_a_partition_survives_a_flush(settings):
    """Which is how every ``TransactionTestCase`` ends: the rows go, the tables stay, the queues are declared anew."""
    settings.JOBQUEUE = {"QUEUES": {"own": {"partition": True}}}
    migrate()
    try:
        call_command("flush", interactive=False, verbosity=0)

        job = sent("own")
        assert services.fetch("own") == [job]
    finally:
        drop_partition("own")


def drop_partition(queue: str) -> None:
    if not services.delete_queue(queue):
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {partition_name(queue)}")


def test_defaults_of_queues_can_be_changed(settings):  # R330 R331 R332 R333 R334 R335
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": OTHER_DEFAULTS}

    queue = services.create_queue("q")

    assert {name: getattr(queue, name) for name in OTHER_DEFAULTS} == OTHER_DEFAULTS
    job = reread(sent(queue))
    assert {name: getattr(job, name) for name in OTHER_DEFAULTS} == OTHER_DEFAULTS


def test_changed_defaults_are_copied_into_a_queue_when_it_is_created(settings):  # B4
    before = services.create_queue("before")

    settings.JOBQUEUE = {"QUEUE_DEFAULTS": OTHER_DEFAULTS}
    services.create_queue("before")
    services.create_queue("overrides", retry_limit=None)

    before.refresh_from_db()
    assert before.retry_limit == 2
    assert services.get_queue("overrides").retry_limit is None
    assert services.get_queue("overrides").retry_delay == 60


def test_retries_wait_as_long_as_the_changed_defaults_say(settings):  # R331 R332
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": OTHER_DEFAULTS}
    services.create_queue("q")
    sent("q")

    (job,) = services.fetch("q")
    services.fail(job, "boom")

    now = reread(job)
    assert now.last_retry_at is not None
    assert 60 <= (now.start_after - now.last_retry_at).total_seconds() < 120


def test_completed_and_failed_jobs_are_kept_as_long_as_the_changed_defaults_say(settings):  # R334 R335
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": {**OTHER_DEFAULTS, "retry_limit": 0}}
    services.create_queue("q")
    sent("q"), sent("q")
    done, failed = services.fetch("q", 2)
    services.complete(done)
    services.fail(failed, "boom")

    assert services.cleanup() == {}
    for job, kept in ((done, 86_400), (failed, 604_800)):
        now = reread(job)
        assert now.finalized_at is not None
        assert now.delete_at is not None
        assert (now.delete_at - now.finalized_at).total_seconds() == kept


def test_wrong_defaults_are_a_misconfiguration(settings):
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": {"retry_limit": -1}}

    with pytest.raises(ImproperlyConfigured, match="retry_limit"):
        services.create_queue("q")


def test_the_monitor_looks_every_minute_by_default(settings):  # R114
    from django_jobqueue.conf import get_settings

    assert get_settings().MONITOR_SECONDS == 60
    settings.JOBQUEUE = {"MONITOR_SECONDS": 5}
    assert get_settings().MONITOR_SECONDS == 5


def test_a_default_dead_letter_queue_has_none_itself(settings):
    services.create_queue("dead")
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": {"dead_letter": "dead"}}

    assert services.create_queue("q").dead_letter_id == "dead"
    services.delete_queue("dead")
    assert services.create_queue("dead").dead_letter_id is None


def test_jobs_of_an_old_declaration_are_kept(settings):
    settings.JOBQUEUE = {"QUEUES": {"mail": {}}}
    migrate()
    job = sent("mail")

    settings.JOBQUEUE = {}
    migrate()

    assert reread(rewrite(job, created_at=ago(days=1))).state == JobState.CREATED
