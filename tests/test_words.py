"""Plain English: words that the glossary replaces, and words that a reader has to guess the meaning of."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_jobqueue"
GLOSSARY = ROOT / "docs" / "glossary.md"
NOT_USED = re.compile(r"\*Not:\s([^*]+)\*")

# ------------------------------------------------------------------------------------------- the voice of all texts

# Each with what to write instead.
UNCLEAR = {
    r"somebody|someone|anybody|anyone|everybody|everyone|(?<!\")nobody(?!\")|whoever|whomever|no one": (
        "who it is: another transaction, a worker, an operator"
    ),
    r"he|him|his|himself|she|her|herself": "the noun",
    r"in hand|in (?:somebody|other|its|their) hands?": "locked, held or claimed",
    r"(?:is|are|was|were|be|been) passed over": "skipped",
    r"work(?:s|ed|ing)? off": "drain; process all waiting jobs",
    r"what waits": "waiting jobs",
    r"can(?:not)? be had|could not be had": "can be imported, installed, found",
    r"(?:is|are|was|were) at it": "is running",
    r"waited for nobody": "stranded",
    r"uncharged": "without using up a retry",
    r"(?:need|wait|call)(?:s|ed|ing)? (?:for )?a person": "needs attention; waits for an operator",
    r"how it goes": "throughput and latency",
    r"goes back|go back|went back|going back|gone back": "returns, is returned",
    r"what was not|such a one|such ones": "the noun",
    r"just now": "the moment: in the last second; at the moment",
    r"took (?:it|them) (?:away|over)": "what happened: was claimed by another worker",
    r"because nobody|although nobody": "the condition itself",
    r"looks? for work|finds? work": "looks for jobs",
}
ALL_UNCLEAR = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in UNCLEAR.items()}
READ_BY_PEOPLE = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt", ".ini", ""}
# This file lists the words.
LISTS_WORDS = {"tests/test_words.py"}


def tracked() -> list[str]:
    """The files of the project; without git, as in an unpacked release, those that lie there."""
    try:
        answer = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = answer.splitlines()
    except (OSError, subprocess.CalledProcessError):
        folders = ("django_jobqueue", "docs", "example_project", "tests")
        names = [str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*")]
        names += [path.name for path in ROOT.iterdir() if path.is_file()]
    return [
        name
        for name in names
        if Path(name).suffix in READ_BY_PEOPLE
        and (ROOT / name).is_file()
        and "__pycache__" not in name
        and "/vendor/" not in name  # written by others
        and "_build" not in name
    ]


def unclear(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, the words and what to write instead, of every place in this text."""
    for pattern, instead in ALL_UNCLEAR.items():
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


@pytest.mark.parametrize("name", [name for name in tracked() if name not in LISTS_WORDS])
def test_texts_are_plain_english(name):
    places = [
        f"{name}:{line}: {words!r}: write {instead}" for line, words, instead in unclear((ROOT / name).read_text())
    ]
    assert not places, "\n" + "\n".join(places)


@pytest.mark.parametrize(
    "text",
    (
        "What somebody else has in hand is passed over, because he is just ending it.",
        "What must happen although nobody asks for it",
        "How often a worker looks for jobs nobody woke it for.",
        "one process works off the backlog",
        "What needs a person",
        "How it goes",
        "'x' cannot be had",
        "jobs waited for nobody; released",
        "Another archive of this database is at it just now",
        "undelivered goes back, uncharged",
        "What waits, finished or blocked, does not slow down a fetch",
    ),
)
def test_an_unclear_text_would_be_found(text):
    assert list(unclear(text))


# ---------------------------------------------------------------------------------------- the words of the glossary

# Names that have one of those words for another reason than to name the concept.
MAY_BE_NAMED: dict[str, str] = {
    "pipeline/archiving.py: _ArchiveLock": "an advisory lock of PostgreSQL",
    "pipeline/row_files.py: _Lines": "lines of a text file",
    "expressions.py: HasSessionLock": "session locks of PostgreSQL",
    "partitions.py": "partitions of PostgreSQL's tables",
    "tasks/results.py": "TaskResult is a class of Django's own tasks API",
    "worker/messages.py": "the messages between the processes of a worker, not jobs",
    "worker/results.py": "how an attempt ended: an output, an error or a decision of the handler",
}


def replaced_words() -> set[str]:
    """The words that the glossary says are not used."""
    texts = [text.replace("\n", " ") for text in NOT_USED.findall(GLOSSARY.read_text())]
    parts = [part for text in texts for part in re.split(r"[,;]", text.rstrip(". "))]
    return {" ".join(part.split()) for part in parts if " only " not in part and " except " not in f" {part.strip()} "}


def words_of(name: str) -> list[str]:
    """The words of a name in CamelCase or snake_case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def has_word(text: list[str], word: str) -> bool:
    """Whether this word, or these words, stand in the text; a plural counts too."""
    wanted = word.split()
    runs = [text[place : place + len(wanted)] for place in range(len(text))]
    return any(run[:-1] == wanted[:-1] and run[-1:] and run[-1] in (wanted[-1], f"{wanted[-1]}s") for run in runs)


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)


def names_of_files_and_classes() -> Iterator[tuple[str, str]]:
    for path in modules():
        place = str(path.relative_to(PACKAGE))
        yield place, path.parent.name if path.stem == "__init__" else path.stem
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield f"{place}: {node.name}", node.name


def log_messages(path: Path) -> Iterator[str]:
    """What is logged, without what the formats fill in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        owner, method = ast.unparse(node.func.value), node.func.attr
        levels = {"debug", "info", "warning", "error", "critical", "exception", "log"}
        if owner.rpartition(".")[2].endswith("logger") and method in levels:
            for each in ast.walk(node.args[1] if method == "log" and len(node.args) > 1 else node.args[0]):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each.value


def test_the_glossary_is_read_as_it_is():
    assert {"enqueue", "time out", "bulk action", "bury", "line", "message"} <= replaced_words()


@pytest.mark.parametrize("word", sorted(replaced_words()))
def test_no_file_or_class_has_a_word_that_the_glossary_replaces(word):
    named = [place for place, name in names_of_files_and_classes() if has_word(words_of(name), word)]
    assert [place for place in named if place not in MAY_BE_NAMED] == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_log_message_has_a_word_that_the_glossary_replaces(path):
    formats = r"%\(?\w*\)?[.\d]*[sdrfg]|dead-letter"  # "dead" is refused "except in dead letter"
    texts = [re.sub(formats, "", text) for text in log_messages(path)]
    assert [(text, word) for text in texts for word in replaced_words() if has_word(words_of(text), word)] == []


def test_every_name_that_is_allowed_exists():
    """So that the list stays short."""
    assert set(MAY_BE_NAMED) <= {place for place, _ in names_of_files_and_classes()}
