"""The program of a process that was started by ``exec``: see ``start_methods``.

It is run as a file, before the project can be imported, so it imports nothing of ours at the top.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys

# Blocked until the process can handle them: Ctrl-C reaches all processes of a terminal.
BLOCKED = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]


def main(file: int) -> None:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb") as told:
        header = json.loads(told.readline())
        sys.path[:], sys.argv[:] = header["path"], header["argv"]

        import django

        django.setup()

        from django_jobqueue import handlers
        from django_jobqueue.services.workers import leave_pools

        leave_pools()
        handlers.autodiscover()
        start = pickle.load(told)  # noqa: S301 - written by our supervisor
    start.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
