"""The documentation is true: its examples run, and its tables list what there is."""

from __future__ import annotations

import doctest
import re
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.dispatch import Signal
from django.test import override_settings

import django_jobqueue
from django_jobqueue import exceptions, services, signals, testing
from django_jobqueue.conf import DEFAULTS, FIELDS
from django_jobqueue.management.commands import runjobs
from django_jobqueue.options import QUEUE_OPTIONS, queue_defaults
from django_jobqueue.policies import POLICIES
from django_jobqueue.querysets import JobQuerySet
from django_jobqueue.services.queues import sync_declared
from django_jobqueue.states import BLOCKING, ELIGIBLE, FINAL, FOLLOWS, JobState

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "django_jobqueue"
PAGES = [ROOT / "README.md", *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)]

BLOCK = re.compile(
    r"^```(?P<kind>python|pycon)\n(?P<code>.*?)^```$|^<!-- check\n(?P<check>.*?)^-->$", re.MULTILINE | re.DOTALL
)
NOT_RUN = ("<!-- no-run -->", "% no-run")
ROW = re.compile(r"^\| (?P<cells>.+) \|$", re.MULTILINE)
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    kind: str
    code: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """What a page runs: its examples, and what it checks in a comment that readers do not see."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        if not text[: match.start()].rstrip().endswith(NOT_RUN):
            code = match["code"] or match["check"]
            yield Block(match["kind"] or "python", code, text[: match.start()].count("\n") + 1)


class Reader:
    """Runs a page from top to bottom, as a reader would who types it in; ``names`` are defined before."""

    def __init__(self, page: Path, settings: ExitStack, **names: Any) -> None:
        self.page, self.settings = str(page), settings
        self.names: dict[str, Any] = {"__name__": "page", **names}

    def run(self, block: Block) -> None:
        getattr(self, f"run_{block.kind}")(block)
        declared = self.names.pop("JOBQUEUE", None)
        if declared is not None:  # what settings.py and migrate do
            self.settings.enter_context(override_settings(JOBQUEUE=declared))
            sync_declared(using="default")

    def run_python(self, block: Block) -> None:
        exec(compile("\n" * block.line + block.code, self.page, "exec"), self.names)

    def run_pycon(self, block: Block) -> None:
        examples = doctest.DocTestParser().get_doctest(block.code, {}, self.page, self.page, block.line)
        examples.globs = self.names
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=LOOSE, verbose=False)
        runner.run(examples, out=said.append, clear_globs=False)
        if said:
            pytest.fail("".join(said), pytrace=False)


def needs_spark(page: Path) -> bool:
    """Whether tests/pipeline/test_pages.py runs this page instead."""
    return "<!-- needs spark -->" in page.read_text()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks(page)) and not needs_spark(page)], ids=lambda page: page.stem
)
def test_the_examples_run(page):
    with ExitStack() as settings:
        reader = Reader(page, settings)
        for block in blocks(page):
            reader.run(block)


def test_what_a_page_says_and_does_not_do_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("""
```python
a = 1
```
<!-- no-run -->
```python
a = 2
```
% no-run

