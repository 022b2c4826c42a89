"""The doctor: each finding produced for real, and gone after its fix."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone

from django_jobqueue import handlers, services
from django_jobqueue.doctor import Finding, Level, Limits, examine, repair
from django_jobqueue.doctor.findings import ago as ago_text
from django_jobqueue.doctor.findings import counted
from django_jobqueue.doctor.indexes import our_models
from django_jobqueue.doctor.server import clock_skew
from django_jobqueue.maintenance import maintain
from django_jobqueue.models import Maintenance, Schedule, Worker
from django_jobqueue.partitions import DEFAULT
from django_jobqueue.states import Hold, JobState
from example_project.postgres import throwaway
from tests.concurrency.sessions import until
from tests.factories import JobFactory, QueueFactory
from tests.past import ago, reread, rewrite
from tests.services.lives import claimed, sent
from tests.test_doctor_schema import execute, other_session
from tests.test_migrations import rows
from tests.test_plans import explained

EAGER = Limits(transaction_seconds=0)


def find(code: str, limits: Limits | None = None, *, using: str | None = None) -> list[Finding]:
    return [finding for finding in examine(limits=limits, using=using) if finding.code == code]


@pytest.fixture(autouse=True)
def _same_handlers() -> Iterator[None]:
    with handlers.registry.restored():
        yield


@pytest.mark.django_db
def test_a_healthy_queue_has_nothing_to_complain_about(untouched_table):
    assert {finding.level for finding in examine()} <= {Level.NOTICE}


@pytest.mark.django_db
def test_every_finding_says_what_it_means_and_how_to_mend_it(queue, fifo_queue):
    JobFactory(queue=fifo_queue, state=JobState.FAILED)
    sent(queue, name="gone")
    Worker.objects.create(name="w", heartbeat_at=ago(hours=1))

    found = examine()

    assert {"no_worker", "no_handler", "worker_silent", "blocked_keys"} <= {finding.code for finding in found}
    for finding in found:
        assert finding.title
        assert finding.detail
        assert finding.fix
        assert finding.database == "default"
        assert finding.as_dict()["level"] == finding.level.value
    levels = [finding.level for finding in found]
    assert levels == sorted(levels, key=[Level.ERROR, Level.WARNING, Level.NOTICE].index)


# ------------------------------------------------------------------------------------------------------------- server


def test_an_open_transaction_is_found_with_its_pid_and_ended_by_the_fix(transactional_db):  # F24
    with other_session() as other:
        pid = other.info.backend_pid
        other.execute("BEGIN")
        other.execute("SELECT 'my old query' FROM jobqueue_job")

        (finding,) = [one for one in find("open_transaction", EAGER) if one.facts["pid"] == pid]
        assert str(pid) in finding.title
        assert finding.facts["user"] == other.info.user
        assert "my old query" in finding.detail
        assert find("open_transaction") == [], "a young transaction is nothing to worry about"

        rows(finding.fix.rstrip(";"))
        until(lambda: not any(one.facts["pid"] == pid for one in find("open_transaction", EAGER)))


@pytest.mark.django_db
def test_a_very_old_transaction_is_an_error(transactional_db):
    with other_session() as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_sleep(0.05)")

        levels = {one.level for one in find("open_transaction", Limits(transaction_seconds=0.001))}

    assert levels == {Level.ERROR}


def test_open_transactions_are_those_of_other_sessions_of_this_database_the_oldest_first(transactional_db):
    with other_session() as one, other_session() as two, other_session(dbname="postgres") as elsewhere:
        for session in (elsewhere, one, two):
            session.execute("BEGIN")
        pids = [one.info.backend_pid, two.info.backend_pid]
        assert [finding.facts["pid"] for finding in find("open_transaction", EAGER)] == pids

        one.execute("COMMIT")
        one.execute("BEGIN")
        assert [finding.facts["pid"] for finding in find("open_transaction", EAGER)] == pids[::-1]


@pytest.fixture
def server_of_its_own(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A server with settings that tests want and others do not."""
    with throwaway(settings={"max_prepared_transactions": 5}) as server, django_db_blocker.unblock():
        from tests.settings import address

        connections.databases["other"] = {**connections.databases["default"], **address(server.dsn)}
        try:
            call_command("migrate", database="other", verbosity=0)
            yield "other"
        finally:
            connections["other"].close()
            del connections["other"]
            del connections.databases["other"]


