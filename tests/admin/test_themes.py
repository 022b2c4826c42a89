"""The style of the pages: themes that replace Django's admin need not have its variables."""

from __future__ import annotations

import re
from pathlib import Path

import django_jobqueue

STYLE = (Path(django_jobqueue.__file__).parent / "static" / "jobqueue" / "admin.css").read_text()


def test_only_our_own_variables_are_used_without_a_fallback():
    used = set(re.findall(r"var\((--[\w-]+)\)", STYLE))
    defined = set(re.findall(r"(--jq-[\w-]+):", STYLE))

    assert used
    assert used <= defined


def test_a_theme_that_is_light_stays_light_if_the_system_prefers_dark():
    preferred = STYLE.split("@media (prefers-color-scheme: dark)")[1].split("}")[0]

    assert '[data-theme="light"], [data-bs-theme], [x-data]' in preferred
