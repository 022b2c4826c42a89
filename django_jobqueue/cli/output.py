"""Progress of a long subcommand, written to the standard error, so that the standard output has only the answer."""

from __future__ import annotations

import time
from typing import Any

EVERY_SECONDS = 10.0  # between two lines if the output is not a terminal


class ProgressOutput:
    """Writes progress: on a terminal one line that is updated, elsewhere a line per stage and one every ten seconds."""

    def __init__(self, out: Any) -> None:
        self.out, self.on_terminal = out, bool(getattr(out, "isatty", bool)())
        self.stage, self.written_at, self.width = "", 0.0, 0

    def __call__(self, progress: Any) -> None:
        text, now = str(progress), time.monotonic()
        if self.on_terminal:
            self.out.write(f"\r{text.ljust(self.width)}", ending="", style_func=str)
            self.out.flush()
            self.width = len(text)
        elif progress.stage != self.stage or now - self.written_at >= EVERY_SECONDS:
            self.out.write(text, style_func=str)
            self.written_at = now
        self.stage = progress.stage

    def end(self) -> None:
        """Clear the line, so that the answer starts on a new one."""
        if self.on_terminal and self.width:
            self.out.write(f"\r{' ' * self.width}\r", ending="", style_func=str)
            self.out.flush()
