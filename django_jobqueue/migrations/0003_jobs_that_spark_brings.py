from __future__ import annotations

from django.db import migrations, models

import django_jobqueue.expressions
import django_jobqueue.postgresql


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0002_what_happened_by_minute"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobWrite",
            fields=[
                ("id", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="write")),
                ("queue", models.CharField(max_length=100, verbose_name="queue")),
                ("jobs", models.BigIntegerField(verbose_name="jobs")),
                (
                    "committed_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="committed at",
                    ),
                ),
            ],
            options={
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
                    models.DateTimeField(db_default=django_jobqueue.expressions.StatementTimestamp(), editable=False),
                ),
            ],
            options={
                "verbose_name": "staged job",
                "verbose_name_plural": "staged jobs",
                "default_permissions": [],
            },
        ),
        # It lives for seconds: a crash of the server may empty it, and then the write that staged it fails as a whole.
        migrations.RunSQL(
            "ALTER TABLE jobqueue_stagedjob SET UNLOGGED",
            "ALTER TABLE jobqueue_stagedjob SET LOGGED",
        ),
    ]
