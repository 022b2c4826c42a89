"""``--reload``: restart the worker when the code changes, as ``runserver`` does."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from pathlib import Path

from django.utils import autoreload

from .processes import STOP_SIGNALS

logger = logging.getLogger("django_jobqueue.worker")


def run_with_reload() -> int:
    """Run the same command without ``--reload`` in another process, and restart that process when a file changed."""
    changed = threading.Event()
    stop = threading.Event()
    reloader = autoreload.StatReloader()

    def watch() -> None:
        seen: dict[Path, float] = {}
        while True:
            for path, modified in reloader.snapshot_files():
                if seen.setdefault(path, modified) != modified:
                    seen[path] = modified
                    logger.info("file changed: %s; the worker starts again", path, extra={"path": str(path)})
                    changed.set()
            stop.wait(1.0)

    threading.Thread(target=watch, name="jobqueue-reload", daemon=True).start()
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        changed.clear()
        # In its own process group: Ctrl-C reaches all processes of a group, and the worker is stopped below.
        worker = subprocess.Popen([*autoreload.get_child_arguments(), "--no-reload"], process_group=0)
        while worker.poll() is None and not changed.is_set() and not stop.is_set():
            changed.wait(0.2)
        if worker.poll() is None:
            worker.terminate()
            worker.wait()
        elif worker.returncode and not stop.is_set():
            logger.error(
                "worker ended: exit code %d; waiting until a file changes",
                worker.returncode,
                extra={"code": worker.returncode},
            )
            while not changed.is_set() and not stop.is_set():
                changed.wait(0.2)
        else:
            return 0
    return 0
