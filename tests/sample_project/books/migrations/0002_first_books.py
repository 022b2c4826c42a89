"""A data migration that sends a job: it runs when the worker starts."""

from django.db import migrations


def add_books(apps, schema_editor):
    from books.jobs import index_books

    Book = apps.get_model("books", "Book")
    Book.objects.using(schema_editor.connection.alias).create(title="Middlemarch")
    index_books.using(using=schema_editor.connection.alias).send()


class Migration(migrations.Migration):
    dependencies = [("books", "0001_initial"), ("jobqueue", "0001_initial")]
    operations = [migrations.RunPython(add_books, migrations.RunPython.noop)]
