from typing import Any

from django.db import migrations

from django_jobqueue import services


def send(apps: Any, schema_editor: Any) -> None:
    using = schema_editor.connection.alias
    services.send("default", {"by": "send"}, using=using)
    services.send_many("reports", [{"data": {"by": "send_many"}}], using=using)
    queue = apps.get_model("jobqueue", "Queue").objects.using(using).get(pk="own")
    services.send(queue.pk, {"by": "partition"}, using=using)


def undo(apps: Any, schema_editor: Any) -> None:
    services.send("later", {"by": "undo"}, using=schema_editor.connection.alias)


class Migration(migrations.Migration):
    dependencies = [("jobqueue", "0001_initial")]

    operations = [migrations.RunPython(send, undo)]
