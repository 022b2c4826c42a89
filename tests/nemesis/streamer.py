"""A process that jobs are streamed to: ``python -m tests.nemesis.streamer NAME CAPACITY``; SIGTERM ends it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from functools import partial
from typing import Any
from uuid import uuid4

import django
from django.db import Error, connection

from .history import write

stopping = threading.Event()


def run(name: str, capacity: int) -> None:
    from django_jobqueue import services
    from django_jobqueue.exceptions import JobQueueError

    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set():
        write("stream_began", stream=name)
        try:
            with services.stream(name, queue="streamed", capacity=capacity) as stream:
                while not stopping.is_set():
                    batch = stream.get(timeout=0.5)
                    for job in batch:
                        write("delivered", stream=name, job=str(job.pk))
                    for job in batch:
                        serve(name, job)
        except (Error, JobQueueError):
            connection.close()
            stopping.wait(0.3)
    connection.close()


def serve(name: str, job: Any) -> None:
    from django_jobqueue import services
    from django_jobqueue.exceptions import InvalidTransition, JobQueueError
    from django_jobqueue.states import JobState

    token = uuid4().hex
    facts = {"job": str(job.pk), "queue": job.queue_id, "key": "", "attempt": job.attempt, "number": job.held_number}
    write("began", token=token, **facts)
    time.sleep(job.data["seconds"])
    fails = job.attempt <= job.data["fails"]
    write("ended", token=token, how="raised" if fails else "returned")
    write("finishing", stream=name, job=str(job.pk))
    finish = partial(services.fail, job, "as told") if fails else partial(services.complete, job, {"token": token})
    while True:  # what was received is the receiver's to finish, also when the connection is lost
        try:
            finish()
        except InvalidTransition as error:
            if error.state != JobState.CANCELLING:
                return  # the answer of the first try was lost
            finish = partial(services.acknowledge_cancellation, job, was_executing=True)
        except JobQueueError:
            return  # the claim was lost
        except Error:
            connection.close()
            time.sleep(0.3)
        else:
            return


if __name__ == "__main__":
    django.setup()
    run(sys.argv[1], int(sys.argv[2]))
