"""Who may import whom, and who may write a job's state."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_jobqueue

PACKAGE = Path(django_jobqueue.__file__).parent
NAME = django_jobqueue.__name__
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "migrations" not in path.parts
}

# The lowest modules, and what each may import of ours.
LOWEST: dict[str, set[str]] = {
    "exceptions": set(),
    "states": set(),
    "policies": {"states"},
    "backoff": set(),
    "encoding": {"exceptions"},
}
# Parts that nothing below them may know.
EDGES = {"admin", "cli", "worker", "pipeline", "tasks", "testing", "management", "templatetags"}
MAY_IMPORT_SPARK = {"pipeline"}
SPARK = {"pyspark", "pyarrow", "adbc_driver_postgresql"}
WORDS_NOT_USED = {"utils", "misc", "common", "core", "helpers"}


def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(), filename=str(MODULES[module]))


def imports(module: str) -> Iterator[str]:
    """The dotted names a module imports, ours without the name of the package; also those inside functions."""
    is_package = MODULES[module].name == "__init__.py"
    home = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [NAME, *home[: len(home) - node.level + 1]] if node.level else []
            start = ".".join([*filter(None, base), *filter(None, [node.module])])
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)


def ours(module: str) -> set[str]:
    """What a module imports of ours, as modules and packages below the package."""
    found = {name.removeprefix(f"{NAME}.") for name in imports(module) if name.startswith(f"{NAME}.")}
    return {name for name in found if name in MODULES}


def part(module: str) -> str:
    return module.split(".")[0]


def test_the_package_is_read_as_it_is():
    assert {"states", "services.send", "models.job", "services"} <= set(MODULES)
    assert "engine.sql" in ours("services.send")
    assert "models" in ours("services.send")
    assert "states" in ours("policies")


@pytest.mark.parametrize("module", LOWEST)
def test_the_lowest_modules_import_nothing_of_ours(module):
    assert ours(module) <= LOWEST[module]


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) in {"models", "querysets"}])
def test_models_know_no_verbs(module):
    assert {part(name) for name in ours(module)}.isdisjoint(
        {"engine", "services", "handlers", "schedules", "maintenance", "doctor"} | EDGES
    )


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) == "services"])
def test_verbs_know_nothing_of_those_who_call_them(module):
    assert {part(name) for name in ours(module)}.isdisjoint({"handlers", "schedules", "maintenance", "doctor"} | EDGES)


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) == "engine"])
def test_the_engine_knows_no_verbs(module):
    above = {"services", "handlers", "schedules", "maintenance", "doctor"} | EDGES
    assert {part(name) for name in ours(module)}.isdisjoint(above)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_imports_private_names_of_another(module):
    nodes = [node for node in ast.walk(tree(module)) if isinstance(node, ast.ImportFrom) and node.level]
    assert not [name for node in nodes for alias in node.names if is_private(name := alias.name)]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) not in EDGES])
def test_nothing_below_knows_the_edges(module):
    assert {part(name) for name in ours(module)}.isdisjoint(EDGES)


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) != "pipeline"])
def test_only_the_pipeline_knows_spark(module):
    assert "pipeline" not in {part(name) for name in ours(module)}
    assert SPARK.isdisjoint(name.split(".")[0] for name in imports(module))


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("pipeline.datasource")] or [None])
def test_the_datasource_imports_no_django(module):
    """Spark runs it in processes of its own, where Django is not loaded."""
    if module is None:
        assert not (PACKAGE / "pipeline").exists()
        return
    assert ours(module) == set()
    assert "django" not in {name.split(".")[0] for name in imports(module)}


@pytest.mark.parametrize("module", MODULES)
def test_a_file_is_named_for_its_concept(module):
    assert WORDS_NOT_USED.isdisjoint(module.split("."))


# ------------------------------------------------------------------------------------------------ who writes a state

OTHERS = [
    module for module in MODULES if part(module) not in {"engine", "services", "exceptions"}
]  # an error has facts of its own


def state_writes(node: ast.AST) -> Iterator[int]:
    """The lines that assign ``something.state`` or call something with ``state=`` that writes."""
    for each in ast.walk(node):
        targets: list[ast.expr] = []
        if isinstance(each, ast.Assign):
            targets = each.targets
        elif isinstance(each, ast.AugAssign | ast.AnnAssign):
            targets = [each.target]
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            writes = each.func.attr in {
                "update",
                "create",
                "get_or_create",
                "update_or_create",
                "bulk_update",
                "aupdate",
            }
            if writes and any(keyword.arg == "state" for keyword in each.keywords):
                yield each.lineno
        elif (
            isinstance(each, ast.Call)
            and ast.unparse(each.func) == "setattr"
            and "'state'" in map(ast.unparse, each.args)
        ):
            yield each.lineno
        yield from (
            target.lineno
            for one in targets
            for target in ast.walk(one)
            if isinstance(target, ast.Attribute) and target.attr == "state" and isinstance(target.ctx, ast.Store)
        )


@pytest.mark.parametrize("module", OTHERS)
def test_only_verbs_write_a_state(module):
    assert list(state_writes(tree(module))) == []


@pytest.mark.parametrize("module", OTHERS)
def test_only_verbs_write_sql_that_changes_jobs(module):
    """Text that updates, deletes or stores jobs; tables are made by the migration and its helpers."""
    texts = [node.value for node in ast.walk(tree(module)) if isinstance(node, ast.Constant) if type(node.value) is str]

    wrote = [
        text for text in texts for verb in ("UPDATE", "DELETE FROM", "INSERT INTO") if f"{verb} jobqueue_job" in text
    ]
    assert wrote == []


@pytest.mark.parametrize(
    "line",
    (
        "job.state = 1",
        "a, job.state = 1, 2",
        "job.state: str = 1",
        "Job.objects.update(state=1)",
        "Job.objects.filter(x=1).update(hold=None, state=1)",
        "setattr(job, 'state', 1)",
        "Job.objects.create(state=1)",
    ),
)
def test_a_write_of_a_state_would_be_found(line):
    assert list(state_writes(ast.parse(line))) == [1]


@pytest.mark.parametrize("line", ("job.state == 1", "Job.objects.filter(state=1)", "state = 1", "x = job.state"))
def test_reading_a_state_is_not_writing_it(line):
    assert list(state_writes(ast.parse(line))) == []


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) == "models"])
def test_models_take_postgresql_s_fields_and_indexes_from_us(module):
    """Django's own would make django.contrib.postgres an app that every project must install, from Django 6.0 on."""
    assert not [name for name in imports(module) if name.startswith("django.contrib.postgres")]
