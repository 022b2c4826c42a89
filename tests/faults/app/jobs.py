"""Handlers good and bad. Those that matter for the order write their history."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import locale
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.contrib.auth.models import Group
from django.db import connection, connections, transaction
from django.utils import timezone, translation

from django_jobqueue.handlers import CancelJob, FailForGood, JobContext, RetryLater, Snooze, job
from tests.faults.history import VARIABLE, History, note, recorded
from tests.faults.runner import FOLDER, is_alive

FAULTS, LANES = "faults", "lanes"


def folder() -> Path:
    return Path(os.environ[FOLDER])


def wait_for(gate: str) -> None:
    while not (folder() / f"gate-{gate}").exists():
        time.sleep(0.005)


# ------------------------------------------------------------------------------------------------------------- good


@job(queue=FAULTS, name="work", takes_context=True)
def work(context: JobContext, seconds: float = 0.0, gate: str = "") -> dict[str, Any]:
    with recorded(context.job):
        time.sleep(seconds)
        if gate:
            wait_for(gate)
    return {"pid": os.getpid()}


@job(queue=LANES, name="lane-work", takes_context=True)
def lane_work(context: JobContext, seconds: float = 0.0, gate: str = "") -> None:
    work.function(context, seconds, gate)


@job(queue=FAULTS, name="noop")
def noop() -> None:
    """As quick as it gets."""


@job(queue=FAULTS, name="atomic-work", takes_context=True, atomic=True)
def atomic_work(context: JobContext, gate: str = "") -> None:
    """One effect per run, in the same transaction as its completion."""
    with recorded(context.job):
        Group.objects.create(name=f"{context.job.pk} {context.attempt}")
        note(context.job, "effect")
        if gate:
            wait_for(gate)


@job(queue=LANES, name="lane-atomic", takes_context=True, atomic=True)
def lane_atomic(context: JobContext, gate: str = "") -> None:
    atomic_work.function(context, gate)


@job(queue=FAULTS, name="plain-effect", takes_context=True)
def plain_effect(context: JobContext) -> None:
    with recorded(context.job):
        Group.objects.create(name=f"{context.job.pk} {context.attempt}")


@job(queue=FAULTS, name="async-work", takes_context=True)
async def async_work(context: JobContext, seconds: float = 0.0) -> int:
    with recorded(context.job):
        await asyncio.sleep(seconds)
    return os.getpid()


@job(queue=FAULTS, name="look-around")
def look_around() -> dict[str, Any]:
    """What the next handler in the same thread reads."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('search_path'), current_setting('timezone'), pg_backend_pid()")
        path, zone, backend = cursor.fetchone()
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        locks = cursor.fetchone()[0]
        cursor.execute("SELECT to_regclass('pg_temp.left_behind')::text")
        table = cursor.fetchone()[0]
    return {
        "search_path": path,
        "time_zone": zone,
        "backend": backend,
        "advisory_locks": locks,
        "temporary_table": table,
        "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
        "zone_of_django": timezone.get_current_timezone_name(),
        "language": translation.get_language(),
        "in_atomic_block": connection.in_atomic_block,
        "autocommit": connection.get_autocommit(),
    }


@job(queue=FAULTS, name="run-program", takes_context=True)
def run_program(context: JobContext, new_session: bool = False) -> None:
    """Says which programs of earlier attempts still run when this one begins."""
    with recorded(context.job):
        earlier = [line["program"] for line in History(Path(os.environ[VARIABLE])).lines() if "program" in line]
        program = subprocess.Popen(["sleep", "600"], start_new_session=new_session)
        note(context.job, "program", program=program.pid, left=[pid for pid in earlier if is_alive(pid)])
        program.wait()


@job(queue=FAULTS, name="look-at-pools")
def look_at_pools() -> dict[str, Any]:
    """By alias: whether its connections come from a pool."""
    found = {}
    for alias in connections:
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT 1")
        found[alias] = connections[alias].pool is not None  # type: ignore[attr-defined]
    return found


