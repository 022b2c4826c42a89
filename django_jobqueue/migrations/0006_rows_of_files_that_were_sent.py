from __future__ import annotations

from django.db import migrations, models

import django_jobqueue.expressions


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0005_claim_numbers_and_pending_releases"),
    ]

    operations = [
        migrations.AddField(
            model_name="stagedjob",
            name="identity",
            field=models.TextField(null=True),
        ),
        migrations.AddField(
            model_name="stagedjob",
            name="place",
            field=models.BigIntegerField(null=True),
        ),
        migrations.CreateModel(
            name="SentRow",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                (
                    "seen_at",
                    models.DateTimeField(db_default=django_jobqueue.expressions.StatementTimestamp(), editable=False),
                ),
            ],
            options={
                "verbose_name": "row that was sent",
                "verbose_name_plural": "rows that were sent",
                "default_permissions": [],
                "indexes": [models.Index(fields=["seen_at"], name="jobqueue_sentrow_seen")],
            },
        ),
    ]
