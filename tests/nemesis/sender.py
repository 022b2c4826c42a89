"""A process that sends: ``python -m tests.nemesis.sender SEED``; it ends when it is told to by SIGTERM.

What it says it has sent was acknowledged. It uses open, rolled-back and lost transactions, and survives a database that
is away. A send whose answer was lost is noted as unsure, and not repeated.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from typing import Any
from uuid import uuid4

import django
from django.db import Error, connection, transaction

from .history import write
from .variants import VARIANTS, Variant

stopping = threading.Event()


class RolledBack(Exception):
    pass


class Sender:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.targets = [variant for variant in VARIANTS.values() for _ in range(variant.weight)]

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        number = 0
        while not stopping.wait(self.chance.uniform(0.0, 0.08)):
            number += 1
            variant = VARIANTS["free"] if number % 10 == 0 else self.chance.choice(self.targets)
            self.send(variant)
        connection.close()

    def send(self, variant: Variant) -> None:
        chance, called = self.chance, time.monotonic()
        items = [self.item(variant) for _ in range(chance.choice((1, 1, 1, 3)) if variant.weight else 1)]
        fate = chance.random()
        try:
            with transaction.atomic():
                stored = self.store(variant, items)
                if fate < 0.10:
                    time.sleep(chance.uniform(0.0, 0.5))
                elif fate < 0.15:
                    raise RolledBack
                elif fate < 0.18:
                    self.lose_connection()
        except RolledBack:
            self.note("rolled_back", variant, items, called)
        except Error:
            connection.close()
            self.note("rolled_back" if 0.15 <= fate < 0.18 else "unsure", variant, items, called)
            stopping.wait(0.2)
        else:
            self.note("sent", variant, [item for item in items if item["id"] in stored], called)

    def item(self, variant: Variant) -> dict[str, Any]:
        chance = self.chance
        fails = chance.choices((0, 1, 2, 9), (88, 8, 3, 1))[0]
        key = f"{variant.queue}-{chance.randrange(variant.keys)}" if variant.keys else ""
        item: dict[str, Any] = {"id": uuid4(), "name": variant.handler, "retry_limit": 5, "retry_delay": 0}
        item["data"] = {"seconds": round(chance.uniform(*variant.seconds), 3), "fails": fails}
        item["tags"] = [f"t{chance.randrange(3)}"] if chance.random() < 0.2 else []
        item["priority"] = chance.choice((0, 0, 0, 5, -5)) if not variant.grouped else 0
        if key:
            item["group_key" if variant.grouped else "singleton_key"] = key
        if variant.delays and chance.random() < 0.1:
            item["delay"] = round(chance.uniform(0.1, 3.0), 2)
        if variant.handler == "stubborn":
            from .variants import EXPIRES_AFTER

            item["expire_in_seconds"] = EXPIRES_AFTER
        return item

    def store(self, variant: Variant, items: list[Any]) -> set[Any]:
        """The ids of those that the queue's policy did not refuse."""
        from django_jobqueue import services

        if len(items) == 1:
            found = services.send(variant.queue, on_duplicate="ignore", **items[0])
            return set() if found is None else {items[0]["id"]}
        return {id for id in services.send_many(variant.queue, items, on_duplicate="ignore") if id is not None}

    def lose_connection(self) -> None:
        """As if the machine of the sender died: the server ends the session inside its transaction."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            cursor.execute("SELECT 1")

    def note(self, event: str, variant: Variant, items: list[dict[str, Any]], called: float) -> None:
        for item in items:
            key = item.get("group_key") or item.get("singleton_key") or ""
            delayed = variant.passes and "delay" in item
            facts = {"job": str(item["id"]), "queue": variant.queue, "key": key, "called": called, "delayed": delayed}
            write(event, **facts, **({"free": True} if variant.queue == "free" else {}))


if __name__ == "__main__":
    django.setup()
    Sender(int(sys.argv[1])).run()
