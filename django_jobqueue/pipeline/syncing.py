"""Sync files to disk: a lake in a local folder must survive a power loss before PostgreSQL deletes its jobs.

Spark and Hadoop close and rename files without fsync, so new files may be only in memory. This process syncs them:
Hadoop's local file system has no call for it, and fsync writes to disk what any process has written to a file. Errors
have the path as their ``filename``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

# Some file systems cannot sync a folder. Like PostgreSQL, assume that they do not need it.
_NO_FOLDERS = frozenset({errno.EBADF, errno.EINVAL})


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk. Raises ``OSError``."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NO_FOLDERS):
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(opened)


def sync_tree(folder: Path) -> None:
    """Sync all files and folders below ``folder``, and the folders above it on the same disk.

    The folders above are synced because the name of a new folder may be only in memory. A folder that this user may
    not read was not created for the lake, and is skipped.
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
