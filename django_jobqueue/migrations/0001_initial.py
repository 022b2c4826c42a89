"""The tables of django_jobqueue. Jobs lie in one table, partitioned by queue.

What this makes must not change when the code does, so SQL, states and numbers are spelled out here, also where the package
has a name for them.
"""

from typing import Any

import django.db.models.deletion
import django.db.models.lookups
from django.apps import apps as global_apps
from django.db import migrations, models

import django_jobqueue.identifiers
import django_jobqueue.postgresql


class CreatePartitionedModel(migrations.CreateModel):
    """``CreateModel`` for a table that PostgreSQL partitions by list, with the partition key in its primary key."""

    def __init__(self, *args: Any, partition_by: str = "queue_id", **kwargs: Any) -> None:
        self.partition_by = partition_by
        super().__init__(*args, **kwargs)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        model = to_state.apps.get_model(app_label, self.name)
        if not self.allow_migrate_model(schema_editor.connection.alias, model):
            return
        sql, params = schema_editor.table_sql(model)
        table, key = model._meta.db_table, model._meta.pk.column
        columns = sql.replace(" PRIMARY KEY", "", 1).rstrip().removesuffix(")")
        schema_editor.execute(
            f'{columns}, CONSTRAINT "{table}_pkey" PRIMARY KEY ("{key}", "{self.partition_by}"))'
            f' PARTITION BY LIST ("{self.partition_by}")',
            params or None,
        )
        schema_editor.deferred_sql.extend(schema_editor._model_indexes_sql(model))


class RunPostgreSQL(migrations.RunSQL):
    """``RunSQL`` that other databases skip, as they skip the models, which require PostgreSQL."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super().database_backwards(app_label, schema_editor, from_state, to_state)


def create_declared_queues(apps: Any, schema_editor: Any) -> None:
    """Create ``default`` and the queues of the settings, because data migrations that follow may send to them.

    Does nothing if a later migration has yet to add a column; that migration then ends with this step too.
    """
    app_config: Any = global_apps.get_app_config("jobqueue")
    app_config.create_declared_queues(schema_editor.connection.alias, in_migration=True)


# Records of what operators did: the code only adds to them, and these triggers refuse everything else, also of SQL by
# hand. TRUNCATE, which Django's flush uses, is not refused. The doctor runs this again if a trigger is missing.
KEEP_OPERATIONS = """
CREATE OR REPLACE FUNCTION jobqueue_keep_operation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF OLD.finished_at <= statement_timestamp() - interval '365 days' THEN
            RETURN OLD;
        END IF;
        RAISE EXCEPTION 'operation % cannot be deleted', OLD.id USING ERRCODE = 'integrity_constraint_violation',
            HINT = 'The record of what an operator did is kept for 365 days after its end.';
    END IF;
    IF OLD.state = 'done' THEN
        RAISE EXCEPTION 'operation % has ended and cannot be changed', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF (NEW.id, NEW.verb, NEW.operator, NEW.reason, NEW.queue, NEW.schedule, NEW.selection, NEW.snapshot,
            NEW.confirmation, NEW.started_at)
        IS DISTINCT FROM (OLD.id, OLD.verb, OLD.operator, OLD.reason, OLD.queue, OLD.schedule, OLD.selection,
            OLD.snapshot, OLD.confirmation, OLD.started_at)
    THEN
        RAISE EXCEPTION 'who did what, when and why cannot be changed: operation %', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.finished_at IS DISTINCT FROM OLD.finished_at AND NEW.finished_at <> statement_timestamp() THEN
        RAISE EXCEPTION 'operation % can only end now', OLD.id USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    IF NEW.moved < OLD.moved OR NEW.refused < OLD.refused OR NOT NEW.details @> OLD.details THEN
        RAISE EXCEPTION 'the counters and details of operation % can only grow', OLD.id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER jobqueue_keep_operation BEFORE UPDATE OR DELETE ON jobqueue_operation
    FOR EACH ROW EXECUTE FUNCTION jobqueue_keep_operation();
CREATE OR REPLACE FUNCTION jobqueue_keep_operation_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND NOT EXISTS (SELECT 1 FROM jobqueue_operation o WHERE o.id = OLD.operation_id
        AND (o.finished_at > statement_timestamp() - interval '90 days' OR o.finished_at IS NULL))
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the jobs of operation % cannot be changed', OLD.operation_id
        USING ERRCODE = 'integrity_constraint_violation', HINT = 'They are kept for 90 days after its end.';
