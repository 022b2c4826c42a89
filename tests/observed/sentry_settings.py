from __future__ import annotations

from tests.settings import *  # noqa: F403

JOBQUEUE = {"AROUND": "recipe.around"}