```python
a = 3
```
<!-- check
assert a == 1
-->
```pycon
>>> a
2
```
""")

    kinds = [(block.kind, block.line) for block in blocks(page)]
    reader = Reader(page, ExitStack())
    *fine, wrong = blocks(page)
    for block in fine:
        reader.run(block)

    assert kinds == [("python", 2), ("python", 14), ("pycon", 17)]
    with pytest.raises(pytest.fail.Exception, match=r"Got:\n *1"):
        reader.run(wrong)


def text_of(name: str) -> str:
    return (DOCS / name).read_text()


def rows(name: str, heading: str = "") -> dict[str, list[str]]:
    """The table under a heading of a page: its first column without backquotes → the others."""
    text = text_of(name)
    if heading:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    table = [[cell.strip() for cell in match["cells"].split(" | ")] for match in ROW.finditer(text)]
    return {cells[0].strip("`"): cells[1:] for cells in table[2:]}  # after the head and its line


def test_every_setting_is_listed_with_its_default_and_what_it_is_for():
    listed = rows("reference/settings.md", "Settings")

    assert listed == {name: [f"`{shown(DEFAULTS[name])}`", field.metadata["doc"]] for name, field in FIELDS.items()}


def shown(default: Any) -> str:
    return repr(list(default)) if isinstance(default, tuple) else repr(default).replace("mappingproxy({})", "{}")


def test_every_option_of_a_queue_is_listed_with_its_default():
    listed = rows("reference/settings.md", "Options of a queue")

    assert {name: cells[0] for name, cells in listed.items()} == {
        name: f"`{queue_defaults()[name]!r}`" for name in QUEUE_OPTIONS
    }


def test_every_error_is_explained_with_its_code():
    errors = {
        name: error.code
        for name, error in vars(exceptions).items()
        if isinstance(error, type) and issubclass(error, exceptions.JobQueueError)
    }

    listed = rows("reference/errors.md")

    assert {name: cells[0].strip("`") for name, cells in listed.items()} == errors
    assert all(len(cells) == 3 and all(cells) for cells in listed.values())  # code, cause, what to do


def test_every_system_check_is_explained():
    sources = "".join((PACKAGE / name).read_text() for name in ("checks.py", "conf.py", "tasks/backend.py"))

    assert set(rows("reference/checks.md")) == set(re.findall(r"jobqueue\.[EWI]\d{3}", sources))


def test_the_table_of_states_is_the_state_machine():
    listed = rows("reference/states.md", "What follows what")

    assert {state: set(re.findall(r"`(\w+)`", cells[0])) for state, cells in listed.items()} == {
        state.value: {following.value for following in follows} for state, follows in FOLLOWS.items()
    }


def test_the_table_of_states_says_what_each_state_does():
    listed = rows("reference/states.md", "The states")

    assert {state: [cell[:3].rstrip(",") == "yes" for cell in cells[1:]] for state, cells in listed.items()} == {
        state.value: [state in ELIGIBLE, state in BLOCKING, state in FINAL] for state in JobState
    }


def test_every_verb_has_its_place_in_the_reference():
    text = text_of("reference/verbs.md")

    assert [name for name in services.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_policy_is_in_the_readme_and_in_the_guide():
    assert [name for name in POLICIES if f"| `{name}` |" not in (ROOT / "README.md").read_text()] == []
    assert [name for name in POLICIES if f"| `{name}` |" not in text_of("howto/choose-a-policy.md")] == []


# ------------------------------------------------------------------------------------------------------------- links

# Where the package index shows the README, a relative link leads nowhere.
IN_REPOSITORY = re.compile(
    r"https://(?:github\.com|raw\.githubusercontent\.com)/[\w-]+/[\w-]+/(?:blob/)?main/(?P<file>[^)#]+)"
)
IN_DOCUMENTATION = re.compile(r"https://django-jobqueue\.readthedocs\.io/en/latest/(?P<page>[^)#]+)\.html")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


def links(name: str) -> list[str]:
    return LINK.findall((ROOT / name).read_text())


def named_file(link: str) -> Path | None:
    """The file of this project that an absolute link names, if it names one."""
    if found := IN_REPOSITORY.fullmatch(link):
        return ROOT / found["file"]
    if found := IN_DOCUMENTATION.fullmatch(link):
        return DOCS / f"{found['page']}.md"
    return None


def test_links_of_the_readme_are_absolute_and_name_files_that_exist():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    named = {link: file for link in links("README.md") if (file := named_file(link)) is not None}

    assert {"docs/images/admin-overview.png", "CHANGELOG.md", "docs/tutorial/five-steps.md"} <= {
        str(file.relative_to(ROOT)) for file in named.values()
    }
    assert [link for link, file in named.items() if not file.is_file()] == []
    assert set(links("README.md")) - set(named) <= set(urls.values())


@pytest.mark.parametrize("name", ("CONTRIBUTING.md", "CHANGELOG.md"))
def test_links_of_pages_outside_the_documentation_name_files_that_exist(name):
    relative = [link.partition("#")[0] for link in links(name) if "://" not in link]

    assert [link for link in relative if not (ROOT / link).exists()] == []


def test_every_package_is_in_the_map_for_contributors():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("| Package | Holds | May import |")[1].split("\n\n")[0]
    mapped = {name for row in table.splitlines()[2:] for name in re.findall(r"`([\w/]+)`", row.split(" | ")[0])}
    packages = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")}

    assert packages - mapped == {".", "management"}


def test_a_dead_letter_is_advised_for_stately_jobs_that_need_retries():  # R091
    advice = text_of("howto/choose-a-policy.md").split("## Stately queues and retries")[1]

    assert "dead_letter" in advice


def test_heartbeat_and_expiration_are_compared_and_values_recommended():  # R115
    compared = rows("howto/heartbeat-and-expiration.md", "What each of them judges")
    recommended = rows("howto/heartbeat-and-expiration.md", "Recommended values")

    assert {"What it asks", "Who acts", "What it costs the job"} <= set(compared)
    assert [kind.split(",")[0] for kind in recommended] == ["quick", "medium", "long", "very long"]


def test_blocked_keys_are_presented_for_monitoring_and_alerting():  # R132
    text = text_of("howto/monitor-blocked-keys.md")

    assert "blocked_keys(" in text
    assert "alert" in text


def test_there_is_an_example_with_dead_letter_consumer_loop_and_maintenance():  # R391
    text = text_of("howto/run-a-worker-loop.md")

    for word in ("dead_letter", "fetch(", "complete(", "fail(", "expire()", "recover_lost()", "cleanup()"):
        assert word in text


def test_there_are_tips_for_keeping_a_queue_fast():  # R392
    text = text_of("howto/keep-it-fast.md")

    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == [
        "Batch size", "Finding jobs by their data", "Clean up", "Retention", "Watch the depth", "Priorities",
    ]  # fmt: skip


def test_every_model_is_in_the_reference():
    ours = {model.__name__ for model in apps.get_app_config("jobqueue").get_models()}

    assert set(rows("reference/models.md", "What there is")) == ours


def test_every_adjective_that_the_reference_names_exists():
    said = set(re.findall(r"`(\w+)\(", text_of("reference/models.md").split("## Querysets")[1]))

    assert said
    assert said <= set(dir(JobQuerySet))


def test_every_signal_is_in_the_reference():
    ours = {name for name, value in vars(signals).items() if isinstance(value, Signal)}

    assert set(rows("reference/signals.md")) == ours


def test_what_handlers_and_tests_use_is_in_the_reference():
    handling, testing_page = text_of("reference/handlers.md"), text_of("reference/testing.md")

    assert [name for name in django_jobqueue.__all__ if f"handlers.{name}\n" not in handling] == []
    assert [name for name in testing.__all__ if name not in testing_page] == []


def test_every_extra_is_in_the_reference():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    listed = {name for names in rows("reference/extras.md") for name in re.findall(r"\w+", names)}
    assert listed == set(project["optional-dependencies"])


def test_every_flag_of_the_worker_is_in_the_guide():
    parser = runjobs.Command().create_parser("manage.py", "runjobs")
    django_s = {"version", "settings", "pythonpath", "traceback", "no_color", "force_color", "skip_checks"}
    ours = {action.option_strings[0] for action in parser._actions if action.dest not in {*django_s, "help"}}

    assert {flag.split()[0] for flag in rows("howto/run-workers.md", "Flags")} == ours


@pytest.mark.parametrize("folder", ("howto", "explanation"))
def test_every_page_has_its_place_in_the_index(folder):
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", text_of(f"{folder}/index.md")))

    assert linked == {page.name for page in (DOCS / folder).glob("*.md")} - {"index.md"}


def test_every_page_is_short():
    generated = {*(DOCS / "reference" / "statements").glob("*.md"), DOCS / "reference" / "requirements.md"}
    written = [page for page in PAGES if page not in generated]
    assert [page.name for page in written if len(page.read_text().splitlines()) > 200] == []
