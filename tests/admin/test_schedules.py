"""Schedules: in words, their slots; run now, turn on and off, change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.urls import reverse

from django_jobqueue import services
from django_jobqueue.admin.schedules import slots_of
from django_jobqueue.models import Job, Operation, Schedule
from tests.admin.pages import hidden, read

pytestmark = pytest.mark.django_db

SCHEDULES = "/admin/jobqueue/schedule/"


@pytest.fixture
def schedule(queue):
    return services.create_schedule(
        "nightly", queue.name, "30 2 * * *", timezone="Europe/Berlin", data={"word": "marzipan"}
    )


def page_of(schedule, what="change"):
    return reverse(f"admin:jobqueue_schedule_{what}", args=[schedule.name])


def test_the_list_describes_schedules_in_words(boss, schedule):
    assert "At 02:30 every day" in read(boss.get(SCHEDULES)).text
    assert "Europe/Berlin" in read(boss.get(page_of(schedule))).text


def test_the_next_five_runs_have_offsets_and_a_note_where_clocks_change(schedule, monkeypatch):
    before = datetime(2026, 10, 23, 12, tzinfo=UTC)
    monkeypatch.setattr("django_jobqueue.models.schedule.clock.now", lambda: before)

    found = slots_of(schedule)

    assert [slot["offset"] for slot in found] == ["+0200", "+0200", "+0100", "+0100", "+0100"]
    assert [slot["changed"] for slot in found] == [False, False, True, False, False]


def test_it_is_run_now_once_per_page_and_that_is_recorded(boss, schedule):
    given = {**hidden(boss.get(page_of(schedule))), "reason": "the report is missing"}
    boss.post(page_of(schedule, "run"), given)
    page = boss.post(page_of(schedule, "run"), given, follow=True)  # a double click

    (job,) = Job.objects.all()
    assert f"#{job.seq}" in read(page).text
    assert "by hand" in read(page).text
    operation = Operation.objects.get()
    assert (operation.verb, operation.schedule, operation.moved) == ("run_schedule", "nightly", 1)
    for query in (f"schedule={schedule.pk}", f"job={job.pk}"):
        assert "boss the report is missing" in read(boss.get(f"/admin/jobqueue/operation/?{query}")).text


def test_a_run_that_sends_nothing_says_so(boss, exclusive_queue):
    schedule = services.create_schedule("one", exclusive_queue.name, "@daily")
    boss.post(page_of(schedule, "run"))

    page = boss.post(page_of(schedule, "run"), follow=True)

    assert "allows no other job" in read(page).text
    assert Job.objects.count() == 1


def test_it_is_turned_off_and_on(boss, schedule):
    boss.post(page_of(schedule, "switch"), {"enabled": "0"})
    assert Schedule.objects.get().enabled, "that needs a reason"
    boss.post(page_of(schedule, "switch"), {"enabled": "0", "reason": "holidays"})
    assert not Schedule.objects.get().enabled
    boss.post(page_of(schedule, "switch"), {"enabled": "1"})
    assert Schedule.objects.get().enabled
    turn_off = {"action": "turn_off", "_selected_action": [schedule.pk], "index": 0}
    boss.post(SCHEDULES, turn_off)
    assert Schedule.objects.get().enabled, "that needs a reason"
    boss.post(SCHEDULES, {**turn_off, "reason": "holidays"})
    assert not Schedule.objects.get().enabled
    changes = [operation.details["changed"]["enabled"]["after"] for operation in Operation.objects.order_by("pk")]
    assert changes == [False, True, False]


def form(client, address, **changes):
    shown = client.get(address).context["adminform"].form
    given = {name: shown[name].value() for name in shown.fields}
    given = {name: "" if value is None else value for name, value in given.items() if value is not False}
    return client.post(address, given | changes)


def test_a_schedule_made_with_what_the_form_shows_is_on(boss, queue):
    response = form(boss, f"{SCHEDULES}add/", name="nightly", queue=queue.name, cron="0 2 * * *")

    assert response.status_code == 302
    made = Schedule.objects.get()
    as_by_verb = services.create_schedule("other", queue.name, "0 2 * * *")
    for field in ("enabled", "timezone", "catch_up", "priority", "tags", "data", "options", "next_at"):
        assert getattr(made, field) == getattr(as_by_verb, field), field


def test_options_that_are_left_empty_get_their_defaults(boss, queue):
    given = {
        "name": "nightly",
        "queue": queue.name,
        "cron": "0 2 * * *",
        "enabled": "on",
        "data": "null",
        "options": "{}",
    }

    assert boss.post(f"{SCHEDULES}add/", given).status_code == 302
    made = Schedule.objects.get()
    assert (made.timezone, made.catch_up, made.priority, made.handler, made.tags) == ("UTC", "last", 0, "", [])


def test_a_handler_that_does_not_exist_is_refused(boss, queue, handlers_not_imported):
    given = {"name": "nightly", "queue": queue.name, "cron": "0 2 * * *"}

    page = form(boss, f"{SCHEDULES}add/", **given, handler="late.reprot")
    assert "There is no handler named 'late.reprot'. Did you mean 'late.report'?" in read(page).text
    assert form(boss, f"{SCHEDULES}add/", **given, handler=handlers_not_imported).status_code == 302


def test_a_handler_that_the_schedule_has_already_is_kept(boss, schedule):
    """Another project, or newer code, may run it."""
    Schedule.objects.update(handler="elsewhere.report")

    assert form(boss, page_of(schedule), cron="0 4 * * *").status_code == 302
    assert "no handler named" in read(form(boss, page_of(schedule), handler="elsewhere.reprot")).text


def test_it_is_changed(boss, schedule):
    response = form(boss, page_of(schedule), cron="0 4 * * *")

    assert response.status_code == 302
    changed = Schedule.objects.get()
    assert changed.cron == "0 4 * * *"
    assert changed.next_at is not None
    operation = Operation.objects.get()
    assert (operation.verb, operation.operator, operation.schedule) == ("update_schedule", "boss", "nightly")
    assert operation.details["changed"] == {"cron": {"before": "30 2 * * *", "after": "0 4 * * *"}}


def test_sensitive_values_are_hidden_and_kept(boss, queue):
    schedule = services.create_schedule("secret", queue.name, "@daily", data={"password": "hunter2", "n": 1})

    assert "hunter2" not in boss.get(page_of(schedule)).content.decode()
    assert form(boss, page_of(schedule), data='{"password": "********", "n": 2}').status_code == 302
    assert Schedule.objects.get(pk="secret").data == {"password": "hunter2", "n": 2}
    Schedule.objects.update(from_code=True)
    assert "hunter2" not in boss.get(page_of(schedule)).content.decode()


def test_a_line_that_makes_no_sense_is_refused(boss, schedule):
    page = form(boss, page_of(schedule), cron="99 * * * *")

    assert "not a valid minute" in read(page).text
    assert Schedule.objects.get().cron == "30 2 * * *"


def test_what_settings_declare_is_read_only_but_can_be_run_and_switched(boss, schedule):
    Schedule.objects.update(from_code=True)

    assert "Declared in settings" in read(boss.get(page_of(schedule))).text
    assert boss.post(page_of(schedule), {"cron": "@daily"}).status_code == 403
    assert boss.post(page_of(schedule, "switch"), {"enabled": "0"}).status_code == 302
    assert boss.post(page_of(schedule, "run")).status_code == 302


def test_each_act_has_its_permission_and_data_is_hidden(login, schedule):
    client = login("view_schedule")

    assert "marzipan" not in client.get(page_of(schedule)).content.decode()
    assert client.post(page_of(schedule, "run")).status_code == 403
    assert client.post(page_of(schedule, "switch"), {"enabled": "0"}).status_code == 403
    changer = login("view_schedule", "change_schedule", name="changer")  # but may not see data
    assert changer.post(page_of(schedule), {"cron": "@daily"}).status_code == 403
    assert "marzipan" not in changer.get(page_of(schedule)).content.decode()
    assert login("view_schedule", "run_schedule", name="runner").post(page_of(schedule, "run")).status_code == 302


def test_a_schedule_that_is_gone_is_not_found(boss):
    for what in ("run", "switch"):
        page = boss.post(reverse(f"admin:jobqueue_schedule_{what}", args=["gone"]), {"reason": "x"}, follow=True)
        assert "There is no schedule gone: it may have been deleted." in read(page).text


def test_a_schedule_is_deleted_from_its_page_unless_settings_declare_it(boss, login, schedule):
    delete = page_of(schedule, "delete")
    assert "delete_selected" not in boss.get(SCHEDULES).content.decode()
    assert login("view_schedule").post(delete, {"post": "yes"}).status_code == 403
    Schedule.objects.update(from_code=True)
    assert boss.post(delete, {"post": "yes"}).status_code == 403
    Schedule.objects.update(from_code=False)

    assert "give a reason" in read(boss.post(delete, {"post": "yes"}, follow=True)).text
    assert Schedule.objects.exists()
    boss.post(delete, {"post": "yes", "reason": "not used"})

    assert not Schedule.objects.exists()
