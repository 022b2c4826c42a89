"""``manage.py feed``: customers keep ordering until the command is stopped."""

from __future__ import annotations

import random
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from ... import sample


class Command(BaseCommand):
    help = "Places orders for customers of the sample shop, about four per second."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--seconds", type=float, default=0.35, help="average time between two purchases")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        sample.open_shop()
        while not stop.wait(options["seconds"] * random.uniform(0.5, 1.5)):
            sample.step()
