"""``manage.py feed``: customers keep ordering, until somebody stops it."""

from __future__ import annotations

import random
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ... import sample
from ...models import Customer


class Command(BaseCommand):
    help = "Lets customers of the sample shop order, about once a second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seconds", type=float, default=1.0, help="how long to wait between two orders")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        if not Customer.objects.exists():
            sample.fill()
        while not stop.wait(options["seconds"] * random.uniform(0.5, 1.5)):
            sample.step()
