"""Files that survive a power loss: a lake in a local folder is synced to disk before PostgreSQL deletes.

Spark and Hadoop close files and rename them without fsync, so what was just written may be in memory alone. The files
are synced by this process: Hadoop's local file system has no call for it, and fsync writes to disk what any process
has written to a file. Errors have the path as their ``filename``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# Some file systems cannot sync a folder; like PostgreSQL, take it that they need not.
_NO_FOLDERS = frozenset({errno.EBADF, errno.EINVAL})


def sync(path: Path) -> None:
    """Let a file, or the names in a folder, be on disk when this returns."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NO_FOLDERS):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(opened)


def sync_tree(folder: Path) -> None:
    """The same for all files and folders below ``folder``, and for those above it on the same disk.

    Those above too, because a folder that was made a moment ago may have its name in memory alone. One that this user
    may not read was not made for the lake, and is left out.
    """
    for place, _, names in os.walk(folder, topdown=False, onerror=_raised):
        for name in names:
            sync(Path(place, name))
        sync(Path(place))
    for above in _above(folder.resolve()):
        if os.access(above, os.R_OK):
            sync(above)


def _above(folder: Path) -> Iterator[Path]:
    disk = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != disk:
            return
        yield above


def _raised(error: OSError) -> NoReturn:
    raise error