@pytest.mark.slow
def test_a_server_s_prepared_transactions_and_its_autovacuum_are_looked_at(server_of_its_own):
    using = server_of_its_own
    with connections[using].cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET autovacuum = off")
        cursor.execute("SELECT pg_reload_conf()")
        for name in ("first", "older", "younger"):
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE jobqueue_worker IN ROW EXCLUSIVE MODE")
            cursor.execute(f"PREPARE TRANSACTION '{name}'")
        cursor.execute("COMMIT PREPARED 'first'")  # the server puts the last one in its place
    with other_session(using, dbname="template1") as session:
        session.execute("BEGIN")
        session.execute("PREPARE TRANSACTION 'of another database'")

    until(lambda: bool(find("autovacuum_off", using=using)))
    found = find("prepared_transaction", EAGER, using=using)
    off = find("autovacuum_off", using=using)

    assert [finding.facts["gid"] for finding in found] == ["older", "younger"]
    assert "older" in found[0].title
    assert find("prepared_transaction", using=using) == [], "they are young"
    assert not off[0].is_repairable
    with connections[using].cursor() as cursor:
        for command in (*(finding.fix for finding in found), *off[0].fix.split("; ")):
            cursor.execute(command)
    assert find("prepared_transaction", EAGER, using=using) == []
    until(lambda: find("autovacuum_off", using=using) == [])


@pytest.mark.django_db
def test_dead_rows_are_looked_for_in_our_tables_and_the_parts_of_the_job_table():
    parts = rows("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'jobqueue_job'::regclass")
    tables = {model._meta.db_table for model in our_models()} - {"jobqueue_job"}

    found = find("dead_rows", Limits(dead_rows=0, dead_share=0))

    assert {finding.facts["table"] for finding in found} == tables | {part for (part,) in parts}


def test_dead_rows_are_found_and_vacuumed(transactional_db, queue):  # F34
    limits = Limits(dead_rows=500)
    execute(f"ALTER TABLE {DEFAULT} SET (autovacuum_enabled = false)")
    services.send_many(queue.name, [{}] * 1000)
    services.purge(queue.name)
    rows("SELECT pg_stat_force_next_flush()")

    until(lambda: bool(find("dead_rows", limits)))
    (finding,) = find("dead_rows", limits)
    (off,) = find("autovacuum_off")

    assert finding.facts["table"] == DEFAULT
    assert finding.facts["dead_rows"] >= 1000
    numbers = [one.facts["dead_rows"] for one in find("dead_rows", Limits(dead_rows=0, dead_share=0))]
    assert numbers == sorted(numbers, reverse=True)
    assert finding.fix == f"VACUUM (ANALYZE) {DEFAULT};"
    assert [one.done for one in repair([finding, off])] == [True, True]
    until(lambda: find("dead_rows", limits) == [])
    assert find("autovacuum_off") == []


@pytest.mark.django_db
def test_sessions_that_cannot_be_seen_are_told(queue):
    with other_session(), other_session(dbname="postgres"):
        execute("CREATE ROLE jobqueue_reader")
        execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO jobqueue_reader")
        here = rows("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename <> ''")[0][0]
        execute("SET LOCAL ROLE jobqueue_reader")

        (finding,) = find("hidden_sessions")  # a transaction sees the same sessions until its end

    assert finding.level == Level.NOTICE
    assert finding.facts["sessions"] == here
    execute("RESET ROLE")
    execute(finding.fix)
    execute("SET LOCAL ROLE jobqueue_reader")
    assert find("hidden_sessions") == []
    execute("RESET ROLE")


