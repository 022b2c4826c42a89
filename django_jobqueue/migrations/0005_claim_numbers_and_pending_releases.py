from django.db import migrations, models

import django_jobqueue.expressions


class Migration(migrations.Migration):
    dependencies = [
        ("jobqueue", "0004_pages_about_the_past"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="claim_number",
            field=models.BigIntegerField(blank=True, editable=False, null=True, verbose_name="number of its claim"),
        ),
        migrations.AddField(
            model_name="job",
            name="moved_xid",
            field=models.BigIntegerField(
                blank=True, editable=False, null=True, verbose_name="transaction of its last change"
            ),
        ),
        migrations.AddField(
            model_name="maintenance",
            name="timeline",
            field=models.CharField(blank=True, db_default="", editable=False, max_length=8, verbose_name="timeline"),
        ),
        migrations.AddField(
            model_name="maintenance",
            name="timeline_at",
            field=models.DateTimeField(blank=True, editable=False, null=True, verbose_name="timeline since"),
        ),
        migrations.AddField(
            model_name="operation",
            name="snapshot",
            field=models.TextField(blank=True, db_default="", verbose_name="snapshot of the confirmation"),
        ),
        migrations.AddField(
            model_name="worker",
            name="lost_seconds",
            field=models.FloatField(blank=True, null=True, verbose_name="lost after (s)"),
        ),
        migrations.AddField(
            model_name="worker",
            name="stop_grace_seconds",
            field=models.FloatField(blank=True, null=True, verbose_name="grace after expiry (s)"),
        ),
        migrations.AddField(
            model_name="worker",
            name="unlocked_seconds",
            field=models.FloatField(blank=True, null=True, verbose_name="lost after (s), without its lock"),
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
                        db_default=django_jobqueue.expressions.StatementTimestamp(),
                        editable=False,
                        verbose_name="created at",
                    ),
                ),
            ],
            options={
                "verbose_name": "pending release",
                "verbose_name_plural": "pending releases",
                "default_permissions": (),
                "indexes": [models.Index(fields=["queue", "singleton_key"], name="jobqueue_pending_release_lane")],
            },
        ),
    ]
