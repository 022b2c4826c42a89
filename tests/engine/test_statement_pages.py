"""The statements as they run, written to ``docs/reference/statements``."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobqueue import services
from django_jobqueue.engine import sql
from django_jobqueue.engine.transactions import at
from django_jobqueue.models import Job
from django_jobqueue.partitions import DEFAULT

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "statements"
MODULES = sorted(module.name for module in pkgutil.iter_modules(sql.__path__) if module.name != "parts")
STATEMENT = re.compile(r"\s*(SELECT|WITH|UPDATE|INSERT|DELETE|COPY|BEGIN|SET)\b")


def statements_of(module: ModuleType) -> dict[str, str]:
    """Those that have a name, for the part of the table that most queues share."""
    found: dict[str, str] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name != name.upper():
            continue
        if is_dataclass(value):
            members = {field.name: getattr(value, field.name) for field in fields(value)}
            found |= {f"{name}.{member}": text for member, text in members.items() if isinstance(text, str)}
        elif isinstance(value, str):
            found[name] = value
    return {name: at(DEFAULT, text).strip() for name, text in found.items() if STATEMENT.match(text)}


def reasons_in(module: ModuleType) -> dict[str, str]:
    """The comment above each name, or above the function that makes what has the name."""
    source = Path(str(module.__file__)).read_text()
    lines = source.splitlines()
    reasons: dict[str, str] = {}
    made_by: dict[str, str] = {}
    for node in ast.parse(source).body:
        names = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            made_by |= dict.fromkeys(names, node.value.func.id)
        above = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.startswith("#"):
                break
            above.append(line.lstrip("# "))
        reasons |= dict.fromkeys(names, " ".join(reversed(above)))
    return {name: reason or reasons.get(made_by.get(name, ""), "") for name, reason in reasons.items()}


def page_of(module: ModuleType) -> str:
    reasons = reasons_in(module)
    parts = [f"# {module.__name__.rpartition('.')[2].replace('_', ' ').capitalize()}", str(module.__doc__)]
    for name, text in statements_of(module).items():
        language = "text" if re.search(r"\{\w", text) else "sql"  # places to be filled are no SQL
        parts += [f"## {name}", reasons.get(name, ""), f"```{language}\n{text}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def compare(page: Path, text: str) -> None:
    before = page.read_text() if page.exists() else ""
    page.write_text(text)
    assert before == text, f"{page.name} was written anew: read what changed, and commit it"


@pytest.mark.parametrize("name", MODULES)
def test_the_page_of_each_module_shows_its_statements_as_they_run(name):
    module = importlib.import_module(f"{sql.__name__}.{name}")
    assert statements_of(module), f"{name} has no statement with a name"

    compare(PAGES / f"{name}.md", page_of(module))


@pytest.mark.django_db
def test_the_page_of_composed_statements_shows_what_the_orm_sends(fifo_queue, queue):
    """Candidates with tags, of lanes and without, and the locks of a transition."""
    services.send(fifo_queue.name, singleton_key="a", tags=["red"])
    services.send(queue.name, tags=["red"])
    steps = {
        "The candidates of lanes with tags": lambda: services.fetch(fifo_queue.name, 10, tags=["red"]),
        "The candidates with tags": lambda: services.fetch(queue.name, 10, tags=["red"]),
        "The jobs of a transition": lambda: services.fail(Job.objects.get(queue=queue), "no"),
    }
    text = ["# Composed by the ORM", "What Django composes from querysets, as PostgreSQL gets it."]
    for title, step in steps.items():
        with CaptureQueriesContext(connection) as captured:
            step()
        text.append(f"## {title}")
        for query in captured.captured_queries:
            if "FOR UPDATE" in query["sql"] and '"jobqueue_job"' in query["sql"] + " " and "SELECT" in query["sql"][:8]:
                shown = query["sql"].replace(fifo_queue.name, "orders").replace(queue.name, "mails")
                shown = re.sub(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", "…", shown)
                text.append(f"```sql\n{shown}\n```")

    compare(PAGES / "composed.md", "\n\n".join(text) + "\n")
