"""What happened in each minute, who maintains the queues, and an index of ranges that knows starts and failures too."""

import django.db.models.deletion
from django.db import migrations, models

import django_jobqueue.postgresql


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Maintenance",
            fields=[
                ("id", models.SmallIntegerField(default=1, editable=False, primary_key=True, serialize=False)),
                ("holder", models.UUIDField(blank=True, editable=False, null=True, verbose_name="pass under way")),
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
                    "places",
                    models.JSONField(blank=True, default=dict, editable=False, verbose_name="where long sweeps go on"),
                ),
                (
                    "report",
                    models.JSONField(blank=True, default=dict, editable=False, verbose_name="report of the last pass"),
                ),
            ],
            options={
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
                "verbose_name": "total of a queue",
                "verbose_name_plural": "totals of queues",
                "ordering": ["queue"],
            },
        ),
        migrations.RemoveIndex(
            model_name="job",
            name="jobqueue_job_ranges",
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
    ]
