from __future__ import annotations

from django.db import migrations, models

import django_jobqueue.expressions


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0003_jobs_that_spark_brings"),
    ]

    operations = [
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
                ("jobs", models.PositiveBigIntegerField(editable=False, verbose_name="jobs")),
                ("queues", models.TextField(blank=True, default="", editable=False, verbose_name="queues")),
                ("page", models.TextField(editable=False, verbose_name="page")),
            ],
            options={
                "verbose_name": "report",
                "verbose_name_plural": "reports",
                "ordering": ["-pk"],
                "default_permissions": ("view",),
            },
        ),
    ]
