"""Cuts one condition, lock or order at a time out of the SQL, and looks whether a test fails.

Also changes one thing at a time in the functions that decide what becomes of a job: a comparison, an operand, a number,
a condition, a returned value or a statement.

    python -m tests.mutants --minutes 50
    python -m tests.mutants --survivors          judge again what survived, after tests were written
    python -m tests.mutants --only HAND_OVER     only mutants whose line has a match of this regular expression
    python -m tests.mutants --list

What was judged is kept in a folder and not judged again; delete the folder to begin anew. Which tests send or execute
what is recorded once; test modules that have changed since are recorded again, and all if a mutated module has changed.
Survivors that ``explained.toml`` explains are not listed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from example_project.postgres import throwaway

from . import judging
from .explained import FILE, explanations, is_explained
from .judging import CHOSEN, NOT_RUN, OPTIONS, SURVIVED, Mutant, Options, Verdict, mutants_of, read_results
from .sources import SqlMutant, marked

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "django_jobqueue"
FUNCTIONS = [
    "states.py", "engine/lanes.py", "engine/recovery.py", "engine/retry_decision.py", "engine/transitions.py",
    "services/finish.py", "services/finish_many.py", "worker/outcomes.py",
]  # fmt: skip
FOLDER = Path(tempfile.gettempdir()) / "jobqueue-mutants"
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "_build", "build", "dist", "spark-warehouse", "lake")
WARM_UP = "tests/test_factories.py"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further mutant after this time")
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests for one mutant")
    parser.add_argument("--only", default="", help="a regular expression for what --list says of a mutant")
    parser.add_argument("--tests", default="tests", help="folders or modules, separated by commas: %(default)s")
    parser.add_argument("--survivors", action="store_true", help="judge again what survived or no test ran")
    parser.add_argument("--list", action="store_true", help="say which mutants there are, and judge none")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the copy and the results: %(default)s")
    given = parser.parse_args()
    if given.list:
        print(*mutants_of(ROOT, PACKAGE, FUNCTIONS), sep="\n")
        return 0
    copy = given.folder / "original"
    copied(ROOT, copy)
    mutants = mutants_of(copy, PACKAGE, FUNCTIONS)
    judge(given, copy, mutants)
    known = read_results(given.folder / "results.jsonl")
    return report([mutant for mutant in mutants if re.search(given.only, str(mutant))], known)


def judge(given: argparse.Namespace, copy: Path, mutants: list[Mutant]) -> None:
    """Have pytest do it, in a copy with marked modules and on a server of its own."""
    tree, seen_file = given.folder / "marked", given.folder / "recorded.json"
    copied(copy, tree)
    cuts = [mutant for mutant in mutants if isinstance(mutant, SqlMutant)]
    for path in sorted({mutant.path for mutant in cuts}):
        of_path = [mutant for mutant in cuts if mutant.path == path]
        (tree / path).write_text(marked((copy / path).read_text(), of_path))
    modules = [module for place in given.tests.split(",") for module in test_modules(copy / place)]
    marks = hashlib.sha256("".join(mutant.key for mutant in mutants).encode()).hexdigest()
    seen = json.loads(seen_file.read_text()) if seen_file.exists() else {}
    now = {str(path.relative_to(copy)): f"{digest(path)} {marks}" for path in modules}
    options = Options(
        root=str(copy),
        package=PACKAGE,
        functions=FUNCTIONS,
        record=str(given.folder / "record.jsonl"),
        results=str(given.folder / "results.jsonl"),
        output=str(given.folder / "output.txt"),
        only=given.only,
        seconds=given.seconds,
        deadline=time.time() + given.minutes * 60,
        again=given.survivors,
        recording=[path for path, of_path in now.items() if seen.get(path) != of_path],
    )
    if options.recording:
        print(f"recording {len(options.recording)} test modules", flush=True)
    arguments = ["-p", judging.__name__, "-p", "no:cacheprovider", "-q", "-s", "-m", CHOSEN, "--create-db"]
    with throwaway(settings={"max_connections": 200}) as server:
        ours = {"JOBQUEUE_TEST_DSN": server.dsn, "PYTHONPATH": str(tree), OPTIONS: json.dumps(asdict(options))}
        command = [sys.executable, "-m", "pytest", *arguments, WARM_UP, *now]
        subprocess.run(command, cwd=tree, env={**os.environ, **ours}, check=True)
    seen_file.write_text(json.dumps(seen | now))


def copied(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=NOT_COPIED)


def test_modules(place: Path) -> list[Path]:
    return [place] if place.suffix else sorted(place.rglob("test_*.py"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def report(mutants: Sequence[Mutant], known: dict[str, Verdict]) -> int:
    judged = [(mutant, known[mutant.key]) for mutant in mutants if mutant.key in known]
    counts = Counter(verdict.verdict for _, verdict in judged)
    print(f"\n{len(mutants)} mutants, {len(judged)} judged:", *(f"{n} {kind}" for kind, n in counts.most_common()))
    alive = [(mutant, verdict) for mutant, verdict in judged if verdict.verdict in (SURVIVED, NOT_RUN)]
    reasons = explanations()
    unexplained = [(mutant, verdict) for mutant, verdict in alive if not is_explained(mutant, reasons)]
    print(f"{len(alive) - len(unexplained)} survivors are explained in {FILE.relative_to(ROOT)}")
    for mutant, verdict in unexplained:
        print(f"{verdict.verdict} ({verdict.tests} tests): {mutant}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
