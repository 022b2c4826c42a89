"""How far a long subcommand has come, on the standard error, so that the answer stays clean."""

from __future__ import annotations

import time
from typing import Any

EVERY_SECONDS = 10.0  # where nobody watches a line change


class Telling:
    """One line that changes on a terminal; into a file a line per stage, and now and then one in between."""

    def __init__(self, out: Any) -> None:
        self.out, self.on_terminal = out, bool(getattr(out, "isatty", bool)())
        self.stage, self.told_at, self.width = "", 0.0, 0

    def __call__(self, progress: Any) -> None:
        text, now = str(progress), time.monotonic()
        if self.on_terminal:
            self.out.write(f"\r{text.ljust(self.width)}", ending="", style_func=str)
            self.out.flush()
            self.width = len(text)
        elif progress.stage != self.stage or now - self.told_at >= EVERY_SECONDS:
            self.out.write(text, style_func=str)
            self.told_at = now
        self.stage = progress.stage

    def end(self) -> None:
        """Leave the line, so that the answer begins on its own."""
        if self.on_terminal and self.width:
            self.out.write(f"\r{' ' * self.width}\r", ending="", style_func=str)
            self.out.flush()
