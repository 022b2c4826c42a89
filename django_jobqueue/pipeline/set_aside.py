"""The file of bad rows: JSON lines with the file, the row, the line, the reason and the original content."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from ..exceptions import InvalidOption


class AsideFile:
    """The file for bad rows. It is never a link: a link could make the command overwrite another file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, inputs: Sequence[str]) -> None:
        """Raise ``InvalidOption`` if the file cannot be written, before the inputs are read."""
        existed = os.path.lexists(self.path)
        if os.path.isfile(self.path) and any(
            os.path.exists(path) and os.path.samefile(path, self.path) for path in inputs
        ):
            raise InvalidOption(
                "aside", f"{str(self.path)!r} is one of the files to send", hint="Give another --aside."
            )
        self._open(os.O_APPEND).close()
        if not existed:
            self.path.unlink()

    def write(self, documents: Iterable[dict[str, Any]]) -> str:
        with self._open(os.O_TRUNC) as out:
            for document in documents:
                out.write(_line(document))
            out.flush()
            os.fsync(out.fileno())
        return str(self.path)

    def _open(self, how: int) -> IO[bytes]:
        if os.path.islink(self.path):
            raise InvalidOption("aside", f"{str(self.path)!r} is a link", hint="Name the file itself.")
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise InvalidOption("aside", f"{str(self.path)!r} is not a regular file", hint="Give another --aside.")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | how, 0o600)
        except OSError as error:
            raise InvalidOption("aside", f"cannot be written: {error}", hint="Give another --aside.") from error
        return os.fdopen(file, "wb")


def _line(document: dict[str, Any]) -> bytes:
    try:
        return (json.dumps(document, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # the content has bytes that are not text
        return (json.dumps(document) + "\n").encode()