# ------------------------------------------------------------------------------------------------------ never return


@job(queue=FAULTS, name="spin", takes_context=True, expire_in_seconds=1)
def spin(context: JobContext) -> None:
    with recorded(context.job):
        while True:
            pass


@job(queue=FAULTS, name="swallow", takes_context=True, expire_in_seconds=1)
def swallow(context: JobContext) -> None:
    with recorded(context.job):
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                note(context.job, "swallowed")


@job(queue=FAULTS, name="hold-gil", takes_context=True, expire_in_seconds=1)
def hold_gil(context: JobContext) -> None:
    with recorded(context.job):
        ctypes.PyDLL(None).sleep(60)  # unlike CDLL, it keeps the interpreter's lock


@job(queue=FAULTS, name="hold-interpreter", takes_context=True, expire_in_seconds=1)
def hold_interpreter(context: JobContext) -> None:
    """Only the first time; says which processes of earlier attempts still live when this one begins."""
    lines = History(Path(os.environ[VARIABLE])).lines()
    earlier = [line["pid"] for line in lines if line["event"] == "begin" and line["job"] == str(context.job.pk)]
    with recorded(context.job, left=[pid for pid in earlier if is_alive(pid)]):
        if not earlier:
            ctypes.PyDLL(None).sleep(60)


@job(queue=FAULTS, name="regex-bomb", takes_context=True, expire_in_seconds=1)
def regex_bomb(context: JobContext) -> None:
    with recorded(context.job):
        re.match(r"(a*)*b", "a" * 60)


@job(queue=FAULTS, name="async-block", takes_context=True, expire_in_seconds=1)
async def async_block(context: JobContext) -> None:
    """Stands in the way of the whole loop."""
    with recorded(context.job):
        time.sleep(60)


@job(queue=FAULTS, name="async-slow", takes_context=True, expire_in_seconds=1)
async def async_slow(context: JobContext) -> None:
    with recorded(context.job):
        await asyncio.sleep(60)


@job(queue=FAULTS, name="expire-in-transaction", takes_context=True, expire_in_seconds=1)
def expire_in_transaction(context: JobContext) -> None:
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    while True:
        pass


# --------------------------------------------------------------------------------------------------------- take down


@job(queue=FAULTS, name="segfault", takes_context=True)
def segfault(context: JobContext) -> None:
    note(context.job, "begin")
    faulthandler.disable()  # its dump would only be noise
    ctypes.string_at(0)


@job(queue=FAULTS, name="exit", takes_context=True)
def leave(context: JobContext, code: int = 0) -> None:
    note(context.job, "begin")
    os._exit(code)


@job(queue=FAULTS, name="sys-exit")
def sys_exit(code: int = 1) -> None:
    sys.exit(code)


@job(queue=FAULTS, name="interrupt")
def interrupt() -> None:
    raise KeyboardInterrupt


@job(queue=FAULTS, name="generator-exit")
def generator_exit() -> None:
    raise GeneratorExit


@job(queue=FAULTS, name="async-sys-exit")
async def async_sys_exit() -> None:
    sys.exit(3)


@job(queue=FAULTS, name="async-cancelled")
async def async_cancelled() -> None:
    raise asyncio.CancelledError


@job(queue=FAULTS, name="fork", takes_context=True)
def fork(context: JobContext, then: str = "return") -> int:
    """Both return from here, or the copy raises; only one may tell."""
    with recorded(context.job):
        pid = os.fork()
        if not pid:
            if then == "raise":
                raise ValueError("of the copy")
            return -1
        os.waitpid(pid, 0)
    return os.getpid()