END $$;
CREATE OR REPLACE TRIGGER jobqueue_keep_operation_batch BEFORE UPDATE OR DELETE ON jobqueue_operationbatch
    FOR EACH ROW EXECUTE FUNCTION jobqueue_keep_operation_batch();
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        RunPostgreSQL(
            sql="CREATE SEQUENCE jobqueue_job_seq AS bigint CACHE 1",
            reverse_sql="DROP SEQUENCE jobqueue_job_seq",
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
                        choices=[("pass", "later jobs pass it"), ("block", "later jobs wait for it")],
                        db_default="pass",
                        max_length=5,
                        verbose_name="delayed head",
                    ),
                ),
                (
                    "on_exhausted",
                    models.CharField(
                        choices=[("block", "the key waits for an operator"), ("skip", "the next job of the key runs")],
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
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
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
                "required_db_vendor": "postgresql",
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
                        db_default=models.Func(
                            output_field=models.BigIntegerField(), template="nextval('jobqueue_job_seq'::regclass)"
                        ),
                        editable=False,
                        verbose_name="sequence number",
                    ),
                ),
                (
                    "position",
                    models.BigIntegerField(
                        db_default=models.Func(
                            output_field=models.BigIntegerField(), template="currval('jobqueue_job_seq'::regclass)"
                        ),
                        editable=False,
                        verbose_name="position",
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "start_after",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
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
                        db_default=models.Func(
                            output_field=django_jobqueue.postgresql.ListField(base_field=models.TextField(), size=None),
                            template="'{}'::text[]",
                        ),
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
                        choices=[("until", "until its time"), ("lane", "another job of its key runs first")],
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
                        db_default=models.Func(
                            output_field=models.BigIntegerField(), template="(pg_current_xact_id()::text::bigint)"
                        ),
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
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="cancel requested at"),
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
                    "error_summary",
                    models.TextField(blank=True, editable=False, null=True, verbose_name="error in one line"),
                ),
                (
                    "reason",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("error", "the handler failed"),
                            ("expired", "it took longer than allowed"),
                            ("heartbeat", "its heartbeat stopped"),
                            ("worker_lost", "its worker was lost"),
                            ("crash_loop", "it crashed its worker too often"),
                            ("exhausted", "attempts used up, skipped by its queue"),
                            ("retry_taken", "another job of its key already waits for a retry"),
                            ("no_handler", "no handler of that name"),
                            ("cancelled", "cancelled"),
                            ("skipped", "skipped by an operator"),
                            ("returned", "returned to the queue before it ended"),
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
                        db_default=models.Func(output_field=models.JSONField(), template="'[]'::jsonb"),
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
                        verbose_name="carried from the sender",
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
                (
                    "claim_number",
                    models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="claim number"),
                ),
                (
                    "moved_xid",
                    models.BigIntegerField(
                        blank=True, editable=False, null=True, verbose_name="transaction of the last change"
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
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
        RunPostgreSQL(
            sql="""
                CREATE TABLE jobqueue_job_default PARTITION OF jobqueue_job DEFAULT WITH (
                    autovacuum_vacuum_scale_factor = 0.01,
                    autovacuum_vacuum_threshold = 2000,
                    autovacuum_vacuum_insert_scale_factor = 0.1,
                    autovacuum_analyze_scale_factor = 0.05,
                    autovacuum_analyze_threshold = 2000,
                    autovacuum_vacuum_cost_delay = 1,
                    vacuum_truncate = false,
                    toast.vacuum_truncate = false
                )
            """,
            reverse_sql="DROP TABLE jobqueue_job_default",
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
                    "schedule",
                    models.CharField(blank=True, db_default="", max_length=100, verbose_name="schedule"),
                ),
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
                (
                    "confirmation",
                    models.UUIDField(blank=True, editable=False, null=True, unique=True, verbose_name="confirmation"),
                ),
                ("cursor", models.JSONField(blank=True, null=True, verbose_name="progress")),
                ("moved", models.PositiveBigIntegerField(db_default=0, verbose_name="moved")),
                ("refused", models.PositiveBigIntegerField(db_default=0, verbose_name="refused")),
                ("details", models.JSONField(blank=True, default=dict, verbose_name="details")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        verbose_name="started at",
                    ),
                ),
                ("finished_at", models.DateTimeField(blank=True, null=True, verbose_name="finished at")),
                ("snapshot", models.TextField(blank=True, db_default="", verbose_name="snapshot of the confirmation")),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "operation",
                "verbose_name_plural": "operations",
                "ordering": ["-started_at"],
                "indexes": [
                    models.Index(
                        condition=models.Q(("state", "running")), fields=["id"], name="jobqueue_operation_running"
                    ),
                    models.Index(
                        condition=models.Q(("queue", ""), _negated=True),
                        fields=["queue", "id"],
                        name="jobqueue_operation_of_queue",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OperationBatch",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "operation",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="batches",
                        to="jobqueue.operation",
                        verbose_name="operation",
                    ),
                ),
                ("first_id", models.UUIDField(verbose_name="smallest id")),
                ("last_id", models.UUIDField(verbose_name="largest id")),
                ("first_seq", models.BigIntegerField(null=True, verbose_name="smallest sequence number")),
                ("last_seq", models.BigIntegerField(null=True, verbose_name="largest sequence number")),
                (
                    "ids",
                    django_jobqueue.postgresql.ListField(base_field=models.UUIDField(), size=None, verbose_name="jobs"),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "batch of an operation",
                "verbose_name_plural": "batches of operations",
                "default_permissions": (),
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
                "required_db_vendor": "postgresql",
                "verbose_name": "queue minute",
                "verbose_name_plural": "queue minutes",
                "ordering": ["-minute", "queue"],
            },
        ),
        migrations.CreateModel(
            name="QueueSpan",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("begins_at", models.DateTimeField(verbose_name="begins at")),
                ("sent", models.PositiveBigIntegerField(db_default=0, verbose_name="sent")),
                ("started", models.PositiveBigIntegerField(db_default=0, verbose_name="started")),
                ("completed", models.PositiveBigIntegerField(db_default=0, verbose_name="completed")),
                ("failed", models.PositiveBigIntegerField(db_default=0, verbose_name="failed")),
                ("retried", models.PositiveBigIntegerField(db_default=0, verbose_name="retried")),
                (
                    "waiting",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="most waiting"),
                ),
                (
                    "blocked_keys",
                    models.PositiveBigIntegerField(blank=True, null=True, verbose_name="most blocked keys"),
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
                        blank=True,
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="spans",
                        to="jobqueue.queue",
                        verbose_name="queue",
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "ten minutes of a queue",
                "verbose_name_plural": "ten minutes of queues",
                "ordering": ["-begins_at", "queue"],
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
                        db_default=models.Func(
                            output_field=django_jobqueue.postgresql.ListField(base_field=models.TextField(), size=None),
                            template="'{}'::text[]",
                        ),
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
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                (
                    "updated_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
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
                "required_db_vendor": "postgresql",
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
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
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
                "required_db_vendor": "postgresql",
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
                        db_default=models.Func(
                            output_field=django_jobqueue.postgresql.ListField(base_field=models.TextField(), size=None),
                            template="'{}'::text[]",
                        ),
                        size=None,
                        verbose_name="queues",
                    ),
                ),
                (
                    "tags",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=models.Func(
                            output_field=django_jobqueue.postgresql.ListField(base_field=models.TextField(), size=None),
                            template="'{}'::text[]",
                        ),
                        size=None,
                        verbose_name="tags",
                    ),
                ),
                (
                    "handlers",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(), blank=True, null=True, size=None, verbose_name="handlers"
                    ),
                ),
                (
                    "lacks",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.TextField(),
                        blank=True,
                        db_default=models.Func(
                            output_field=django_jobqueue.postgresql.ListField(base_field=models.TextField(), size=None),
                            template="'{}'::text[]",
                        ),
                        size=None,
                        verbose_name="lacks",
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
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        verbose_name="started at",
                    ),
                ),
                (
                    "heartbeat_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        verbose_name="last heartbeat",
                    ),
                ),
                ("stopping_at", models.DateTimeField(blank=True, null=True, verbose_name="stopping since")),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="stopped at")),
                (
                    "exit_text",
                    models.CharField(blank=True, db_default="", max_length=255, verbose_name="exit"),
                ),
                ("stats", models.JSONField(blank=True, default=dict, verbose_name="statistics")),
                ("lost_seconds", models.FloatField(blank=True, null=True, verbose_name="lost after (s)")),
                ("stop_grace_seconds", models.FloatField(blank=True, null=True, verbose_name="grace after expiry (s)")),
                (
                    "unlocked_seconds",
                    models.FloatField(blank=True, null=True, verbose_name="lost after (s), without its lock"),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
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
                    models.Func("data", function="pg_column_size", output_field=models.IntegerField()), 67108864
                ),
                name="jobqueue_job_data_size",
            ),
        ),
        migrations.AddConstraint(
            model_name="queueminute",
            constraint=models.UniqueConstraint(fields=("queue", "minute"), name="jobqueue_queue_minute_once"),
        ),
        migrations.AddConstraint(
            model_name="queuespan",
            constraint=models.UniqueConstraint(
                fields=("queue", "begins_at"), name="jobqueue_queue_span_once", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="schedulerun",
            constraint=models.UniqueConstraint(fields=("schedule", "slot"), name="jobqueue_schedule_run_one_per_slot"),
        ),
        migrations.CreateModel(
            name="Maintenance",
            fields=[
                ("id", models.SmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("holder", models.UUIDField(blank=True, editable=False, null=True, verbose_name="holder of the lease")),
                (
                    "lease_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="leased until"),
                ),
                (
                    "began_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last pass began at"),
                ),
                (
                    "ended_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="last pass ended at"),
                ),
                (
                    "counted_until",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="minutes counted until"),
                ),
                (
                    "alerts_at",
                    models.DateTimeField(
                        blank=True, editable=False, null=True, verbose_name="last check for alerts began at"
                    ),
                ),
                (
                    "places",
                    models.JSONField(blank=True, default=dict, editable=False, verbose_name="positions of long sweeps"),
                ),
                (
                    "report",
                    models.JSONField(blank=True, default=dict, editable=False, verbose_name="report of the last pass"),
                ),
                (
                    "timeline",
                    models.CharField(blank=True, db_default="", editable=False, max_length=8, verbose_name="timeline"),
                ),
                (
                    "timeline_at",
                    models.DateTimeField(blank=True, editable=False, null=True, verbose_name="timeline since"),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "maintenance",
                "verbose_name_plural": "health",
            },
        ),
        migrations.CreateModel(
            name="QueueTotal",
            fields=[
                (
                    "queue",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="total",
                        serialize=False,
                        to="jobqueue.queue",
                        verbose_name="queue",
                    ),
                ),
                ("sent", models.PositiveBigIntegerField(db_default=0, verbose_name="sent")),
                ("started", models.PositiveBigIntegerField(db_default=0, verbose_name="started")),
                ("completed", models.PositiveBigIntegerField(db_default=0, verbose_name="completed")),
                ("failed", models.PositiveBigIntegerField(db_default=0, verbose_name="failed")),
                ("retried", models.PositiveBigIntegerField(db_default=0, verbose_name="retried")),
                (
                    "waited",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.BigIntegerField(), blank=True, default=list, size=None, verbose_name="waited"
                    ),
                ),
                (
                    "ran",
                    django_jobqueue.postgresql.ListField(
                        base_field=models.BigIntegerField(), blank=True, default=list, size=None, verbose_name="ran"
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "total of a queue",
                "verbose_name_plural": "totals of queues",
                "ordering": ["queue"],
            },
        ),
        migrations.AddIndex(
            model_name="job",
            index=django_jobqueue.postgresql.BrinIndex(
                autosummarize=True,
                fields=["seq", "created_at", "started_at", "attempt_finished_at", "finalized_at"],
                name="jobqueue_job_ranges",
            ),
        ),
        migrations.AddConstraint(
            model_name="maintenance",
            constraint=models.CheckConstraint(condition=models.Q(("id", 1)), name="jobqueue_maintenance_is_one_row"),
        ),
        migrations.CreateModel(
            name="JobWrite",
            fields=[
                ("id", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="write")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                (
                    "committed_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="committed at",
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "write of jobs",
                "verbose_name_plural": "writes of jobs",
            },
        ),
        migrations.CreateModel(
            name="StagedJob",
            fields=[
                ("row_id", models.BigAutoField(primary_key=True, serialize=False)),
                ("write", models.TextField()),
                ("partition", models.IntegerField()),
                ("attempt", models.BigIntegerField()),
                ("row", models.BigIntegerField()),
                ("number", models.BigIntegerField(null=True)),
                ("real", models.FloatField(null=True)),
                ("text", models.TextField(db_collation="C", null=True)),
                ("job", models.TextField(null=True)),
                ("name", models.TextField(null=True)),
                ("singleton_key", models.TextField(null=True)),
                ("group_key", models.TextField(null=True)),
                ("priority", models.IntegerField(null=True)),
                (
                    "tags",
                    django_jobqueue.postgresql.ListField(base_field=models.TextField(), null=True, size=None),
                ),
                ("data", models.TextField(null=True)),
                ("delay", models.FloatField(null=True)),
                ("start_after", models.DateTimeField(null=True)),
                (
                    "staged_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                    ),
                ),
                ("identity", models.TextField(null=True)),
                ("place", models.BigIntegerField(null=True)),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "staged job",
                "verbose_name_plural": "staged jobs",
                "default_permissions": [],
            },
        ),
        # It lives for seconds: a crash of the server may empty it, and then the write that staged it fails as a whole.
        RunPostgreSQL(
            "ALTER TABLE jobqueue_stagedjob SET UNLOGGED",
            "ALTER TABLE jobqueue_stagedjob SET LOGGED",
        ),
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                ("jobs", models.PositiveBigIntegerField(editable=False, verbose_name="jobs")),
                ("queues", models.TextField(blank=True, default="", editable=False, verbose_name="queues")),
                ("page", models.TextField(editable=False, verbose_name="page")),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "report",
                "verbose_name_plural": "reports",
                "ordering": ["-pk"],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="PendingRelease",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("policy", models.CharField(max_length=20, verbose_name="policy")),
                (
                    "singleton_key",
                    models.CharField(blank=True, db_collation="C", max_length=255, verbose_name="singleton key"),
                ),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "pending release",
                "verbose_name_plural": "pending releases",
                "default_permissions": (),
                "indexes": [models.Index(fields=["queue", "singleton_key"], name="jobqueue_pending_release_lane")],
            },
        ),
        migrations.CreateModel(
            name="SentRow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        editable=False,
                    ),
                ),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "row that was sent",
                "verbose_name_plural": "rows that were sent",
                "default_permissions": [],
                "indexes": [models.Index(fields=["seen_at"], name="jobqueue_sentrow_seen")],
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("channel", models.CharField(max_length=10, verbose_name="channel")),
                ("kind", models.CharField(max_length=10, verbose_name="kind")),
                ("name", models.CharField(max_length=255, verbose_name="name")),
                ("facts", models.JSONField(default=dict, verbose_name="facts")),
                ("latest_at", models.DateTimeField(verbose_name="became worse at")),
                (
                    "began_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        verbose_name="first seen at",
                    ),
                ),
                (
                    "seen_at",
                    models.DateTimeField(
                        db_default=models.Func(output_field=models.DateTimeField(), template="statement_timestamp()"),
                        verbose_name="last seen at",
                    ),
                ),
                ("over_at", models.DateTimeField(blank=True, null=True, verbose_name="over since")),
                ("is_told", models.BooleanField(db_default=False, verbose_name="is told")),
                ("sent_at", models.DateTimeField(blank=True, null=True, verbose_name="last alert at")),
                ("holder", models.UUIDField(blank=True, null=True, verbose_name="claimed by")),
                ("claimed_until", models.DateTimeField(blank=True, null=True, verbose_name="claimed until")),
                (
                    "failures",
                    models.PositiveIntegerField(db_default=0, verbose_name="deliveries that failed in a row"),
                ),
                ("retry_at", models.DateTimeField(blank=True, null=True, verbose_name="next delivery at")),
                ("error", models.TextField(blank=True, db_default="", verbose_name="error of the last delivery")),
            ],
            options={
                "required_db_vendor": "postgresql",
                "verbose_name": "alert",
                "verbose_name_plural": "alerts",
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("channel", "kind", "name"), name="jobqueue_alert_once_per_channel")
                ],
            },
        ),
        RunPostgreSQL(
            KEEP_OPERATIONS,
            """
DROP TRIGGER jobqueue_keep_operation_batch ON jobqueue_operationbatch;
DROP FUNCTION jobqueue_keep_operation_batch();
DROP TRIGGER jobqueue_keep_operation ON jobqueue_operation;
DROP FUNCTION jobqueue_keep_operation();
""",
        ),
        migrations.RunPython(create_declared_queues, migrations.RunPython.noop),
    ]
