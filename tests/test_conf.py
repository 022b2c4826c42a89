from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder
from django.test import override_settings

from django_jobqueue.conf import FIELDS, Settings, get_encoder, get_settings

MEBIBYTE = 1024 * 1024


def test_without_settings_the_defaults_hold(settings):
    settings.JOBQUEUE = {}  # of which the cache is told; of a deletion it is not
    del settings.JOBQUEUE

    assert get_settings() == Settings()


@pytest.mark.parametrize(
    ("name", "default"),
    (
        ("QUEUES", {}),
        ("SCHEDULES", {}),
        ("QUEUE_DEFAULTS", {}),
        ("NOTIFY", True),
        ("MAX_DATA_BYTES", 262_144),
        ("MAX_OUTPUT_BYTES", 262_144),
        ("MAX_DEPTH", 100),
        ("MAX_ERROR_CHARS", 20_000),
        ("ENCODER", None),
        ("CRASH_LIMIT", 3),
        ("HAND_OVER_LIMIT", 100),
        ("LOCK_TIMEOUT_MS", 2_000),
        ("POLL_SECONDS", 1.0),
        ("MONITOR_SECONDS", 60),  # R114
        ("STOP_GRACE_SECONDS", 30),
        ("CANCEL_GRACE_SECONDS", 300),
        ("WORKER_LOST_SECONDS", 27),
        ("ARCHIVE", False),
    ),
)
def test_a_setting_has_this_default(name, default):
    assert getattr(Settings(), name) == default


def test_every_setting_has_a_line_of_documentation():
    assert all(field.metadata["doc"].endswith(".") for field in FIELDS.values())


def test_settings_cannot_be_changed_by_assignment():
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_settings().NOTIFY = False  # type: ignore[misc]


def test_settings_are_read_once():
    assert get_settings() is get_settings()


def test_overridden_settings_are_seen_and_forgotten():
    with override_settings(JOBQUEUE={"NOTIFY": False}):
        assert get_settings().NOTIFY is False

    assert get_settings().NOTIFY is True


def test_an_unrelated_setting_does_not_read_them_again():
    before = get_settings()
    with override_settings(USE_I18N=False):
        assert get_settings() is before


def test_what_the_project_wrote_is_copied_not_shared(settings):
    written: dict[str, Any] = {"mail": {}}
    settings.JOBQUEUE = {"QUEUES": written, "REDACT": ["pin"]}

    read = get_settings()
    written["sms"] = {}

    assert list(read.QUEUES) == ["mail"]
    assert read.REDACT == ("pin",)


@pytest.mark.parametrize("wrong", (None, [], "x", 5), ids=repr)
def test_the_settings_are_a_dict(settings, wrong):
    settings.JOBQUEUE = wrong

    with pytest.raises(ImproperlyConfigured, match="JOBQUEUE must be a dict"):
        get_settings()


@pytest.mark.parametrize(
    ("name", "closest"),
    (
        ("NOTFY", "NOTIFY"),
        ("notify", "NOTIFY"),
        ("MAX_BYTES", "MAX_DATA_BYTES"),
        ("QUEUE", "QUEUES"),
    ),
)
def test_an_unknown_setting_is_refused_with_the_closest(settings, name, closest):
    settings.JOBQUEUE = {name: 1}

    with pytest.raises(ImproperlyConfigured, match=f"Did you mean '{closest}'"):
        get_settings()


def test_a_setting_like_no_other_is_refused_with_all_of_them(settings):
    settings.JOBQUEUE = {"ZZZ": 1}

    with pytest.raises(ImproperlyConfigured, match="The settings are QUEUES, SCHEDULES"):
        get_settings()


@pytest.mark.parametrize(
    ("name", "wrong"),
    (
        ("NOTIFY", 1),
        ("NOTIFY", None),
        ("ARCHIVE", "yes"),
        ("MAX_DEPTH", True),
        ("MAX_DEPTH", 0),
        ("MAX_DEPTH", 501),
        ("MAX_DEPTH", 10.0),
        ("MAX_DATA_BYTES", 0),
        ("MAX_DATA_BYTES", 10 * MEBIBYTE + 1),
        ("MAX_DATA_BYTES", "1"),
        ("POLL_SECONDS", 0),
        ("POLL_SECONDS", float("nan")),
        ("POLL_SECONDS", float("inf")),
        ("POLL_SECONDS", "1"),
        ("LOCK_TIMEOUT_MS", 0),
        ("CRASH_LIMIT", 0),
        ("QUEUES", []),
        ("QUEUE_DEFAULTS", None),
        ("SCHEDULES", "x"),
        ("REDACT", "password"),
        ("REDACT", [1]),
        ("ENCODER", json.JSONEncoder),
    ),
)
def test_a_setting_of_a_wrong_type_or_size_is_refused_by_name(settings, name, wrong):
    settings.JOBQUEUE = {name: wrong}

    with pytest.raises(ImproperlyConfigured, match=rf"JOBQUEUE\['{name}'\]"):
        get_settings()


def test_all_that_is_wrong_is_told_at_once(settings):
    settings.JOBQUEUE = {"NOTIFY": 1, "MAX_DEPTH": 0}

    with pytest.raises(ImproperlyConfigured, match=r"NOTIFY.*MAX_DEPTH"):
        get_settings()


def test_seconds_of_polling_may_be_whole(settings):
    settings.JOBQUEUE = {"POLL_SECONDS": 2}

    assert get_settings().POLL_SECONDS == 2


def test_the_encoder_is_found_by_its_path(settings):
    settings.JOBQUEUE = {"ENCODER": "django.core.serializers.json.DjangoJSONEncoder"}

    assert get_encoder() is DjangoJSONEncoder


def test_without_a_path_there_is_no_encoder():
    assert get_encoder() is None


@pytest.mark.parametrize("path", ("nowhere.Encoder", "json.NoEncoder", "json.dumps", "x", ""))
def test_an_encoder_that_is_none_is_refused(settings, path):
    settings.JOBQUEUE = {"ENCODER": path}

    with pytest.raises(ImproperlyConfigured, match="ENCODER"):
        get_encoder()
