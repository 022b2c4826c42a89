"""Names of connections (``application_name``): ``pg_stat_activity`` then says which part of which worker opened each.

A name that the project has set, in ``OPTIONS`` or ``PGAPPNAME``, is kept as a prefix: ``shop: runjobs web1-1 child 1``.
The name is a parameter of the connection and not set by a statement, because poolers pass on the parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from .process_memory import ProcessMemory

MOST_BYTES = 63  # PostgreSQL cuts off the rest
LEAST_OF_WORKER = 24  # bytes of the worker's name that stay if the whole is too long: its end, which has the process id
OPTION = "application_name"


class ProcessName(NamedTuple):
    """What this process is: ``runjobs``, the name of the worker, and the part of it."""

    command: str = ""
    worker: str = ""
    role: str = ""


class Names(ProcessMemory):
    """The name of this process, and the names that the project has set, by database."""

    def __init__(self) -> None:
        super().__init__()
        self.process = ProcessName()
        self.given: dict[str, str] = {}

    def forget(self) -> None:
        """Let the databases have the names that the project has set."""
        for alias, name in self.given.items():
            options = connections.settings[alias]["OPTIONS"] if alias in connections.settings else {}
            options.pop(OPTION, None)
            if name:
                options[OPTION] = name
        self.process = ProcessName()
        self.given.clear()


names = Names()


def name_process(command: str, worker: str = "", role: str = "") -> None:
    """Name all connections that this process opens from now on: only for a process that belongs to ``runjobs``."""
    names.process = ProcessName(command, worker, role)
    for alias in connections:
        if connections[alias].vendor == "postgresql":
            settings = connections.settings[alias]  # shared by the connections of all threads
            prefix = names.given.setdefault(alias, _given(settings))
            settings["OPTIONS"] = {**settings.get("OPTIONS", {}), OPTION: _full(prefix, names.process)}


def name_thread(connection: BaseDatabaseWrapper, role: str, worker: str = "") -> None:
    """Name this thread's connection when it is opened: after the process, or after a worker in threads of it."""
    if connection.vendor != "postgresql" or connection.settings_dict["OPTIONS"].get("pool"):
        return
    process, settings = names.process, connection.settings_dict
    if process.command:
        name = process._replace(role=f"{process.role} {role}".strip())
    else:
        name = ProcessName("work" if worker else "jobqueue", worker, role)
    prefix = names.given.get(connection.alias)
    full = _full(_given(settings) if prefix is None else prefix, name)
    connection.settings_dict = {**settings, "OPTIONS": {**settings["OPTIONS"], OPTION: full}}


@contextmanager
def named(alias: str, role: str) -> Iterator[None]:
    """Name the connection that this thread opens in the block; one that is open keeps its name."""
    connection = connections[alias]
    before = connection.settings_dict
    name_thread(connection, role)
    try:
        yield
    finally:
        connection.settings_dict = before


def _given(settings: dict[str, Any]) -> str:
    """The name that the project has set."""
    return str(settings.get("OPTIONS", {}).get(OPTION) or os.environ.get("PGAPPNAME", ""))


def _full(prefix: str, name: ProcessName) -> str:
    """The prefix and the name, cut to what PostgreSQL keeps: first the name of the worker, then the prefix."""
    prefix, worker = _ascii(prefix), _ascii(name.worker)
    excess = len(_joined(prefix, name.command, worker, name.role)) - MOST_BYTES
    if excess > 0:
        worker = worker[min(excess, max(0, len(worker) - LEAST_OF_WORKER)) :]
        excess = len(_joined(prefix, name.command, worker, name.role)) - MOST_BYTES
    if excess > 0:
        prefix = prefix[: max(0, len(prefix) - excess)]
    return _joined(prefix, name.command, worker, name.role)[:MOST_BYTES]


def _joined(prefix: str, *parts: str) -> str:
    text = " ".join(filter(None, parts))
    return f"{prefix}: {text}" if prefix else text


def _ascii(text: str) -> str:
    """PostgreSQL replaces other characters, by up to four each."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)
