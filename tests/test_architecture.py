"""Who may import whom, and who may write a job's state."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_jobqueue

PACKAGE = Path(django_jobqueue.__file__).parent
VERBS = Path(__file__).parent.parent / "docs" / "reference" / "verbs.md"
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
    "process_memory": set(),
    "text": {"exceptions"},
    "encoding": {"exceptions", "text"},
    "outputs": {"encoding", "text"},
    "statistics": set(),
    "counting": set(),
}
# Who may import the engine, and who its module of databases, which runs one statement and knows no jobs.
MAY_IMPORT_ENGINE = {"engine", "services", "worker", "maintenance", "testing"}
MAY_IMPORT_DATABASES = {"doctor", "pipeline"}
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


@pytest.mark.parametrize("module", [module for module in MODULES if part(module) not in MAY_IMPORT_ENGINE])
def test_edges_ask_verbs_and_not_the_engine(module):
    allowed = {"engine.databases"} if part(module) in MAY_IMPORT_DATABASES else set()
    assert {name for name in ours(module) if part(name) == "engine"} <= allowed


def test_services_are_the_chapters_of_the_page_about_verbs():
    titles = re.findall(r"^## (.+)$", VERBS.read_text(), flags=re.MULTILINE)
    chapters = {title.lower().replace(" ", "_") for title in titles} - {"in_async_code"}
    assert {module.split(".")[1] for module in MODULES if module.startswith("services.")} == chapters


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


# ----------------------------------------------------------------------------------------- what a process remembers

# Empty and never filled, except the first, which services.fetch fills.
BARE = {("engine.drafts", "_NO_TAGS"), ("pipeline.lake", "UPGRADES")}

EMPTY = ("{}", "[]", "set()", "dict()", "list()", "deque(", "defaultdict(", "WeakKeyDictionary(", "WeakSet(", "local(")


def bare_memories(node: ast.Module) -> Iterator[str]:
    """Names at the top of a module that begin empty, to be filled later, and those that a function assigns."""
    for each in node.body:
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if ast.unparse(each.value).rpartition(".")[2].startswith(EMPTY):
                yield from map(ast.unparse, targets)
    yield from (name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names)


@pytest.mark.parametrize("module", MODULES)
def test_what_a_process_remembers_has_an_owner(module):
    """An object with a name, which says for how long; see process_memory."""
    assert {(module, name) for name in bare_memories(tree(module))} <= BARE


@pytest.mark.parametrize(
    "line",
    (
        "x = {}",
        "x: dict[str, int] = {}",
        "x = set()",
        "x = weakref.WeakKeyDictionary()",
        "x = defaultdict(list)",
        "x = threading.local()",
        "def f():\n    global x\n    x = 1",
    ),
)
def test_a_memory_without_an_owner_would_be_found(line):
    assert list(bare_memories(ast.parse(line))) == ["x"]


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


# ---------------------------------------------------------------------------------------------------- where SQL stands

# A statement that names one of our tables, and text that begins as a statement.
ON_OUR_TABLES = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|COPY|TABLE|ONLY)\s+\"?jobqueue_\w+")
STATEMENT = re.compile(
    r"\s*\(?(?:SELECT|WITH(?= \w)|INSERT INTO|UPDATE|DELETE FROM|COPY|LISTEN|NOTIFY)\s", re.MULTILINE
)
OUTSIDE_SQL = [module for module in MODULES if not module.startswith("engine.sql")]
# These ask the server about itself: its catalogue, its clock, its transactions; Spark reads jobs without Django.
MAY_ASK_THE_SERVER = {"doctor", "pipeline", "expressions"}
MAY_ASK_THE_CLOCK = {"models.schedule"}  # no model may import the engine


def texts(node: ast.AST) -> Iterator[str]:
    """All strings but docstrings; what an f-string fills in is left out."""
    parts = {id(part) for each in ast.walk(node) if isinstance(each, ast.JoinedStr) for part in each.values}
    parts |= {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        if isinstance(each, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in each.values)
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in parts:
            yield each.value


@pytest.mark.parametrize("module", OUTSIDE_SQL)
def test_sql_on_our_tables_stands_in_engine_sql(module):
    assert [text for text in texts(tree(module)) if ON_OUR_TABLES.search(text)] == []


@pytest.mark.parametrize(
    "module",
    [module for module in OUTSIDE_SQL if part(module) not in MAY_ASK_THE_SERVER and module not in MAY_ASK_THE_CLOCK],
)
def test_statements_stand_in_engine_sql(module):
    assert [text for text in texts(tree(module)) if STATEMENT.match(text)] == []


@pytest.mark.parametrize(
    "line",
    (
        'A = "SELECT 1 FROM jobqueue_job"',
        'A = f"SELECT 1 FROM jobqueue_job WHERE {which}"',
        'def f():\n    run("DELETE FROM jobqueue_worker")',
        'A = "WITH a AS (SELECT 1) UPDATE jobqueue_queue SET name = 1"',
        'A = "SELECT 1 " "FROM x JOIN jobqueue_job_default j ON true"',
    ),
)
def test_a_statement_on_our_tables_would_be_found(line):
    (text,) = texts(ast.parse(line))
    assert ON_OUR_TABLES.search(text)
    assert STATEMENT.match(text)


@pytest.mark.parametrize(
    "line", ('"""FROM jobqueue_job"""', "A = \"SELECT to_regclass('jobqueue_job')\"", 'A = "jobqueue_job_lane"')
)
def test_names_of_tables_and_what_is_said_about_them_are_not_statements_on_them(line):
    assert not [text for text in texts(ast.parse(line)) if ON_OUR_TABLES.search(text)]
