"""The output of the play: lines that stay, and on a terminal, below them, a board that is redrawn."""

from __future__ import annotations

import os
import textwrap
import threading
from collections.abc import Sequence
from typing import TextIO

RESET, BOLD, DIM, RED, GREEN, YELLOW = "0", "1", "2", "31", "32", "33"
PALETTE = ("36", "35", "34", "33")  # one colour per customer
WIDTH = 100


class Screen:
    """Prints lines and the board; threads may write at any time. Without a terminal it prints only plain lines."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.has_colour = self.is_live and not os.environ.get("NO_COLOR")
        self._board: Sequence[str] = ()
        self._lock = threading.RLock()

    def paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[{RESET}m" if self.has_colour else text

    def say(self, text: str = "") -> None:
        with self._lock:
            self._wipe()
            self.stream.write(f"{text}\n")
            self._draw()

    def title(self, text: str) -> None:
        self.say()
        self.say(self.paint(text, BOLD))

    def shell(self, call: str, answer: object) -> None:
        """Show a call of the API as you would type it, and its result."""
        self.say(self.paint(f"  >>> {call}", BOLD))
        for line in textwrap.wrap(f"{answer}", WIDTH - 2) or [""]:
            self.say(f"  {line}")

    def board(self, lines: Sequence[str]) -> None:
        """Show these lines below all others, in place of the previous board."""
        with self._lock:
            self._wipe()
            self._board = list(lines) if self.is_live else ()
            self._draw()

    def _wipe(self) -> None:
        if self._board:
            self.stream.write(f"\x1b[{len(self._board)}A\x1b[J")

    def _draw(self) -> None:
        self.stream.writelines(f"{line}\n" for line in self._board)
        self.stream.flush()