def test_the_clocks_are_compared_within_the_time_that_the_answer_took():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    second = timedelta(seconds=1)

    assert clock_skew(noon, noon + second, noon + 2 * second) == 0
    assert clock_skew(noon, noon + 60 * second, noon + 2 * second) == 58
    assert clock_skew(noon, noon - 60 * second, noon + 2 * second) == -60


@pytest.mark.django_db
def test_a_clock_that_differs_is_found():  # F43
    (finding,) = find("clock_skew", Limits(clock_seconds=-1))

    assert finding.level == Level.WARNING
    assert abs(finding.facts["seconds"]) < 1
    assert find("clock_skew") == []


class Pooler:
    """What a session pooler looks like: it passes everything on, and makes up the key for cancelling."""

    KEY = b"K\x00\x00\x00\x0c"  # protocol 3.0: a pid and a secret

    def __init__(self, host: str, port: int) -> None:
        self.server = (host, port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.server)
                for source, target, alter in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass_on, args=(source, target, alter), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, alter: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(65536):
                if alter and self.KEY in data:
                    place = data.index(self.KEY) + len(self.KEY)
                    data = data[:place] + (7).to_bytes(4) + data[place + 4 :]
                    alter = False
                target.sendall(data)

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def pooled(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The same database behind a pooler."""
    direct = connection.settings_dict
    host = str(direct["HOST"])
    if host.startswith("/"):
        pytest.skip("the server has no TCP port")
    pooler = Pooler(host or "localhost", int(direct["PORT"] or 5432))
    connections.databases["pooled"] = {**direct, "HOST": "127.0.0.1", "PORT": str(pooler.port)}
    try:
        with django_db_blocker.unblock():
            yield "pooled"
    finally:
        connections["pooled"].close()
        del connections["pooled"]
        del connections.databases["pooled"]
        pooler.close()


def test_a_pooler_is_found_unless_settings_say_so(pooled, settings):  # F33
    (finding,) = find("pooler", using=pooled)

    assert finding.level == Level.WARNING
    assert "pid 7" in finding.detail
    assert "JOBQUEUE['POOLER'] = True" in finding.fix
    assert find("pooler", using="default") == []
    settings.JOBQUEUE = {"POOLER": True}
    assert find("pooler", using=pooled) == []


def test_a_listener_that_does_not_listen_fills_the_queue_of_notifications(transactional_db):  # F38
    limits = Limits(notify_share=0)
    with other_session() as deaf:
        deaf.execute("LISTEN doctor")
        deaf.execute("BEGIN")
        rows("SELECT pg_notify('doctor', repeat('x', 7000) || n) FROM generate_series(1, 20) n")

        (finding,) = find("notify_queue", limits)
        assert finding.facts["share"] > 0
        assert find("notify_queue") == []

        deaf.execute("COMMIT")
        deaf.execute("UNLISTEN *")
        until(lambda: find("notify_queue", limits) == [])


@pytest.mark.django_db
def test_commits_that_a_crash_would_lose_are_told():
    execute("SET LOCAL synchronous_commit = off")
    (finding,) = find("synchronous_commit_off")
    assert finding.level == Level.NOTICE

    execute("SET LOCAL synchronous_commit = on")
    assert find("synchronous_commit_off") == []


@pytest.mark.django_db
def test_a_look_that_fails_is_told_and_stops_no_other(fifo_queue):
    JobFactory(queue=fifo_queue, state=JobState.FAILED)
    execute("DROP TABLE jobqueue_worker")

    codes = [finding.code for finding in examine()]

    assert "not_looked" in codes
    assert "blocked_keys" in codes
    execute("SELECT 1")  # the transaction is usable


# --------------------------------------------------------------------------------------------------------------- work


@pytest.mark.django_db
def test_waiting_jobs_without_a_handler_are_counted_by_queue_and_name(queue):  # F57
    @handlers.job(queue=queue.name, name="there")
    def there() -> None: ...

    for name in ("gone", "gone", "there", ""):
        sent(queue, name=name)
    sent(queue, name="later", delay=60)
    JobFactory(queue=queue, name="ended", state=JobState.FAILED)

    found = {one.facts["handler"]: (one.facts["waiting"], one.level) for one in find("no_handler")}

    assert found == {"gone": (2, Level.WARNING), "later": (1, Level.WARNING)}
    handlers.unregister(there)
    ours = {one.facts["handler"]: one.level for one in find("no_handler")}
    assert ours[""] == Level.NOTICE, "a project's own loop may fetch jobs without a handler"

    @handlers.job(queue=queue.name, name="there", aliases=["gone", "later"])
    def renamed() -> None: ...

    assert find("no_handler") == []


@pytest.mark.django_db
def test_handlers_that_cannot_be_imported_are_told(settings, monkeypatch, tmp_path):
    (tmp_path / "torn_app").mkdir()
    (tmp_path / "torn_app" / "__init__.py").touch()
    (tmp_path / "torn_app" / "jobs.py").write_text("raise RuntimeError('torn')")
    monkeypatch.syspath_prepend(tmp_path)
    settings.INSTALLED_APPS = [*django_settings.INSTALLED_APPS, "torn_app"]

    (finding,) = find("handlers_broken")

    assert finding.detail == "RuntimeError: torn"


@pytest.mark.django_db
def test_a_silent_worker_is_found_with_what_it_holds_and_recovered_by_the_fix(queue):
    worker = Worker.objects.create(name="w1", host="h", pid=9, heartbeat_at=ago(hours=1))
    Worker.objects.create(name="said goodbye", heartbeat_at=ago(hours=1), stopped_at=ago(hours=1))
    Worker.objects.create(name="alive")
    rewrite(claimed(queue, worker="w1"), incarnation=worker.pk)

    (finding,) = find("worker_silent")

    assert (finding.level, finding.facts["worker"], finding.facts["jobs"]) == (Level.ERROR, "w1", 1)
    assert "silent for 60 min" in finding.title
    assert finding.fix == "manage.py jobs maintain --once"
    services.recover_lost()
    assert find("worker_silent") == []


@pytest.mark.django_db
def test_a_queue_that_nobody_works_on_is_found_if_something_waits(queue):
    assert find("no_worker") == []
    sent(queue)

    (finding,) = find("no_worker")
    assert finding.fix == "manage.py runjobs --queue work"

    Worker.objects.create(name="elsewhere", queues=["other"])
    Worker.objects.create(name="silent", heartbeat_at=ago(hours=1))
    assert len(find("no_worker")) == 1
    Worker.objects.create(name="here", queues=["work"])
    assert find("no_worker") == []


def test_dead_letters_wait_for_an_operator_and_never_for_a_worker(queue):  # B42
    letters = QueueFactory(name="dead", policy="key_strict_fifo")
    JobFactory(queue=letters, singleton_key="a", name="unknown")
    JobFactory(queue=letters, singleton_key="b", state=JobState.FAILED, created_at=ago(hours=3))
    services.update_queue(queue.name, dead_letter="dead")

    (finding,) = find("dead_letters")

    assert (finding.level, finding.fix) == (Level.NOTICE, "manage.py jobs redrive dead")
    assert finding.title == "2 dead letters in 'dead', the oldest 3 h old"
    assert "manage.py jobs list --queue dead" in finding.detail
    assert find("no_worker") == find("no_handler") == find("blocked_keys") == []
    services.pause("dead")
    assert find("queue_paused") == []


@pytest.mark.django_db
def test_a_paused_queue_is_only_a_notice(queue):
    sent(queue)
    services.pause(queue.name)

    (finding,) = find("queue_paused")

    assert finding.level == Level.NOTICE
    assert find("no_worker") == []
    services.resume(queue.name)
    assert find("queue_paused") == []


@pytest.mark.django_db
def test_blocked_keys_are_counted_by_queue(fifo_queue, queue):
    blocker = JobFactory(queue=fifo_queue, state=JobState.FAILED, singleton_key="a", finalized_at=ago(hours=5))
    JobFactory(queue=fifo_queue, state=JobState.EXPIRED, singleton_key="b")
    JobFactory(queue=queue, state=JobState.FAILED)

    (finding,) = find("blocked_keys")

    assert finding.facts["queue"] == fifo_queue.name
    assert finding.facts["keys"] == 2
    assert "5 h" in finding.title
    services.skip([blocker.pk], reason="refunded")
    assert find("blocked_keys")[0].facts["keys"] == 1


@pytest.mark.django_db
def test_jobs_that_run_far_too_long_are_found(queue):
    job = claimed(queue)
    assert find("overdue_jobs") == []
    rewrite(job, expire_at=ago(hours=1))

    (finding,) = find("overdue_jobs")

    assert finding.facts == {"queue": "work", "jobs": 1, "seconds": pytest.approx(3600, abs=60)}
    services.expire()
    assert find("overdue_jobs") == []


@pytest.mark.django_db
def test_maintenance_that_nobody_does_is_found_once_a_worker_should_have():
    worker = Worker.objects.create(name="new")
    assert find("maintenance_late") == []
    Worker.objects.filter(pk=worker.pk).update(started_at=ago(hours=1))

    (finding,) = find("maintenance_late")

    assert "never" in finding.detail
    maintain()
    assert find("maintenance_late") == []
    Maintenance.objects.update(began_at=ago(hours=2))
    assert "120 min" in find("maintenance_late")[0].detail or "2 h" in find("maintenance_late")[0].detail


@pytest.mark.django_db
def test_a_step_of_maintenance_that_failed_is_told_until_it_succeeds(queue):
    execute("ALTER TABLE jobqueue_schedulerun RENAME TO hidden")
    maintain()
    execute("ALTER TABLE hidden RENAME TO jobqueue_schedulerun")

    (finding,) = find("maintenance_failed")

    assert finding.facts["step"] == "forget"
    assert "jobqueue_schedulerun" in finding.detail
    maintain()
    assert find("maintenance_failed") == []


@pytest.mark.django_db
def test_finished_jobs_that_nobody_deletes_are_found(queue):
    job = JobFactory(queue=queue, state=JobState.COMPLETED)
    assert find("not_cleaned_up") == []
    rewrite(job, delete_at=ago(days=2))

    (finding,) = find("not_cleaned_up")

    assert finding.facts["jobs"] == 1
    services.cleanup()
    assert find("not_cleaned_up") == []


@pytest.mark.django_db
def test_finished_jobs_that_nobody_archives_are_found(queue, settings):
    settings.JOBQUEUE = {"ARCHIVE": True}
    rewrite(JobFactory(queue=queue, state=JobState.COMPLETED), delete_at=ago(days=2))

    services.cleanup()
    (finding,) = find("not_archived")

    assert "JOBQUEUE['ARCHIVE']" in finding.detail
    assert find("not_cleaned_up") == []


@pytest.mark.django_db
def test_a_queue_that_deletes_nothing_is_told_once_it_is_large(queue):
    keeping = QueueFactory(name="keeping", delete_after_seconds=0)
    JobFactory(queue=keeping, state=JobState.COMPLETED)
    execute("ANALYZE jobqueue_job")

    (finding,) = find("kept_forever", Limits(kept_rows=1))

    assert finding.facts["queue"] == "keeping"
    assert find("kept_forever") == []


@pytest.mark.django_db
def test_a_stranded_lane_is_told_and_left_alone_by_the_look(fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    (finding,) = find("stranded_lanes")

    assert finding.facts["lanes"] == [{"queue": fifo_queue.name, "key": "a"}]
    assert reread(job).hold == Hold.LANE


def test_a_stranded_lane_is_released_by_the_fix(transactional_db, fifo_queue):
    job = JobFactory(queue=fifo_queue, singleton_key="a", hold=Hold.LANE)

    assert repair(find("stranded_lanes"))[0].done

    assert reread(job).hold is None
    assert find("stranded_lanes") == []


@pytest.mark.django_db
def test_a_schedule_that_is_late_is_found_while_nobody_sends(queue):
    services.create_schedule("hourly", queue.name, "0 * * * *")
    assert find("schedule_late") == []
    Schedule.objects.filter(pk="hourly").update(next_at=timezone.now() - timedelta(hours=3))

    (finding,) = find("schedule_late")

    assert "180 min" in finding.title or "3 h" in finding.title
    services.send_due()
    assert find("schedule_late") == []


@pytest.mark.django_db
@pytest.mark.parametrize("wrong", ({"timezone": "Mars/Base"}, {"cron": "61 * * * *"}, {"handler": "gone"}))
def test_a_schedule_that_cannot_work_is_found_unless_it_is_off(queue, wrong):
    services.create_schedule("nightly", queue.name, "0 2 * * *")
    assert find("schedule_broken") == []
    Schedule.objects.filter(pk="nightly").update(**wrong)

    (finding,) = find("schedule_broken")

    assert finding.facts["schedule"] == "nightly"
    Schedule.objects.filter(pk="nightly").update(enabled=False)
    assert find("schedule_broken") == []


# ------------------------------------------------------------------------------------------------------------- bounded


@contextmanager
def filled_table() -> Iterator[None]:
    """Many rows of every kind, with the worst statistics: those of an empty table."""
    services.create_queue("plain")
    services.create_fifo_queue("ordered")
    execute("ANALYZE jobqueue_job")
    states = {"created": "NULL", "completed": "now()", "failed": "now()", "active": "NULL"}
    for queue, policy, key in (("plain", "standard", "''"), ("ordered", "key_strict_fifo", "'k' || i")):
        for state, finalized in states.items():
            key_of_state = f"'{state}' || {key}" if policy != "standard" else key
            execute(
                "INSERT INTO jobqueue_job (id, queue_id, policy, singleton_key, state, finalized_at, delete_at,"
                f" expire_at) SELECT gen_random_uuid(), '{queue}', '{policy}', {key_of_state}, '{state}', {finalized},"
                f" {finalized}::timestamptz - interval '2 days', now() FROM generate_series(1, 2000) i"
            )
    yield


@pytest.mark.django_db
def test_every_look_reads_along_an_index(untouched_table):
    with filled_table(), explained() as plans:
        found = {finding.code for finding in examine()}

    assert {"blocked_keys", "not_cleaned_up", "no_worker"} <= found
    assert plans.sequential == []
    assert {"jobqueue_job_fetchable", "jobqueue_job_dead", "jobqueue_job_to_delete"} <= plans.indexes


def test_numbers_and_ages_read_well():
    assert [counted(n, "key", most=1000) for n in (0, 1, 5, 1000)] == [
        "0 keys",
        "1 key",
        "5 keys",
        "1,000 or more keys",
    ]
    assert [ago_text(seconds) for seconds in (5, 300, 9000, 10**6)] == ["5 s", "5 min", "2 h", "12 days"]


@pytest.mark.django_db
def test_an_alert_that_could_not_be_delivered_is_found(fifo_queue, settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"webhook": "http://127.0.0.1:1/"}}
    JobFactory(queue=fifo_queue, state=JobState.FAILED)
    services.send_alerts()

    (finding,) = find("alert_undelivered")

    assert finding.level == Level.ERROR
    assert finding.title == "1 alert could not be delivered by webhook"
    assert "Connection refused" in finding.detail
    assert "jobs alerts --test" in finding.fix
