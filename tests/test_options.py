from __future__ import annotations

import inspect
from datetime import timedelta
from enum import IntEnum

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobqueue.exceptions import InvalidOption
from django_jobqueue.options import (
    JOB_OPTIONS,
    QUEUE_OPTIONS,
    check_moment,
    clean_job_options,
    clean_queue_options,
    queue_defaults,
    schedule_defaults,
)
from django_jobqueue.policies import QueuePolicy
from django_jobqueue.services import create_schedule

DAY = 86_400


@pytest.mark.parametrize(
    ("option", "default"),
    (
        ("policy", "standard"),  # R077
        ("partition", False),  # R092
        ("retry_limit", 2),  # R098
        ("retry_delay", 0),  # R099
        ("retry_backoff", False),  # R100
        ("retry_delay_max", None),  # R105
        ("heartbeat_seconds", None),  # R106
        ("expire_in_seconds", 900),  # R116
        ("retention_seconds", 14 * DAY),  # R118
        ("delete_after_seconds", 7 * DAY),  # R120
        ("delete_failed_after_seconds", 7 * DAY),
        ("dead_letter", None),  # R336
        ("warning_queue_size", None),
        ("delayed_head", "pass"),  # B18
        ("on_exhausted", "block"),  # B23
        ("description", ""),
    ),
)
def test_a_queue_that_names_no_options_gets_these(option, default):
    assert queue_defaults()[option] == default


def test_the_verb_that_makes_a_schedule_shows_the_defaults_in_its_signature():
    shown = {name: one.default for name, one in inspect.signature(create_schedule).parameters.items()}
    defaults = schedule_defaults()

    for option in ("timezone", "handler", "data", "priority", "catch_up"):
        assert shown[option] == defaults[option]
    assert all(not shown[option] and not defaults[option] for option in ("singleton_key", "group_key", "tags"))


def test_every_option_has_a_default():
    assert set(queue_defaults()) == set(QUEUE_OPTIONS)
    assert set(JOB_OPTIONS) < set(QUEUE_OPTIONS)


def test_defaults_can_be_replaced_for_all_queues(settings):  # R330 R331 R332 R333 R334 R335
    wanted = {
        "retry_limit": 3,
        "retry_delay": 60,
        "retry_backoff": True,
        "expire_in_seconds": 900,
        "delete_after_seconds": 86_400,
        "delete_failed_after_seconds": 604_800,
    }
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": wanted}

    assert queue_defaults() | wanted == queue_defaults()
    assert queue_defaults()["retention_seconds"] == 14 * DAY


def test_wrong_defaults_are_a_wrong_configuration(settings):
    settings.JOBQUEUE = {"QUEUE_DEFAULTS": {"heartbeat_seconds": 9}}

    with pytest.raises(ImproperlyConfigured, match=r"QUEUE_DEFAULTS.*heartbeat_seconds: .* 10"):
        queue_defaults()


@pytest.mark.parametrize(
    ("option", "least"),
    (
        ("retry_limit", 0),
        ("retry_delay", 0),
        ("retry_delay_max", 1),
        ("heartbeat_seconds", 10),  # R107
        ("expire_in_seconds", 1),  # R117
        ("retention_seconds", 1),  # R119
        ("delete_after_seconds", 0),  # R121
        ("delete_failed_after_seconds", 0),
    ),
)
def test_an_option_has_a_least_and_a_largest_value(option, least):
    largest = 2**31 - 1

    assert clean_job_options({option: least}) == {option: least}
    assert clean_queue_options({option: largest}) == {option: largest}
    with pytest.raises(InvalidOption, match=f"{option}: must be at least {least}"):
        clean_job_options({option: least - 1})
    with pytest.raises(InvalidOption, match=f"{option}: must be at most"):
        clean_queue_options({option: largest + 1})


def test_a_heartbeat_may_be_set_or_turned_off_for_one_job():  # R108
    assert clean_job_options({"heartbeat_seconds": 15}) == {"heartbeat_seconds": 15}
    assert clean_job_options({"heartbeat_seconds": None}) == {"heartbeat_seconds": None}


def test_no_retry_limit_means_unlimited():  # B4
    assert clean_job_options({"retry_limit": None}) == {"retry_limit": None}


@pytest.mark.parametrize("option", ("retry_delay", "retry_backoff", "expire_in_seconds", "policy"))
def test_none_is_refused_where_it_has_no_meaning(option):
    with pytest.raises(InvalidOption, match=f"{option}: expected"):
        clean_queue_options({option: None})


@pytest.mark.parametrize("option", JOB_OPTIONS)
@pytest.mark.parametrize("value", ("5", 1.5, [], b"5", float("nan")), ids=repr)
def test_no_job_option_is_guessed_from_another_type(option, value):
    with pytest.raises(InvalidOption, match=f"{option}: expected"):
        clean_job_options({option: value})


def test_a_bool_is_not_a_number_and_a_number_not_a_bool():
    with pytest.raises(InvalidOption, match="retry_limit: expected an int, got True"):
        clean_job_options({"retry_limit": True})
    with pytest.raises(InvalidOption, match="expire_in_seconds: expected seconds"):
        clean_job_options({"expire_in_seconds": True})
    with pytest.raises(InvalidOption, match="retry_backoff: expected True or False, got 1"):
        clean_job_options({"retry_backoff": 1})


