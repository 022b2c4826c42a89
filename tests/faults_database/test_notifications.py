"""Wake-ups that fail, are forged, or come in floods; and senders in each other's way."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import connections

from django_jobqueue import services

from .cluster import ALIAS, Cluster
from .logs import most_talkative
from .runner import Laboratory, until

CLUSTER = {"version": 18, "settings": {"max_notify_queue_pages": 64}}  # the least there may be, since version 17
FLOOD_SECONDS = 5


def fill_notifications(cluster: Cluster) -> None:
    """Notify until one is refused, because a session listens and does not read."""
    some = "SELECT pg_notify('other', repeat('x', 500) || n) FROM generate_series(%s::int, %s::int) n"
    with cluster.connect() as sender:
        for start in range(0, 100_000, 500):
            try:
                sender.execute(some, [start, start + 499])
            except psycopg.errors.ProgramLimitExceeded:
                return
    raise AssertionError("nobody was refused")


def test_a_full_notification_queue_loses_no_job(lab: Laboratory):  # G13, F38
    with lab.cluster.connect() as stuck:
        stuck.execute('LISTEN "other"')
        stuck.execute("BEGIN")
        stuck.execute("SELECT 1")
        fill_notifications(lab.cluster)
        worker = lab.worker()
        family = worker.family()

        sent = time.monotonic()
        lab.send("orders", keys=5, each=10)
        lab.send_one("orders", "step", key="single")
        assert time.monotonic() - sent < 5

        lab.wait_until_done(20)
        assert lab.check() == 0
        assert worker.family() == family
        assert most_talkative(worker.lines(), sent, time.monotonic()) <= 1
        stuck.execute("ROLLBACK")
    lab.cluster.sql("SELECT pg_notification_queue_usage()")  # which makes room
    lab.send_one("orders", "step", 1, key="single")
    lab.wait_until_done(10)


# Each in a transaction of its own, because PostgreSQL sends what is alike within one only once.
FLOOD = """
DO $$ BEGIN
FOR n IN 1..250 LOOP PERFORM pg_notify('django_jobqueue', ({payloads})[1 + n % {count}]); COMMIT; END LOOP;
END $$
"""


def flood(cluster: Cluster, payloads: list[str], stop: threading.Event) -> int:
    """About ten thousand notifications per second, if the machine lets us."""
    texts = ", ".join(psycopg.sql.quote(text) for text in payloads)
    statement = FLOOD.format(payloads=f"ARRAY[{texts}]", count=len(payloads)).encode()
    sent = 0
    with cluster.connect() as sender:
        sender.execute("SET synchronous_commit = off")
        while not stop.is_set():
            sender.execute(statement)
            sent += 250
            stop.wait(0.025)
    return sent


@pytest.mark.parametrize("payloads", (["orders"], [f"junk {n}" for n in range(100)], ["", "orders", "work", "'; DROP"]))
def test_forged_notifications_cost_little_and_do_no_work_twice(lab: Laboratory, payloads):  # F72
    worker = lab.worker()
    family = worker.family()
    lab.send("orders", keys=5, each=4)
    lab.wait_until_done()
    spent, began = worker.cpu_seconds(), time.monotonic()
    stop = threading.Event()

    with ThreadPoolExecutor(1) as pool:
        flooding = pool.submit(flood, lab.cluster, payloads, stop)
        until(lambda: time.monotonic() - began > FLOOD_SECONDS, "the flood goes on")
        lab.send("orders", keys=5, each=4, prefix="b")
        lab.wait_until_done(15)
        stop.set()
        count = flooding.result()

    seconds = time.monotonic() - began
    spent = worker.cpu_seconds() - spent
    print(f"{count / seconds:,.0f} notifications/s, {spent / seconds:.0%} of a core")
    assert lab.check() == 0
    assert worker.family() == family
    assert spent / seconds < 0.8


def test_overlapping_bulk_sends_never_tell_their_callers_of_a_deadlock(lab: Laboratory, seed):  # G11, F26
    """Batches with the same slots in all orders, so that each waits for the others."""
    services.create_queue("slots", policy="short", using=ALIAS)
    stop = time.monotonic() + 6
    seeds = [seed.random() for _ in range(6)]

    def send(number: float) -> int:
        chance = type(seed)(number)
        sent = 0
        try:
            while time.monotonic() < stop:
                keys = chance.sample(range(30), 20)
                items: list[services.Item] = [{"data": None, "singleton_key": f"s{key}"} for key in keys]
                services.send_many("slots", items, on_duplicate="ignore", using=ALIAS)
                if chance.random() < 0.1:
                    services.purge("slots", using=ALIAS)
                sent += 1
        finally:
            connections[ALIAS].close()
        return sent

    with ThreadPoolExecutor(6) as pool:
        counts = list(pool.map(send, seeds))

    deadlocks = lab.cluster.one("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'")
    print(f"{sum(counts)} batches, {deadlocks} deadlocks inside")
    assert min(counts) > 3
