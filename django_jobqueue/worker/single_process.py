"""A worker in a single process: on Windows, which cannot fork, and where memory is scarce."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import threading
import time
from types import FrameType

from ..timings import TICK_SECONDS
from . import health, sessions
from .child import EXIT_DONE, EXIT_REPLACE
from .local import LocalWorker
from .options import WorkerOptions
from .processes import STOP_SIGNALS
from .tally import Tally, log_stopped

logger = logging.getLogger("django_jobqueue.worker")

EXIT_HANDLERS_RUN = 1  # handlers did not stop, and end with the process
RECOVER_SECONDS = 5.0


class SingleProcess:
    """Runs a worker in threads of this process until it is told to stop; :meth:`run` returns the exit code.

    Handlers that do not stop end with the process, and nothing replaces it. The next worker recovers their jobs.
    """

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self._asked_to_stop = 0
        self._health = health.open_port(options.health_port) if options.health_port else None
        self._worker = LocalWorker(options)
        self._before = Tally()  # of the workers before this one
        self._began_at = time.monotonic()

    def run(self) -> int:
        sessions.prepare(self.options.using)
        if hasattr(signal, "SIGQUIT"):
            faulthandler.register(signal.SIGQUIT, all_threads=True)
        for number in STOP_SIGNALS:
            signal.signal(number, self._on_stop_signal)
        if self._health is not None:
            health.serve(lambda: self._worker.housekeeper, self._health)
        if self.options.stop_on_eof:
            threading.Thread(target=self._stop_on_eof, name="jobqueue-input", daemon=True).start()
        logger.info(
            "worker started: %s in a single process, queues %s",
            self.options.name,
            ", ".join(self.options.queues) or "all declared ones",
            extra={"worker": self.options.name, "queues": self.options.queues},
        )
        while True:
            code = self._run_child()
            if code not in (EXIT_DONE, EXIT_REPLACE):
                return EXIT_HANDLERS_RUN
            self._worker.stop(RECOVER_SECONDS)
            if self._asked_to_stop or self._worker.was_asked_to_stop or self.options.drain or code == EXIT_REPLACE:
                log_stopped(self.options.name, self.tally(), self.seconds())
                return 0
            self._before = self.tally()
            self._worker = LocalWorker(self.options)  # the computer was asleep, and other workers treated it as lost

    def tally(self) -> Tally:
        """How the jobs of this process ended."""
        return self._before + self._worker.slots.tally

    def seconds(self) -> float:
        """How long the worker has run."""
        return time.monotonic() - self._began_at

    def _run_child(self) -> int:
        self._worker.start()
        stops = 0
        while not self._worker.wait(TICK_SECONDS):
            while stops < self._asked_to_stop:
                stops += 1
                self._stop(at_once=stops > 1)
        code = self._worker.exit_code
        return EXIT_HANDLERS_RUN if code is None else code

    def _stop(self, *, at_once: bool) -> None:
        facts = {"worker": self.options.name, "grace": self.options.grace}
        if at_once:
            logger.info("worker is stopping at once: %s, its handlers end with it", self.options.name, extra=facts)
            self._worker.child.stop_now()
        else:
            logger.info(
                "worker is stopping: %s, running jobs have %g s to end",
                self.options.name,
                self.options.grace,
                extra=facts,
            )
            self._worker.child.stop()

    def _stop_on_eof(self) -> None:
        while os.read(0, 4096):
            pass
        self._asked_to_stop = 2

    def _on_stop_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop += 1
