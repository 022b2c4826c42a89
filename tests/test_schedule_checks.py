"""System checks of the schedules that settings declare."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks as django_checks

from django_jobqueue import checks

FINE = {"queue": "mail", "cron": "@daily"}


@pytest.fixture
def found(settings):
    """``found(schedules, queues)``: what the check says about them."""

    def run(schedules: Any, queues: Any = None) -> list[Any]:
        settings.JOBQUEUE = {"QUEUES": {"mail": {}} if queues is None else queues, "SCHEDULES": schedules}
        return checks.check_schedules()

    return run


def test_django_runs_the_check():
    registered: Any = django_checks.registry.registry

    assert checks.check_schedules in registered.registered_checks


def test_sensible_schedules_are_fine(found):
    fine = {
        "a": FINE,
        "b": {**FINE, "timezone": "Europe/Berlin", "data": [1], "tags": ["x"], "catch_up": "all", "enabled": False},
        "c": {"queue": "default", "cron": "0 0 29 2 *", "retry_limit": 3},
        "d": {"queue": "orders", "cron": "@daily", "singleton_key": "d"},
    }

    assert found({}) == []
    assert found(fine, {"mail": {}, "orders": {"policy": "fifo"}}) == []


@pytest.mark.parametrize(
    ("options", "id", "told", "hint"),
    (
        ({"cron": "61 * * * *"}, "jobqueue.E012", "cron: '61' is not a valid minute", "Write minute"),
        ({"cron": "0 0 30 2 *"}, "jobqueue.E012", "never fires", "50 years"),
        ({"cron": "*/30 2 * 3 0L", "timezone": "Europe/Berlin"}, "jobqueue.E012", "never fires", "50 years"),
        ({"cron": None}, "jobqueue.E012", "cron: expected a string", ""),
        (
            {"timezone": "Europe/Berln"},
            "jobqueue.E013",
            "no time zone named 'Europe/Berln'",
            "Did you mean 'Europe/Berlin'?",
        ),
        ({"timezone": None}, "jobqueue.E013", "timezone: expected a string", ""),
        ({"queue": "mial"}, "jobqueue.E014", "'mial', which is not in JOBQUEUE['QUEUES']", "Did you mean 'mail'?"),
        ({"queue": "a;b"}, "jobqueue.E011", "queue: ';' is not allowed", "Use letters"),
        ({"queue": 5}, "jobqueue.E011", "queue: expected a string", ""),
        ({"catch_up": "some"}, "jobqueue.E011", "catch_up: expected 'none' or 'last' or 'all'", ""),
        ({"enabled": 1}, "jobqueue.E011", "enabled: expected True or False", ""),
        ({"retry_limit": -1}, "jobqueue.E011", "retry_limit: must be at least 0", ""),
        ({"data": {"x": object()}}, "jobqueue.E011", "data.x: a value of type object is not JSON", ""),
        ({"croon": 1}, "jobqueue.E011", "croon: there is no such option", "Did you mean 'cron'?"),
        ({"queue": "orders"}, "jobqueue.E011", "singleton_key is missing", "'orders' is ordered"),
    ),
)
def test_a_wrong_option_is_an_error_that_names_the_schedule(found, options, id, told, hint):  # R367 R368
    [error] = found({"nightly": {**FINE, **options}}, {"mail": {}, "orders": {"policy": "fifo"}})

    assert error.id == id
    assert "nightly" in error.msg
    assert told in error.msg
    assert hint in (error.hint or "")


def test_every_wrong_option_is_told(found):
    wrong = found(
        {"a": {**FINE, "cron": "", "timezone": "Mars", "priority": "high"}, "b": {}, "c": None, " ": FINE, 5: FINE}
    )

    assert sorted(error.id for error in wrong) == ["jobqueue.E011"] * 6 + ["jobqueue.E012", "jobqueue.E013"]


def test_wrong_settings_and_wrong_queues_are_told_by_their_own_checks(settings, found):
    assert found({"nightly": FINE}, {"mail": {"policy": "lifo"}}) == []
    assert found(5) == []
    settings.JOBQUEUE = 5
    assert checks.check_schedules() == []


def test_a_handler_that_does_not_exist_is_found(found, handlers_not_imported):
    assert found({"a": {**FINE, "handler": handlers_not_imported}, "b": FINE}) == []

    (message,) = found({"a": {**FINE, "handler": "late.reprot"}})

    assert message.id == "jobqueue.E025"
    assert message.msg.endswith("['a']: There is no handler named 'late.reprot'. Did you mean 'late.report'?")
    assert "modules searched: jobs, tasks" in message.hint


def test_handlers_that_cannot_be_imported_are_told_and_not_called_missing(settings, handlers_not_imported):
    schedules = {"a": {**FINE, "handler": handlers_not_imported}}
    settings.JOBQUEUE = {"QUEUES": {"mail": {}}, "SCHEDULES": schedules, "HANDLER_MODULES": ["broken"]}

    assert checks.check_schedules() == []
    (message,) = checks.check_handlers()
    assert message.id == "jobqueue.W011"
    assert message.msg == "The handlers cannot be imported (RuntimeError: this module cannot be imported)."
