"""The reference of ``manage.py jobs`` lists every subcommand and option."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from django_jobqueue import doctor
from django_jobqueue.cli.answers import MEANINGS
from django_jobqueue.cli.selection import FILTERS
from django_jobqueue.cli.subcommands import SUBCOMMANDS
from django_jobqueue.management.commands.jobs import Command
from tests.test_docs import rows, text_of

from .calling import jobs

PAGE = "reference/commands.md"
DOCTOR = Path(doctor.__file__).parent
LAKE = DOCTOR.parent / "pipeline" / "examining.py"
SOURCES = "\n".join(path.read_text() for path in (*DOCTOR.glob("*.py"), LAKE))
COMMON = {"--json", "--database"}
NAMED = {
    "list", "show", "send", "retry", "skip", "cancel", "delete", "redrive", "purge", "blocked", "why", "pause",
    "resume", "stats", "workers", "schedules", "maintain", "doctor", "archive", "restore", "audit",
    "bulk_send", "analyze", "operations", "resume_operation", "alerts",
}  # fmt: skip


def parsers() -> dict[str, argparse.ArgumentParser]:
    parser = Command().create_parser("manage.py", "jobs")
    (added,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(added.choices)


def flags(parser: argparse.ArgumentParser) -> set[str]:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {option for action in shown for option in action.option_strings if option.startswith("--")} - {"--help"}


def section(name: str) -> str:
    """The section of one subcommand."""
    return re.split(r"^##+ ", text_of(PAGE).split(f"\n### `{name}`\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_all_subcommands_are_there():
    assert set(SUBCOMMANDS) == set(parsers()) == NAMED
    assert set(re.findall(r"^### `(\w+)`$", text_of(PAGE), re.MULTILINE)) == NAMED


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_flag_of_a_subcommand_is_explained(name):
    has = flags(parsers()[name])
    by_filters = {f"--{one}" for one in (*FILTERS, "limit")} if "filters" in section(name) else set()

    assert has >= COMMON
    assert has - COMMON - by_filters - set(re.findall(r"--[a-z-]+", section(name))) == set()
    assert set(re.findall(r"--[a-z-]+", section(name))) <= has, "and none is explained that does not exist"


@pytest.mark.parametrize(
    "name", ("retry", "skip", "cancel", "delete", "redrive", "purge", "archive", "restore", "bulk_send")
)
def test_what_destroys_can_be_tried_dry(name):
    assert "--dry-run" in flags(parsers()[name])


def test_the_exit_codes_are_those_of_the_command():
    assert {int(code): cells[0] for code, cells in rows(PAGE, "Exit codes").items()} == {
        code.value: meaning for code, meaning in MEANINGS.items()
    }


@pytest.mark.parametrize("name", (None, *sorted(NAMED)))
def test_the_help_lists_the_exit_codes(name, capsys):
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "jobs", *([name] if name else []), "--help"])

    said = capsys.readouterr().out
    assert all(
        re.search(rf"^ +{code.value} +{re.escape(text)}$", said, re.MULTILINE) for code, text in MEANINGS.items()
    )


def test_every_finding_of_the_doctor_is_explained():
    codes = set(re.findall(r'(?:Finding\(\s*|_finding\(\s*[\w.]+, )"(\w+)"', SOURCES))
    codes |= {"missing_constraint", "invalid_constraint", "missing_index", "invalid_index"}  # chosen by what is wrong
    codes |= {f"{name}_off" for name in ("fsync", "full_page_writes", "synchronous_commit")}

    assert set(rows("reference/doctor.md")) == codes


def test_no_subcommand_is_wrong_usage(db):
    assert jobs().code == 1  # Django's code for a CommandError that a caller in Python sees
