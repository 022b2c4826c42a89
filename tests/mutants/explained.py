"""Why no test can fail without some conditions: ``explained.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .judging import Mutant

FILE = Path(__file__).with_name("explained.toml")
_LINE = re.compile(r":\d+ ")


@dataclass(frozen=True)
class Explanation:
    mutants: str  # a regular expression for what --list says of them, without the line
    because: str

    def is_of(self, mutant: Mutant) -> bool:
        return bool(re.search(self.mutants, _LINE.sub(" ", str(mutant), count=1)))


def explanations(file: Path = FILE) -> list[Explanation]:
    return [Explanation(**entry) for entry in tomllib.loads(file.read_text())["explained"]]


def is_explained(mutant: Mutant, by: Iterable[Explanation]) -> bool:
    return any(explanation.is_of(mutant) for explanation in by)
