"""Cuts one condition, lock or order at a time out of the SQL, and looks whether a test fails.

    python -m tests.mutants --minutes 50
    python -m tests.mutants --survivors          judge again what survived, after tests were written
    python -m tests.mutants --only HAND_OVER     only mutants whose line contains this
    python -m tests.mutants --list

What was judged is kept in a folder and not judged again; delete the folder to begin anew. Which tests send which
statement is recorded once; test modules that have changed since are recorded again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from example_project.postgres import throwaway

from .sandbox import NOT_RUN, PACKAGE, ROOT, SURVIVED, Sandbox, Verdict, chosen, import_third_parties, read_record
from .sources import Mutant, mutants_of

FOLDER = Path(tempfile.gettempdir()) / "jobqueue-mutants"
SERVER: dict[str, str | int] = {"max_connections": 200, "log_parameter_max_length": 0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further mutant after this time")
    parser.add_argument("--seconds", type=float, default=40.0, help="of tests for one mutant")
    parser.add_argument("--only", default="", help="part of a mutant's path, name or cut")
    parser.add_argument("--tests", default="tests", help="folders or modules, separated by commas: %(default)s")
    parser.add_argument("--survivors", action="store_true", help="judge again what survived or no test ran")
    parser.add_argument("--list", action="store_true", help="say which mutants there are, and judge none")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the copy and the results: %(default)s")
    given = parser.parse_args()
    if given.list:
        print(*mutants_named(ROOT, given.only), sep="\n")
        return 0
    given.folder.mkdir(parents=True, exist_ok=True)
    import_third_parties()
    return judge_all(given)


def mutants_named(root: Path, only: str) -> list[Mutant]:
    return [mutant for mutant in mutants_of(root, PACKAGE) if only in str(mutant)]


def judge_all(given: argparse.Namespace) -> int:
    results = given.folder / "results.jsonl"
    known = read_results(results)
    deadline = time.monotonic() + given.minutes * 60
    with throwaway(settings=SERVER) as server:
        sandbox = Sandbox(given.folder, server)
        sandbox.prepare()
        record_changes(sandbox, given.folder / "recorded.json", given.tests.split(","))
        record = read_record(sandbox.record)
        mutants = mutants_named(sandbox.tree, given.only)
        for mutant in mutants:
            before = known.get(mutant.key)
            if before is not None and not (given.survivors and before.verdict in (SURVIVED, NOT_RUN)):
                continue
            if time.monotonic() > deadline:
                print("the time is over; the next run goes on from here")
                break
            tests = chosen(mutant, record, given.seconds)
            verdict = sandbox.judge(mutant, tests) if tests else Verdict(mutant.key, NOT_RUN, "", 0, 0.0)
            known[mutant.key] = verdict
            print(f"{verdict.verdict:9}{verdict.seconds:6.1f} s  {mutant}  [{verdict.by or verdict.tests}]", flush=True)
            with results.open("a") as file:
                file.write(json.dumps(asdict(verdict)) + "\n")
    return report(mutants, known)


def record_changes(sandbox: Sandbox, seen_file: Path, places: list[str]) -> None:
    """Record the test modules that have changed since they were recorded; all, when the SQL has."""
    root = sandbox.tree
    every = mutants_of(root, PACKAGE)
    sql = hashlib.sha256("".join(mutant.key for mutant in every).encode()).hexdigest()
    seen = json.loads(seen_file.read_text()) if seen_file.exists() else {}
    for place in places:
        paths = [root / place] if place.endswith(".py") else sorted((root / place).rglob("test_*.py"))
        now = {str(path.relative_to(root)): f"{digest(path)} {sql}" for path in paths}
        changed = [path for path, of_path in now.items() if seen.get(path) != of_path]
        if changed:
            print(f"recording {len(changed)} test modules of {place}", flush=True)
            sandbox.record_marks(every, changed)
            seen |= now
            seen_file.write_text(json.dumps(seen))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_results(path: Path) -> dict[str, Verdict]:
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["key"]: Verdict(**line) for line in lines}


def report(mutants: list[Mutant], known: dict[str, Verdict]) -> int:
    judged = [(mutant, known[mutant.key]) for mutant in mutants if mutant.key in known]
    alive = [(mutant, verdict) for mutant, verdict in judged if verdict.verdict in (SURVIVED, NOT_RUN)]
    counts = Counter(verdict.verdict for _, verdict in judged)
    print(f"\n{len(mutants)} mutants, {len(judged)} judged:", *(f"{n} {kind}" for kind, n in counts.most_common()))
    for mutant, verdict in alive:
        print(f"{verdict.verdict} ({verdict.tests} tests): {mutant}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
