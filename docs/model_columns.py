"""The directive ``model-columns``: the columns of every model, read from the models themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx


class ModelColumns(Directive):
    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for model in apps.get_app_config("jobqueue").get_models():
            if not model._meta.proxy:
                rows = [(field.name, _kind(field), str(field.verbose_name)) for field in model._meta.concrete_fields]
                found.append(nodes.rubric(text=f"{model.__name__} ({model._meta.db_table})"))
                found.append(_table(("Column", "Type", "What it is"), rows))
        return found


def _kind(field: Any) -> str:
    text = type(field).__name__.removesuffix("Field")
    return f"{text}, or null" if field.null else text


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> nodes.table:
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, rows))
    return nodes.table("", group)


def _row(cells: tuple[str, ...]) -> nodes.row:
    return nodes.row("", *_entries(cells))


def _entries(cells: tuple[str, ...]) -> Iterator[nodes.entry]:
    for place, text in enumerate(cells):
        yield nodes.entry("", nodes.paragraph("", "", nodes.literal(text=text) if place == 0 else nodes.Text(text)))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("model-columns", ModelColumns)
    return {"parallel_read_safe": True}