@pytest.mark.parametrize(
    ("given", "stored"),
    (
        (timedelta(minutes=5), 300),
        (timedelta(seconds=10, microseconds=1), 11),
        (timedelta(days=2), 2 * DAY),
        (30, 30),
    ),
)
def test_durations_are_stored_as_whole_seconds_rounded_up(given, stored):
    assert clean_job_options({"expire_in_seconds": given}) == {"expire_in_seconds": stored}


def test_a_negative_duration_is_refused():
    with pytest.raises(InvalidOption, match="retry_delay: must be at least 0, got -1"):
        clean_job_options({"retry_delay": timedelta(seconds=-1)})


def test_a_far_too_large_number_is_refused_in_a_short_message():
    with pytest.raises(InvalidOption, match="a much larger number") as caught:
        clean_job_options({"retry_limit": 10**10_000})

    assert len(str(caught.value)) < 200


def test_numbers_are_stored_as_plain_numbers():
    Limit = IntEnum("Limit", {"FEW": 3})

    assert type(clean_job_options({"retry_limit": Limit.FEW})["retry_limit"]) is int


def test_fifo_is_another_name_of_the_ordered_policy():  # B1
    assert clean_queue_options({"policy": "fifo"}) == {"policy": "key_strict_fifo"}


@pytest.mark.parametrize("policy", QueuePolicy.values)
def test_every_policy_is_accepted_by_name_or_member(policy):
    assert clean_queue_options({"policy": policy}) == {"policy": policy}
    assert type(clean_queue_options({"policy": QueuePolicy(policy)})["policy"]) is str


def test_an_unknown_policy_is_refused_with_the_closest():
    with pytest.raises(InvalidOption, match="Did you mean 'singleton'"):
        clean_queue_options({"policy": "singelton"})


@pytest.mark.parametrize(
    ("option", "value"),
    (("delayed_head", "block"), ("on_exhausted", "skip"), ("delayed_head", "pass")),
)
def test_a_choice_is_accepted(option, value):
    assert clean_queue_options({option: value}) == {option: value}


@pytest.mark.parametrize(("option", "value"), (("delayed_head", "skip"), ("on_exhausted", "pass"), ("on_exhausted", 1)))
def test_anything_but_the_choices_is_refused(option, value):
    with pytest.raises(InvalidOption, match=f"{option}: expected '"):
        clean_queue_options({option: value})


def test_a_dead_letter_is_the_name_of_another_queue():  # R336
    assert clean_queue_options({"dead_letter": "dead"}, name="mail") == {"dead_letter": "dead"}
    with pytest.raises(InvalidOption, match="dead_letter: ';' is not allowed"):
        clean_queue_options({"dead_letter": "a;b"})
    with pytest.raises(InvalidOption, match="dead_letter: must not be empty"):
        clean_queue_options({"dead_letter": ""})


def test_a_queue_is_not_its_own_dead_letter():
    with pytest.raises(InvalidOption, match="dead_letter: the queue 'mail' cannot be its own"):
        clean_queue_options({"dead_letter": "mail"}, name="mail")


def test_a_description_is_short_text():
    assert clean_queue_options({"description": None}) == {"description": ""}
    with pytest.raises(InvalidOption, match="description: has 501 characters"):
        clean_queue_options({"description": "x" * 501})


def test_a_warning_size_is_at_least_one():
    with pytest.raises(InvalidOption, match="warning_queue_size: must be at least 1"):
        clean_queue_options({"warning_queue_size": 0})


def test_only_the_given_options_come_back():
    assert clean_queue_options({}) == clean_job_options({}) == {}
    assert clean_queue_options({"retry_limit": 1}) == {"retry_limit": 1}


@pytest.mark.parametrize("name", ("retrylimit", "retryLimit", "retry_limits"))
def test_an_unknown_option_is_refused_with_the_closest(name):
    with pytest.raises(InvalidOption, match=r"no such option.* Did you mean 'retry_limit'"):
        clean_queue_options({name: 1})


@pytest.mark.parametrize(("name", "meant"), (("dta", "data"), ("tag", "tags"), ("retrylimit", "retry_limit")))
def test_an_unknown_option_of_an_item_is_refused_with_the_closest_of_items(name, meant):
    with pytest.raises(InvalidOption, match=f"no such option.* Did you mean '{meant}'"):
        clean_job_options({name: 1})
    with pytest.raises(InvalidOption, match=r"The options are data, delay, .*tags, throttle_seconds\.$"):
        clean_job_options({"xyzzy": 1})


def test_a_time_from_now_is_no_moment():
    with pytest.raises(InvalidOption, match=r"start_after: expected a datetime.* For a time from now, use delay"):
        check_moment(timedelta(hours=1))


def test_an_option_of_queues_is_not_one_of_jobs():
    with pytest.raises(InvalidOption, match="policy: is an option of queues"):
        clean_job_options({"policy": "fifo"})
