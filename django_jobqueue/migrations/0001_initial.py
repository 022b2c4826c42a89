"""The tables of django_jobqueue. Jobs lie in one table, partitioned by queue."""

import django.db.models.deletion
import django.db.models.lookups
from django.db import migrations, models

import django_jobqueue.expressions
import django_jobqueue.identifiers
import django_jobqueue.postgresql
from django_jobqueue.expressions import SEQUENCE
from django_jobqueue.partitions import DEFAULT, PARENT, WITH_STORAGE, CreatePartitionedModel


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.RunSQL(
            sql=f"CREATE SEQUENCE {SEQUENCE} AS bigint CACHE 1",
            reverse_sql=f"DROP SEQUENCE {SEQUENCE}",
        ),
        migrations.CreateModel(
            name="Queue",
            fields=[
                (
                    "name",
                    models.CharField(
                        db_collation="C",
                        max_length=100,
                        primary_key=True,
                        serialize=False,
                        verbose_name="name",
                    ),
                ),
                (
                    "policy",
                    models.CharField(
                        choices=[
                            ("standard", "standard"),
                            ("short", "short: one waiting"),
                            ("singleton", "singleton: one running"),
                            ("stately", "stately: one waiting, one running"),
                            ("exclusive", "exclusive: one waiting or running"),
                            ("key_strict_fifo", "strict order per key"),
                        ],
                        db_default="standard",
                        max_length=20,
                        verbose_name="policy",
                    ),
                ),
                ("partition", models.BooleanField(db_default=False, verbose_name="own partition")),
                (
                    "description",
                    models.CharField(blank=True, db_default="", max_length=500, verbose_name="description"),
                ),
                (
                    "retry_limit",
                    models.PositiveIntegerField(blank=True, db_default=2, null=True, verbose_name="retry limit"),
                ),
                ("retry_delay", models.PositiveIntegerField(db_default=0, verbose_name="retry delay (s)")),
                ("retry_backoff", models.BooleanField(db_default=False, verbose_name="retry backoff")),
                (
                    "retry_delay_max",
                    models.PositiveIntegerField(blank=True, null=True, verbose_name="longest retry delay (s)"),
                ),
                (
                    "expire_in_seconds",
                    models.PositiveIntegerField(db_default=900, verbose_name="expires in (s)"),
                ),
                (
                    "heartbeat_seconds",
                    models.PositiveIntegerField(blank=True, null=True, verbose_name="heartbeat (s)"),
                ),
                (
                    "retention_seconds",
                    models.PositiveIntegerField(db_default=1209600, verbose_name="keep waiting jobs (s)"),
                ),
                (
                    "delete_after_seconds",
                    models.PositiveIntegerField(db_default=604800, verbose_name="keep finished jobs (s)"),
                ),
                (
                    "delete_failed_after_seconds",
                    models.PositiveIntegerField(db_default=604800, verbose_name="keep failed jobs (s)"),
                ),
                (
                    "warning_queue_size",
                    models.PositiveIntegerField(blank=True, null=True, verbose_name="backlog warning"),
                ),
                (
                    "delayed_head",
                    models.CharField(
                        choices=[("pass", "they pass it"), ("block", "they wait for it")],
                        db_default="pass",
                        max_length=5,
                        verbose_name="delayed head",
                    ),
                ),
                (
                    "on_exhausted",
                    models.CharField(
                        choices=[("block", "the key waits for an operator"), ("skip", "the key goes on")],
                        db_default="block",
                        max_length=5,
                        verbose_name="on exhausted",
                    ),
                ),
                (
                    "paused_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="paused at"),
                ),
                (
                    "from_code",
                    models.BooleanField(db_default=False, editable=False, verbose_name="declared in settings"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="updated at",
                    ),
                ),
                (
                    "dead_letter",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="jobqueue.queue",
                        verbose_name="dead-letter queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "ordering": ["name"],
                "permissions": [("pause_queue", "Can pause and resume queues")],
            },
        ),
        CreatePartitionedModel(
            name="Job",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_jobqueue.identifiers.uuid7,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                        verbose_name="id",
                    ),
                ),
                (
                    "seq",
                    models.BigIntegerField(
                        db_default=django_jobqueue.expressions.NextSeq(),
                        editable=False,
                        verbose_name="sequence number",
                    ),
                ),
                (
                    "position",
                    models.BigIntegerField(
                        db_default=django_jobqueue.expressions.CurrentSeq(),
                        editable=False,
                        verbose_name="position",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "start_after",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        verbose_name="start after",
                    ),
                ),
                ("priority", models.IntegerField(db_default=0, verbose_name="priority")),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="jobs",
                        to="jobqueue.queue",
                        verbose_name="queue",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("created", "created"),
                            ("retry", "retry"),
                            ("unknown_retry", "unknown retry"),
                            ("active", "active"),
                            ("cancelling", "cancelling"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("expired", "expired"),
                            ("cancelled", "cancelled"),
                            ("stopped", "stopped"),
                            ("unknown_stopped", "unknown stopped"),
                        ],
                        db_default="created",
                        editable=False,
                        max_length=20,
                        verbose_name="state",
                    ),
                ),
                (
                    "policy",
                    models.CharField(
                        choices=[
                            ("standard", "standard"),
                            ("short", "short: one waiting"),
                            ("singleton", "singleton: one running"),
                            ("stately", "stately: one waiting, one running"),
                            ("exclusive", "exclusive: one waiting or running"),
                            ("key_strict_fifo", "strict order per key"),
                        ],
                        db_default="standard",
                        editable=False,
                        max_length=20,
                        verbose_name="policy",
                    ),
                ),
                (
                    "singleton_key",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        db_default="",
                        max_length=255,
                        verbose_name="singleton key",
                    ),
                ),
                (
                    "group_key",
                    models.CharField(
                        blank=True, db_collation="C", db_default="", max_length=255, verbose_name="group key"
                    ),
                ),
                (
                    "assignee",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        db_default="",
                        editable=False,
                        max_length=255,
                        verbose_name="worker",
                    ),
                ),
                (
                    "tags",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=django_jobqueue.expressions.EmptyTextList(),
                        size=None,
                        verbose_name="tags",
                    ),
                ),
                (
                    "fingerprint",
                    models.CharField(
                        blank=True,
                        db_collation="C",
                        db_default="",
                        editable=False,
                        max_length=40,
                        verbose_name="fingerprint",
                    ),
                ),
                (
                    "hold",
                    models.CharField(
                        blank=True,
                        choices=[("until", "until its time"), ("lane", "a job of its key goes first")],
                        db_collation="C",
                        editable=False,
                        max_length=5,
                        null=True,
                        verbose_name="hold",
                    ),
                ),
                ("throttle_slot", models.CharField(blank=True, editable=False, max_length=40, null=True)),
                (
                    "lease_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="leased until"),
                ),
                (
                    "delete_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="to be deleted at"),
                ),
                (
                    "finalized_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="finalized at"),
                ),
                (
                    "started_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="started at"),
                ),
                (
                    "attempt_finished_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="attempt ended at"),
                ),
                (
                    "sent_xid",
                    models.BigIntegerField(
                        db_default=django_jobqueue.expressions.CurrentXid(),
                        editable=False,
                        verbose_name="sender's transaction",
                    ),
                ),
                ("attempt", models.IntegerField(db_default=0, editable=False, verbose_name="attempt")),
                (
                    "retry_count",
                    models.IntegerField(db_default=0, editable=False, verbose_name="retry count"),
                ),
                (
                    "retry_limit",
                    models.IntegerField(blank=True, db_default=2, null=True, verbose_name="retry limit"),
                ),
                ("retry_delay", models.IntegerField(db_default=0, verbose_name="retry delay (s)")),
                (
                    "retry_delay_max",
                    models.IntegerField(blank=True, null=True, verbose_name="longest retry delay (s)"),
                ),
                ("expire_in_seconds", models.IntegerField(db_default=900, verbose_name="expires in (s)")),
                (
                    "heartbeat_seconds",
                    models.IntegerField(blank=True, null=True, verbose_name="heartbeat (s)"),
                ),
                (
                    "retention_seconds",
                    models.IntegerField(db_default=1209600, verbose_name="keep while waiting (s)"),
                ),
                (
                    "delete_after_seconds",
                    models.IntegerField(db_default=604800, verbose_name="keep when finished (s)"),
                ),
                (
                    "delete_failed_after_seconds",
                    models.IntegerField(db_default=604800, verbose_name="keep when failed (s)"),
                ),
                (
                    "crashes",
                    models.SmallIntegerField(db_default=0, editable=False, verbose_name="crashes in a row"),
                ),
                ("retry_backoff", models.BooleanField(db_default=False, verbose_name="retry backoff")),
                ("name", models.CharField(blank=True, db_default="", max_length=255, verbose_name="handler")),
                ("data", models.JSONField(blank=True, null=True, verbose_name="data")),
                (
                    "assigned_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="assigned at"),
                ),
                (
                    "expire_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="expires at"),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last heartbeat"),
                ),
                (
                    "last_retry_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last retry at"),
                ),
                (
                    "cancel_requested_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="cancel asked at"),
                ),
                (
                    "first_start_after",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="first start after"),
                ),
                (
                    "claim_xmin",
                    models.BigIntegerField(
                        blank=True, editable=False, null=True, verbose_name="first claim's snapshot"
                    ),
                ),
                (
                    "incarnation",
                    models.UUIDField(blank=True, editable=False, null=True, verbose_name="worker's incarnation"),
                ),
                (
                    "grouped",
                    models.BooleanField(blank=True, editable=False, null=True, verbose_name="claimed by group"),
                ),
                (
                    "progress",
                    models.FloatField(blank=True, editable=False, null=True, verbose_name="progress"),
                ),
                (
                    "progress_text",
                    models.CharField(
                        blank=True,
                        db_default="",
                        editable=False,
                        max_length=255,
                        verbose_name="progress text",
                    ),
                ),
                ("output", models.JSONField(blank=True, editable=False, null=True, verbose_name="output")),
                ("error", models.TextField(blank=True, db_default="", editable=False, verbose_name="error")),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("error", "the handler failed"),
                            ("expired", "it took longer than allowed"),
                            ("heartbeat", "its heartbeat stopped"),
                            ("worker_lost", "its worker vanished"),
                            ("crash_loop", "it took down its worker three times"),
                            ("exhausted", "attempts used up, skipped by its queue"),
                            ("retry_taken", "another job of its key already waits for a retry"),
                            ("no_handler", "no handler of that name"),
                            ("cancelled", "cancelled"),
                            ("skipped", "skipped by an operator"),
                            ("returned", "given back before it ended"),
                        ],
                        db_default="",
                        editable=False,
                        max_length=20,
                        verbose_name="reason",
                    ),
                ),
                (
                    "note",
                    models.TextField(blank=True, db_default="", editable=False, verbose_name="operator's note"),
                ),
                (
                    "attempts",
                    models.JSONField(
                        db_default=django_jobqueue.expressions.EmptyJsonList(),
                        editable=False,
                        verbose_name="failed attempts",
                    ),
                ),
                (
                    "carried",
                    models.JSONField(
                        blank=True,
                        editable=False,
                        null=True,
                        verbose_name="carried from its sender",
                    ),
                ),
                (
                    "source_id",
                    models.UUIDField(blank=True, editable=False, null=True, verbose_name="copied from"),
                ),
                (
                    "source_queue",
                    models.CharField(
                        blank=True, db_default="", editable=False, max_length=100, verbose_name="source queue"
                    ),
                ),
                (
                    "source_key",
                    models.CharField(
                        blank=True, db_default="", editable=False, max_length=255, verbose_name="source key"
                    ),
                ),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "permissions": [
                    ("retry_job", "Can retry jobs"),
                    ("skip_job", "Can skip jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("edit_job_data", "Can retry jobs with edited data"),
                    ("see_job_data", "Can see data and output of jobs"),
                ],
                "get_latest_by": "seq",
            },
        ),
        migrations.RunSQL(
            sql=f"CREATE TABLE {DEFAULT} PARTITION OF {PARENT} DEFAULT {WITH_STORAGE}",
            reverse_sql=f"DROP TABLE {DEFAULT}",
        ),
        migrations.CreateModel(
            name="BlockedKey",
            fields=[],
            options={
                "verbose_name": "blocked key",
                "verbose_name_plural": "blocked keys",
                "ordering": ["finalized_at", "seq"],
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("jobqueue.job",),
        ),
        migrations.CreateModel(
            name="FailureGroup",
            fields=[],
            options={
                "verbose_name": "failure",
                "verbose_name_plural": "failures",
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("jobqueue.job",),
        ),
        migrations.CreateModel(
            name="Operation",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_jobqueue.identifiers.uuid7,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                        verbose_name="id",
                    ),
                ),
                ("verb", models.CharField(max_length=40, verbose_name="verb")),
                (
                    "operator",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="operator"),
                ),
                ("reason", models.TextField(blank=True, db_default="", verbose_name="reason")),
                ("queue", models.CharField(blank=True, db_default="", max_length=100, verbose_name="queue")),
                (
                    "state",
                    models.CharField(
                        choices=[("running", "running"), ("done", "done"), ("stopped", "stopped")],
                        db_default="done",
                        max_length=10,
                        verbose_name="state",
                    ),
                ),
                ("selection", models.JSONField(blank=True, default=dict, verbose_name="selection")),
                ("cursor", models.JSONField(blank=True, null=True, verbose_name="how far it got")),
                ("moved", models.PositiveBigIntegerField(db_default=0, verbose_name="moved")),
                ("refused", models.PositiveBigIntegerField(db_default=0, verbose_name="refused")),
                ("details", models.JSONField(blank=True, default=dict, verbose_name="details")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(), verbose_name="started at"
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
            ],
            options={
                "verbose_name": "operation",
                "verbose_name_plural": "operations",
                "ordering": ["-started_at"],
            },
        ),
        migrations.CreateModel(
            name="QueueMinute",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("minute", models.DateTimeField(verbose_name="minute")),
                ("sent", models.PositiveBigIntegerField(db_default=0, verbose_name="sent")),
                ("started", models.PositiveBigIntegerField(db_default=0, verbose_name="started")),
                ("completed", models.PositiveBigIntegerField(db_default=0, verbose_name="completed")),
                ("failed", models.PositiveBigIntegerField(db_default=0, verbose_name="failed")),
                ("retried", models.PositiveBigIntegerField(db_default=0, verbose_name="retried")),
                (
                    "waiting",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="waiting at its end"),
                ),
                (
                    "blocked_keys",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="blocked keys at its end"),
                ),
                (
                    "waited",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.BigIntegerField(),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="waited",
                    ),
                ),
                (
                    "ran",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.BigIntegerField(),
                        blank=True,
                        default=list,
                        size=None,
                        verbose_name="ran",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="minutes",
                        to="jobqueue.queue",
                        verbose_name="queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "queue minute",
                "verbose_name_plural": "queue minutes",
                "ordering": ["-minute", "queue"],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                (
                    "name",
                    models.CharField(
                        db_collation="C",
                        max_length=100,
                        primary_key=True,
                        serialize=False,
                        verbose_name="name",
                    ),
                ),
                ("cron", models.CharField(max_length=255, verbose_name="cron")),
                ("timezone", models.CharField(db_default="UTC", max_length=64, verbose_name="time zone")),
                (
                    "handler",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="handler"),
                ),
                ("data", models.JSONField(blank=True, null=True, verbose_name="data")),
                ("priority", models.IntegerField(db_default=0, verbose_name="priority")),
                (
                    "singleton_key",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="singleton key"),
                ),
                (
                    "group_key",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="group key"),
                ),
                (
                    "tags",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=django_jobqueue.expressions.EmptyTextList(),
                        size=None,
                        verbose_name="tags",
                    ),
                ),
                ("options", models.JSONField(blank=True, default=dict, verbose_name="job options")),
                (
                    "catch_up",
                    models.CharField(
                        choices=[
                            ("none", "skip them"),
                            ("last", "send the latest"),
                            ("all", "send them all"),
                        ],
                        db_default="last",
                        max_length=4,
                        verbose_name="catch up",
                    ),
                ),
                ("enabled", models.BooleanField(db_default=True, verbose_name="enabled")),
                (
                    "from_code",
                    models.BooleanField(db_default=False, editable=False, verbose_name="declared in settings"),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        blank=True, db_index=True, editable=False, null=True, verbose_name="next slot"
                    ),
                ),
                (
                    "last_slot",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last slot"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="updated at",
                    ),
                ),
                (
                    "queue",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="schedules",
                        to="jobqueue.queue",
                        verbose_name="queue",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "ordering": ["name"],
                "permissions": [("run_schedule", "Can run a schedule now")],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("slot", models.DateTimeField(verbose_name="slot")),
                ("job_id", models.UUIDField(blank=True, null=True, verbose_name="job")),
                ("by_hand", models.BooleanField(db_default=False, verbose_name="run by hand")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="runs",
                        to="jobqueue.schedule",
                        verbose_name="schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "schedule run",
                "verbose_name_plural": "schedule runs",
                "ordering": ["-slot"],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=django_jobqueue.identifiers.uuid7,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                        verbose_name="incarnation",
                    ),
                ),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("host", models.CharField(blank=True, db_default="", max_length=255, verbose_name="host")),
                ("pid", models.PositiveIntegerField(blank=True, null=True, verbose_name="process id")),
                (
                    "queues",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=django_jobqueue.expressions.EmptyTextList(),
                        size=None,
                        verbose_name="queues",
                    ),
                ),
                (
                    "tags",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=django_jobqueue.expressions.EmptyTextList(),
                        size=None,
                        verbose_name="tags",
                    ),
                ),
                ("capacity", models.PositiveIntegerField(db_default=1, verbose_name="capacity")),
                (
                    "version",
                    models.CharField(blank=True, db_default="", max_length=40, verbose_name="version"),
                ),
                (
                    "has_session_lock",
                    models.BooleanField(db_default=False, verbose_name="holds a session lock"),
                ),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(), verbose_name="started at"
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        verbose_name="last heartbeat",
                    ),
                ),
                ("stopping_at", models.DateTimeField(blank=True, null=True, verbose_name="stopping since")),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped at")),
                (
                    "exit_text",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="how it ended"),
                ),
                ("stats", models.JSONField(blank=True, default=dict, verbose_name="statistics")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "ordering": ["name", "started_at"],
                "permissions": [("stop_worker", "Can ask workers to stop")],
                "indexes": [
                    models.Index(
                        condition=models.Q(("stopped_at", None)),
                        fields=["heartbeat_at"],
                        name="jobqueue_worker_live",
                    )
                ],
            },
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("name", ""), _negated=True), name="jobqueue_queue_has_a_name"
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "policy__in",
                        ["exclusive", "key_strict_fifo", "short", "singleton", "standard", "stately"],
                    )
                ),
                name="jobqueue_queue_policy_is_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("heartbeat_seconds", None), ("heartbeat_seconds__gte", 10), _connector="OR"),
                name="jobqueue_queue_heartbeat_at_least_10",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("expire_in_seconds__gte", 1)),
                name="jobqueue_queue_expires_after_1_or_more",
            ),
        ),
        migrations.AddConstraint(
            model_name="queue",
            constraint=models.CheckConstraint(
                condition=models.Q(("retention_seconds__gte", 1)), name="jobqueue_queue_retains_1_or_more"
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                models.F("queue"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("position"),
                condition=models.Q(("state__in", ["created", "retry", "unknown_retry"]), ("hold", None)),
                name="jobqueue_job_fetchable",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ["active", "cancelling"])),
                fields=["assignee", "queue"],
                name="jobqueue_job_running",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("delete_at", None), _negated=True),
                fields=["queue", "delete_at"],
                name="jobqueue_job_to_delete",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("hold", "until")),
                fields=["queue", "start_after"],
                name="jobqueue_job_until",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("policy", "key_strict_fifo"), ("state", "created")),
                fields=["queue", "singleton_key", "hold", "seq"],
                name="jobqueue_job_lane",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("hold", "until"), ("policy", "key_strict_fifo")),
                fields=["queue", "singleton_key", "start_after"],
                name="jobqueue_job_lane_until",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                models.F("queue"),
                models.F("singleton_key"),
                models.OrderBy(models.F("priority"), descending=True),
                models.F("position"),
                condition=models.Q(("hold", "lane"), ("policy__in", ["singleton", "stately"])),
                name="jobqueue_job_lane_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    models.Q(("group_key", ""), _negated=True),
                    (
                        "state__in",
                        ["active", "cancelling", "created", "expired", "failed", "retry", "unknown_retry"],
                    ),
                ),
                fields=["queue", "group_key", "seq"],
                name="jobqueue_job_group",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    models.Q(("group_key", ""), _negated=True),
                    models.Q(
                        (
                            "state__in",
                            [
                                "cancelled",
                                "completed",
                                "created",
                                "expired",
                                "failed",
                                "retry",
                                "stopped",
                                "unknown_retry",
                                "unknown_stopped",
                            ],
                        ),
                        _negated=True,
                    ),
                ),
                fields=["queue", "group_key"],
                name="jobqueue_job_group_running",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(
                    ("group_key", ""),
                    ("policy", "standard"),
                    models.Q(
                        ("hold", "until"),
                        ("state__in", ["expired", "failed", "retry", "unknown_retry"]),
                        _connector="OR",
                    ),
                ),
                fields=["queue", "seq"],
                name="jobqueue_job_no_group_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state", "active"), models.Q(("lease_until", None), _negated=True)),
                fields=["queue", "lease_until"],
                name="jobqueue_job_leased",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("state__in", ["expired", "failed"])),
                fields=["queue", "finalized_at"],
                name="jobqueue_job_dead",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("fingerprint", ""), _negated=True),
                fields=["fingerprint", "seq"],
                name="jobqueue_job_fingerprint",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=django_jobqueue.postgresql.GinIndex(
                condition=models.Q(("tags", []), _negated=True),
                fastupdate=False,
                fields=["tags"],
                name="jobqueue_job_tags",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=django_jobqueue.postgresql.GinIndex(
                condition=models.Q(
                    ("state__in", ["created", "retry", "unknown_retry"]),
                    ("hold", None),
                    models.Q(("tags", []), _negated=True),
                ),
                fastupdate=False,
                fields=["tags"],
                name="jobqueue_job_fetchable_tags",
            ),
        ),
        migrations.AddIndex(
            model_name="job",
            index=django_jobqueue.postgresql.BrinIndex(
                autosummarize=True, fields=["seq", "created_at", "finalized_at"], name="jobqueue_job_ranges"
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("policy", "key_strict_fifo"),
                    ("state__in", ["active", "cancelling", "expired", "failed", "retry", "unknown_retry"]),
                ),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_one_blocker_per_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("policy", "short"), ("state", "created")),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_short_one_waiting",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("policy", "singleton"), ("state__in", ["active", "cancelling"])),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_singleton_one_running",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("policy", "stately"), ("state", "created")),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_stately_one_waiting",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("policy", "stately"), ("state__in", ["retry", "unknown_retry"])),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_stately_one_retrying",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("policy", "stately"), ("state__in", ["active", "cancelling"])),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_stately_one_running",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("policy", "exclusive"),
                    ("state__in", ["active", "cancelling", "created", "retry", "unknown_retry"]),
                ),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_exclusive_one_unfinished",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(
                    ("policy", "standard"),
                    models.Q(("singleton_key", ""), _negated=True),
                    ("state__in", ["active", "cancelling", "created", "retry", "unknown_retry"]),
                ),
                fields=("queue", "singleton_key"),
                name="jobqueue_job_standard_one_per_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.UniqueConstraint(
                condition=models.Q(("throttle_slot", None), _negated=True),
                fields=("queue", "singleton_key", "throttle_slot"),
                name="jobqueue_job_one_per_throttle_slot",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("policy", "key_strict_fifo"), _negated=True),
                    models.Q(("singleton_key", ""), _negated=True),
                    _connector="OR",
                ),
                name="jobqueue_job_ordered_has_a_key",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        (
                            "state__in",
                            ["cancelled", "completed", "expired", "failed", "stopped", "unknown_stopped"],
                        ),
                        ("finalized_at__isnull", False),
                    ),
                    models.Q(
                        models.Q(
                            (
                                "state__in",
                                ["cancelled", "completed", "expired", "failed", "stopped", "unknown_stopped"],
                            ),
                            _negated=True,
                        ),
                        ("finalized_at__isnull", True),
                    ),
                    _connector="OR",
                ),
                name="jobqueue_job_final_has_finalized_at",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("retry_limit", None), ("retry_count__lte", models.F("retry_limit")), _connector="OR"
                ),
                name="jobqueue_job_retries_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("hold", None), ("state__in", ["created", "retry", "unknown_retry"]), _connector="OR"
                ),
                name="jobqueue_job_only_waiting_is_held",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("hold", "lane"), _negated=True),
                    ("policy__in", ["key_strict_fifo", "singleton", "stately"]),
                    _connector="OR",
                ),
                name="jobqueue_job_lane_hold_has_lane",
            ),
        ),
        migrations.AddConstraint(
            model_name="job",
            constraint=models.CheckConstraint(
                condition=django.db.models.lookups.LessThanOrEqual(
                    django_jobqueue.expressions.ColumnSize("data"), 67108864
                ),
                name="jobqueue_job_data_size",
            ),
        ),
        migrations.AddConstraint(
            model_name="queueminute",
            constraint=models.UniqueConstraint(fields=("queue", "minute"), name="jobqueue_queue_minute_once"),
        ),
        migrations.AddConstraint(
            model_name="schedulerun",
            constraint=models.UniqueConstraint(fields=("schedule", "slot"), name="jobqueue_schedule_run_one_per_slot"),
        ),
    ]
