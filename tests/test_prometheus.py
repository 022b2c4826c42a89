"""Metrics: real text, read by Prometheus's own parser."""

from __future__ import annotations

import math
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.models import F
from django.test import RequestFactory
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from django_jobqueue import prometheus, services, statistics
from django_jobqueue.maintenance import maintain
from django_jobqueue.models import Job, Maintenance, QueueMinute, QueueTotal, Schedule, Worker
from django_jobqueue.prometheus import FAMILIES, JobQueueCollector, metrics_text, metrics_view
from django_jobqueue.states import DEAD, Hold, JobState

from .factories import JobFactory
from .past import ago, rewrite
from .services.lives import claimed, sent

pytestmark = pytest.mark.django_db

REFERENCE = Path(__file__).parent.parent / "docs" / "reference" / "metrics.md"

Metrics = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(text: bytes | None = None) -> Metrics:
    found: Metrics = {}
    for family in text_string_to_metric_families((text or metrics_text()).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "Prometheus refuses a sample that is there twice"
            found[key] = sample.value
    return found


def value(name: str, /, **labels: str) -> float:
    return scraped()[name, frozenset(labels.items())]


# ----------------------------------------------------------------------------------------------------- waiting jobs


@pytest.mark.parametrize("name", ("queue", "fifo_queue", "singleton_queue", "stately_queue"))
@pytest.mark.parametrize("state", sorted(set(JobState) - {"completed", "cancelled", "stopped", "unknown_stopped"}))
def test_jobs_are_told_by_queue_and_state(request, name, state):  # R128
    queue = request.getfixturevalue(name)
    for key in "ab":
        JobFactory(queue=queue, state=state, singleton_key=key)

    found = scraped()

    told = {dict(labels)["state"]: number for (name, labels), number in found.items()
            if name == "jobqueue_jobs" and dict(labels)["queue"] == queue.name}  # fmt: skip
    assert told == {**dict.fromkeys(told, 0), state: 2}
    assert len(told) == 7


def test_finished_jobs_are_told_by_counters_only(queue):
    JobFactory(queue=queue, state="completed")

    assert not any(("state", "completed") in labels for _, labels in scraped())


@pytest.mark.parametrize("name", ("queue", "fifo_queue", "singleton_queue"))
def test_what_waits_is_told_by_what_holds_it(request, name):
    queue = request.getfixturevalue(name)
    JobFactory(queue=queue, singleton_key="a"), JobFactory(queue=queue, singleton_key="b")
    services.send(queue.name, singleton_key="c", delay=60)
    if queue.has_lanes:
        JobFactory(queue=queue, singleton_key="a", hold=Hold.LANE)

    assert value("jobqueue_jobs_fetchable", queue=queue.name) == 2
    assert value("jobqueue_jobs_held", queue=queue.name, hold="until") == 1
    assert value("jobqueue_jobs_held", queue=queue.name, hold="lane") == int(queue.has_lanes)


def test_a_queue_without_jobs_is_told_with_zeros(queue):
    assert value("jobqueue_jobs", queue=queue.name, state="created") == 0
    assert value("jobqueue_jobs_fetchable", queue=queue.name) == 0
    assert value("jobqueue_oldest_fetchable_seconds", queue=queue.name) == 0


def test_no_more_are_counted_than_the_collector_may(queue, fifo_queue):
    JobFactory.create_batch(5, queue=queue)
    for key in "abcd":
        JobFactory(queue=fifo_queue, singleton_key=key, state="failed")
    registry = CollectorRegistry()
    registry.register(JobQueueCollector(most=3))

    assert registry.get_sample_value("jobqueue_jobs_fetchable", {"queue": queue.name}) == 3
    assert registry.get_sample_value("jobqueue_blocked_keys", {"queue": fifo_queue.name}) == 3


def test_the_oldest_fetchable_job_is_found_whatever_its_priority(queue):
    for priority, seconds in ((5, 10), (5, 5), (0, 100), (-3, 40)):
        rewrite(
            JobFactory(queue=queue, priority=priority),
            created_at=ago(seconds=seconds),
            start_after=ago(seconds=seconds),
        )
    rewrite(JobFactory(queue=queue, state="active"), created_at=ago(hours=1))

    assert 100 <= value("jobqueue_oldest_fetchable_seconds", queue=queue.name) < 130


def test_a_delayed_job_waits_since_it_was_due(queue):
    rewrite(JobFactory(queue=queue), created_at=ago(days=1), start_after=ago(seconds=20))

    assert 20 <= value("jobqueue_oldest_fetchable_seconds", queue=queue.name) < 50


@pytest.mark.parametrize("state", sorted(DEAD))
def test_blocked_keys_are_told_with_the_time_since_the_first(fifo_queue, queue, state):  # R132
    for key, minutes in (("a", 1), ("b", 3)):
        rewrite(JobFactory(queue=fifo_queue, state=state, singleton_key=key), finalized_at=ago(minutes=minutes))
    JobFactory(queue=queue, state=state)

    assert value("jobqueue_blocked_keys", queue=fifo_queue.name) == 2
    assert 180 <= value("jobqueue_oldest_blocked_key_seconds", queue=fifo_queue.name) < 210
    assert ("jobqueue_blocked_keys", frozenset({("queue", queue.name)})) not in scraped()


def test_paused_queues_are_told(queue, fifo_queue):
    services.pause(queue.name)

    assert value("jobqueue_queue_paused", queue=queue.name) == 1
    assert value("jobqueue_queue_paused", queue=fifo_queue.name) == 0


# ----------------------------------------------------------------------------------------------------- what happened


def test_what_has_happened_is_counted(queue):
    for number in range(3):
        services.complete(claimed(queue))
        services.fail(claimed(queue), "boom", for_good=number > 0)
    _two_minutes_ago()

    maintain()

    told = {name: value(f"jobqueue_{name}_total", queue=queue.name) for name in statistics.COUNTERS}
    assert told == {"sent": 6, "started": 6, "completed": 3, "failed": 2, "retried": 1}


def test_counters_never_go_back_when_minutes_are_forgotten(queue):
    sent(queue)
    _two_minutes_ago()
    maintain()
    QueueMinute.objects.update(minute=F("minute") - timedelta(days=40))
    maintain()

    assert not QueueMinute.objects.filter(sent__gt=0).exists()
    assert value("jobqueue_sent_total", queue=queue.name) == 1


def _two_minutes_ago() -> None:
    moved = ("created_at", "started_at", "assigned_at", "attempt_finished_at", "finalized_at")
    Job.objects.update(**{name: F(name) - timedelta(minutes=2) for name in moved})
    for job in Job.objects.exclude(attempts=[]):
        for attempt in job.attempts:
            attempt["ended"] = job.attempt_finished_at.isoformat()  # type: ignore[union-attr]
        rewrite(job, attempts=job.attempts)


def test_histograms_are_cumulative_and_end_with_everything(queue):
    QueueTotal.objects.create(queue=queue, waited=[1, 0, 2], ran=[0] * 31 + [4])

    found = scraped()

    def bucket(name: str, le: float) -> float:
        (told,) = (
            number for (sample, labels), number in found.items()
            if sample == f"{name}_bucket" and float(dict(labels)["le"]) == le
        )  # fmt: skip
        return told

    assert [bucket("jobqueue_waited_seconds", le) for le in (0.001, 0.002, 0.004, 0.008)] == [1, 1, 3, 3]
    assert bucket("jobqueue_waited_seconds", math.inf) == 3
    assert (bucket("jobqueue_ran_seconds", 2**30 / 1000), bucket("jobqueue_ran_seconds", math.inf)) == (0, 4)
    labels = frozenset({("queue", queue.name)})
    assert found["jobqueue_waited_seconds_count", labels] == 3
    assert found["jobqueue_waited_seconds_sum", labels] == pytest.approx(0.0005 + 2 * 0.003)


# ------------------------------------------------------------------------------------------- workers and schedules


def test_living_workers_are_told_with_their_capacity():
    Worker.objects.create(name="a", capacity=8)
    Worker.objects.create(name="b", capacity=2)
    Worker.objects.create(name="stopped", capacity=100, stopped_at=ago(seconds=1))
    Worker.objects.create(name="silent", capacity=100, heartbeat_at=ago(hours=1))

    assert (value("jobqueue_workers"), value("jobqueue_worker_capacity")) == (2, 10)


def test_late_schedules_are_told(queue):
    lateness = {"on time": -10, "a moment ago": 10, "late": 90, "later": 300, "new": None, "off": 10**5}
    for name, seconds in lateness.items():
        Schedule.objects.create(name=name, queue=queue, cron="* * * * *", enabled=name != "off")
        next_at = None if seconds is None else ago(seconds=seconds)
        Schedule.objects.filter(name=name).update(next_at=next_at)

    assert (value("jobqueue_schedules"), value("jobqueue_schedules_late")) == (5, 2)
    assert 300 <= value("jobqueue_schedule_lateness_seconds") < 330


def test_the_age_and_the_failures_of_maintenance_are_told():
    Maintenance.objects.create(ended_at=ago(seconds=50), report={"steps": [{"error": ""}, {"error": "boom"}]})

    assert 50 <= value("jobqueue_maintenance_age_seconds") < 80
    assert value("jobqueue_maintenance_failed_steps") == 1


def test_without_any_maintenance_yet_its_age_is_not_told():
    assert not any(name.startswith("jobqueue_maintenance") for name, _ in scraped())


# ------------------------------------------------------------------------------------------------ when something fails


def test_a_part_that_takes_too_long_is_left_out_and_told(queue, monkeypatch, caplog):
    def slow(using: str, most: int) -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")
        return ()

    monkeypatch.setattr(prometheus, "STATEMENT_MS", 50)
    monkeypatch.setattr(prometheus, "PARTS", (slow, *prometheus.PARTS))

    found = scraped()

    assert found["jobqueue_scrape_errors", frozenset()] == 1
    assert found["jobqueue_jobs", frozenset({("queue", queue.name), ("state", "created")})] == 0
    assert "metrics are incomplete" in caplog.text


def test_the_limit_of_a_statement_does_not_outlast_the_scrape(queue):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '17s'")
        metrics_text()
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("17s",)


@pytest.mark.django_db(transaction=True)
def test_the_limit_of_a_statement_does_not_outlast_the_scrape_of_its_own(queue):
    metrics_text()

    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    for ask in (metrics_text, JobQueueCollector):
        with pytest.raises(ImproperlyConfigured, match=r"pip install 'django-jobqueue\[prometheus\]'"):
            ask()


# ------------------------------------------------------------------------------------------------------ how it is read


def test_a_collector_can_be_registered_without_a_database(django_db_blocker):
    registry = CollectorRegistry(auto_describe=True)

    with django_db_blocker.block():
        registry.register(JobQueueCollector())

    assert registry.get_sample_value("jobqueue_workers") == 0


def test_the_view_gives_the_text_to_whoever_only_reads(queue):
    answer = metrics_view(RequestFactory().get("/metrics"))

    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=")
    assert ("jobqueue_workers", frozenset()) in scraped(answer.content)
    assert metrics_view(RequestFactory().post("/metrics")).status_code == 405


def test_every_metric_is_in_the_reference_with_its_labels():
    listed = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", REFERENCE.read_text(), re.MULTILINE)

    assert {(name.removesuffix("_total"), kind, labels.replace("`", "").strip()) for name, kind, labels in listed} == {
        (name, family.kind, ", ".join(family.labels)) for name, family in FAMILIES.items()
    }
