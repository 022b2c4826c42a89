"""A process that does what operators do: ``python -m tests.nemesis.operators SEED``; it ends when told to by SIGTERM.

Each deed is noted before it is done, because it counts from then on even if its answer is lost. One in some is only to
free keys that a job has blocked; without it the queues would fill up.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import django
from django.db import Error, connection
from django.utils import timezone

from .history import write
from .variants import VARIANTS

stopping = threading.Event()
WAITING, RUNNING, DEAD = ("created", "retry"), ("active",), ("failed", "expired")


class Operator:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.paused = ""

    def run(self) -> None:
        from django_jobqueue.exceptions import JobQueueError

        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        deeds: list[tuple[int, Callable[[], None]]] = [
            (10, self.mend), (3, self.cancel), (2, self.delete), (2, self.retry), (2, self.reschedule),
            (1, self.pause), (1, self.purge), (1, self.update), (1, self.set_visibility),
        ]  # fmt: skip
        while not stopping.wait(self.chance.uniform(0.1, 0.8)):
            try:
                self.resume()  # if that was not possible at its time
                self.chance.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])[0]()
            except JobQueueError:
                pass  # refused: the job was not in that state any more
            except Error:
                connection.close()
                stopping.wait(0.3)
        connection.close()

    def pick(
        self, states: tuple[str, ...], most: int = 1, *, ordered: bool | None = None, serial: bool | None = None
    ) -> list[tuple[Any, str]]:
        possible = [variant for variant in VARIANTS.values() if ordered in (None, variant.rules.ordered)]
        possible = [variant for variant in possible if serial in (None, variant.rules.serial)]
        queues = [variant.queue for variant in possible if variant.queue != "free"]
        where = "state = ANY(%s) AND queue_id = ANY(%s)"
        with connection.cursor() as cursor:
            query = f"SELECT id, queue_id FROM jobqueue_job WHERE {where} ORDER BY random() LIMIT %s"
            cursor.execute(query, [list(states), queues, most])
            return list(cursor.fetchall())

    def do(self, verb: str, found: list[tuple[Any, str]], work: Callable[[list[Any]], Any]) -> None:
        if found:
            ids = [id for id, _ in found]
            write("verb", verb=verb, jobs=[str(id) for id in ids], queue=found[0][1], called=time.monotonic())
            work(ids)

    def mend(self) -> None:
        """Retry or skip whatever blocks a key."""
        from django_jobqueue import services

        found = self.pick(DEAD, 20, ordered=True)
        if self.chance.random() < 0.5:
            self.do("retry", found, lambda ids: services.retry(ids))
        else:
            self.do("skip", found, lambda ids: services.skip(ids, reason="nemesis"))

    def retry(self) -> None:
        from django_jobqueue import services

        self.do("retry", self.pick((*DEAD, "cancelled"), ordered=False), lambda ids: services.retry(ids))

    def cancel(self) -> None:
        from django_jobqueue import services

        self.do("cancel", self.pick((*WAITING, *RUNNING)), lambda ids: services.cancel(ids))

    def delete(self) -> None:
        from django_jobqueue import services

        self.do("delete", self.pick((*DEAD, "cancelled")), lambda ids: services.delete(ids))

    def reschedule(self) -> None:
        from django_jobqueue import services

        moment = timezone.now() + timedelta(seconds=self.chance.uniform(0, 2))
        self.do("reschedule", self.pick(WAITING), lambda ids: services.reschedule(ids[0], moment))

    def set_visibility(self) -> None:
        from django_jobqueue import services

        # A lease set without the claim may end while the handler runs, and then the job runs beside itself.
        found = self.pick(RUNNING, serial=False)
        self.do("reschedule", found, lambda ids: services.set_visibility(ids[0], self.chance.uniform(1, 3)))

    def pause(self) -> None:
        from django_jobqueue import services

        queue = self.chance.choice([queue for queue in VARIANTS if queue not in ("free", "ticking")])
        write("paused_queue", queue=queue)
        self.paused = queue
        services.pause(queue)
        stopping.wait(self.chance.uniform(0.1, 1.5))
        self.resume()

    def resume(self) -> None:
        from django_jobqueue import services

        if self.paused:
            services.resume(self.paused)
            self.paused = ""

    def purge(self) -> None:
        from django_jobqueue import services

        write("verb", verb="purge", jobs=[], queue="scratch", called=time.monotonic())
        services.purge("scratch")

    def update(self) -> None:
        from django_jobqueue import services

        services.update_queue(self.chance.choice(["pass", "many-keys", "keyed"]), expire_in_seconds=900)


if __name__ == "__main__":
    django.setup()
    Operator(int(sys.argv[1])).run()