@job(queue=FAULTS, name="atomic-fork", takes_context=True, atomic=True)
def atomic_fork(context: JobContext, then: str = "return") -> int:
    Group.objects.create(name=f"{context.job.pk} {context.attempt}")
    pid = os.fork()
    if not pid:
        if then == "raise":
            raise ValueError("of the copy")
        return -1
    os.waitpid(pid, 0)
    return os.getpid()


@job(queue=FAULTS, name="eat-memory")
def eat_memory() -> None:
    eaten = []
    while True:
        eaten.append(bytearray(32 * 1024 * 1024))


@job(queue=FAULTS, name="grow")
def grow(megabytes: int) -> int:
    global _grown
    _grown = b"x" * (megabytes * 1024 * 1024)
    return os.getpid()


_grown = b""

# ------------------------------------------------------------------------------------------------------------ untidy


@job(queue=FAULTS, name="open-transaction")
def open_transaction(how: str = "begin", then: str = "") -> None:
    if how == "begin":
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO auth_group (name) VALUES ('left open')")
    elif how == "atomic":
        transaction.atomic().__enter__()
        Group.objects.create(name="left open")
    else:
        connection.set_autocommit(False)
        Group.objects.create(name="left open")
    if then == "raise":
        raise ValueError("the true reason")
    if then == "for-good":
        raise FailForGood("the true reason")


@job(queue=FAULTS, name="close-connection")
def close_connection(how: str = "django") -> None:
    connection.ensure_connection()
    if how == "django":
        connection.close()
    elif how == "driver":
        connection.connection.close()
    else:
        with transaction.atomic():
            connection.close()


@job(queue=FAULTS, name="change")
def change(what: str) -> None:
    """Change something that outlives the handler."""
    if what == "folder":
        os.chdir("/")
    elif what == "removed-folder":
        gone = folder() / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
    elif what == "locale":
        locale.setlocale(locale.LC_ALL, "C")
    elif what == "zone-of-django":
        timezone.activate("Asia/Tokyo")
    elif what == "language":
        translation.activate("de")
    elif what == "composed":
        from psycopg import sql

        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier("pg_catalog")))
    elif what == "after-an-error":
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO pg_catalog")
            try:
                cursor.execute("SELECT 1/0")
            except Exception:
                note_nothing()
    else:
        with connection.cursor() as cursor:
            cursor.execute(what)


def note_nothing() -> None:
    """The handler does not care."""


class Unprintable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


@job(queue=FAULTS, name="unprintable")
def unprintable() -> None:
    raise Unprintable


@job(queue=FAULTS, name="unprintable-output")
def unprintable_output() -> Any:
    return {"bad": Unprintable()}


# ----------------------------------------------------------------------------------------------------- how it may end


@job(queue=FAULTS, name="raise")
def raise_(what: str, value: Any = None) -> None:
    if what == "retry-later":
        raise RetryLater(delay=value)
    if what == "snooze":
        raise Snooze(float(value))
    if what == "fail-for-good":
        raise FailForGood("no use")
    if what == "cancel":
        raise CancelJob("not wanted")
    raise ValueError(what)


@job(queue=FAULTS, name="report", takes_context=True)
def report(context: JobContext, gate: str) -> None:
    with recorded(context.job):
        context.progress(0.25, "a quarter")
        wait_for(gate)


@job(queue=FAULTS, name="until-cancelled", takes_context=True)
def until_cancelled(context: JobContext) -> None:
    with recorded(context.job):
        while not context.cancelled:
            time.sleep(0.005)
    raise CancelJob("as you wish")


@job(queue=FAULTS, name="async-until-cancelled", takes_context=True)
async def async_until_cancelled(context: JobContext) -> None:
    with recorded(context.job):
        await asyncio.sleep(60)


@job(queue="fair-a", name="fair", takes_context=True)
def fair(context: JobContext) -> None:
    note(context.job, "begin", queue=context.job.queue_id)


@job(queue="fair-b", name="fair-b", takes_context=True)
def fair_b(context: JobContext) -> None:
    fair.function(context)
