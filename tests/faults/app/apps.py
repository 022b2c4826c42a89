"""Writes down which processes connect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class FaultsConfig(AppConfig):
    name = "tests.faults.app"

    def ready(self) -> None:
        connection_created.connect(_note, dispatch_uid="faults_connected")


def _note(**kwargs: Any) -> None:
    from tests.faults.runner import FOLDER

    if FOLDER in os.environ:
        (Path(os.environ[FOLDER]) / f"connected-{os.getpid()}").touch()
