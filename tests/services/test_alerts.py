"""Operators are told of blocked keys, stopped queues and late schedules, once over all workers, and of their end."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import uuid4

import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.urls import reverse
from django.utils import timezone

from django_jobqueue import deliveries, services
from django_jobqueue.alert_options import AlertBy, alert_options
from django_jobqueue.alert_texts import Notice, trial_message
from django_jobqueue.deliveries import deliver
from django_jobqueue.engine import sql
from django_jobqueue.engine.databases import execute
from django_jobqueue.models import Alert, Job, Maintenance, QueueMinute, Schedule, Worker
from django_jobqueue.services.alerts import claim
from django_jobqueue.states import JobState
from tests.factories import JobFactory, QueueFactory
from tests.past import ago
from tests.webhooks import webhook

ADMIN = "https://shop.example.com/admin/"


@pytest.fixture
def by_mail(settings):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mail": ["ops@example.com"], "url": ADMIN}}


@pytest.fixture
def hook(settings):
    with webhook() as one:
        settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"webhook": one.url}}
        yield one


def blocked(queue, key, error="ShopError: the card has expired", fingerprint="cards", waiting=0):
    job = JobFactory(
        queue=queue, singleton_key=key, state=JobState.FAILED, error=error, fingerprint=fingerprint,
        finalized_at=ago(days=3),
    )  # fmt: skip
    JobFactory.create_batch(waiting, queue=queue, singleton_key=key)
    return job


def later(**delta):
    """As if that much time had passed since everything that alerts remember."""
    for name in ("began_at", "seen_at", "over_at", "sent_at", "claimed_until", "retry_at", "latest_at"):
        for alert in Alert.objects.exclude(**{name: None}):
            Alert.objects.filter(pk=alert.pk).update(**{name: getattr(alert, name) - timedelta(**delta)})


def subjects():
    return [message.subject for message in mail.outbox]


# ------------------------------------------------------------------------------------------------------ blocked keys


def test_operators_are_told_of_blocked_keys_grouped_by_error(by_mail, fifo_queue):
    for number in range(3):
        blocked(fifo_queue, f"ada-{number}", waiting=2)
    blocked(fifo_queue, "ben", "KeyError: 'sku'", "stock")

    told = services.send_alerts()

    assert told == [("mail", 2, "")]
    (message,) = mail.outbox
    assert message.to == ["ops@example.com"]
    first, second = message.body.split("\n\n")
    assert first.startswith("3 blocked keys in 'orders', 6 jobs wait behind, since ")
    assert ": ShopError: the card has expired\nFor example the key 'ada-" in first
    assert first.endswith(f"\n{ADMIN}jobqueue/blockedkey/?queue=orders")
    assert second.startswith("1 blocked key in 'orders', since ")
    assert message.subject.startswith("[Django] 2 problems: 3 blocked keys in 'orders'")


def test_an_error_is_told_once_and_again_when_more_keys_block_after_fifteen_minutes(by_mail, fifo_queue):
    blocked(fifo_queue, "ada")
    services.send_alerts()

    later(minutes=20)
    assert services.send_alerts() == []  # nothing has changed

    Job.objects.filter(pk=blocked(fifo_queue, "ben").pk).update(finalized_at=ago(seconds=1))
    assert services.send_alerts() == [("mail", 1, "")]
    Job.objects.filter(pk=blocked(fifo_queue, "cem").pk).update(finalized_at=ago(seconds=0))
    assert services.send_alerts() == []  # it is too soon

    later(minutes=14)
    assert services.send_alerts() == []
    later(minutes=2)
    assert services.send_alerts() == [("mail", 1, "")]
    assert [subject.split(" in ")[0] for subject in subjects()] == [
        "[Django] 1 blocked key", "[Django] 2 blocked keys", "[Django] 3 blocked keys",
    ]  # fmt: skip


def test_a_problem_that_lasts_is_told_again_after_a_day(by_mail, fifo_queue):
    blocked(fifo_queue, "ada")
    services.send_alerts()

    later(hours=23)
    assert services.send_alerts() == []
    later(hours=2)
    assert services.send_alerts() == [("mail", 1, "")]


def test_the_end_of_a_problem_is_told_once(by_mail, fifo_queue):
    job = blocked(fifo_queue, "ada")
    services.send_alerts()
    later(minutes=33)

    services.skip(job, reason="refunded")
    services.send_alerts()
    services.send_alerts()

    assert len(mail.outbox) == 2
    assert mail.outbox[1].subject.startswith("[Django] Over after 33 min 0 s: 1 blocked key in 'orders'")


def test_an_error_that_comes_back_is_told_fifteen_minutes_after_its_last_alert(by_mail, fifo_queue):
    services.skip(blocked(fifo_queue, "ada"), reason="x")
    job = blocked(fifo_queue, "ben")
    services.send_alerts()
    services.skip(job, reason="refunded")
    services.send_alerts()

    blocked(fifo_queue, "cem")
    assert services.send_alerts() == []
    later(minutes=16)
    assert services.send_alerts() == [("mail", 1, "")]


def test_a_problem_that_was_over_before_it_could_be_told_is_not_told(hook, fifo_queue):
    job = blocked(fifo_queue, "ada")
    hook.status = 500
    services.send_alerts()
    services.skip(job, reason="refunded")
    hook.status = 200
    later(minutes=20)

    assert services.send_alerts() == []


def test_more_errors_than_a_message_can_hold_are_one_problem(by_mail, fifo_queue):
    for number in range(25):
        job = blocked(fifo_queue, f"key-{number}", f"ShopError: no {number}", f"f{number:02}")
        Job.objects.filter(pk=job.pk).update(finalized_at=ago(minutes=60 - number))

    assert services.send_alerts() == [("mail", 21, "")]
    services.send_alerts()

    assert Alert.objects.count() == 21
    assert Alert.objects.get(name="").facts["keys"] == 5
    assert mail.outbox[0].body.endswith("And 1 more.")
    assert len(mail.outbox) == 1


def test_blocked_keys_of_dead_letter_queues_are_not_told(by_mail, fifo_queue):
    QueueFactory(name="source", dead_letter_id="orders")
    blocked(fifo_queue, "ada")

    assert services.send_alerts() == []


def test_secrets_are_not_told(by_mail, fifo_queue):
    blocked(fifo_queue, "token=abc123", "ValueError: login(password='hunter2') at postgres://ada:hunter2@db/shop")

    services.send_alerts()

    assert "hunter2" not in f"{mail.outbox[0].body}{mail.outbox[0].subject}"
    assert "abc123" not in mail.outbox[0].body
    assert "ValueError: login(password='********')" in mail.outbox[0].subject


def test_an_error_with_line_breaks_stays_one_line_in_the_subject(by_mail, fifo_queue):
    blocked(fifo_queue, "a\nBcc: eve@example.com", "ValueError: a\r\nBcc: eve@example.com")

    services.send_alerts()

    assert "\n" not in mail.outbox[0].subject
    assert mail.outbox[0].message()["Bcc"] is None


def test_without_the_url_of_the_admin_a_command_is_named(settings, fifo_queue):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mail": ["ops@example.com"]}}
    blocked(fifo_queue, "ada")

    services.send_alerts()

    assert mail.outbox[0].body.endswith("\nmanage.py jobs blocked orders")


def notice(kind, name, *queues):
    return Notice(kind, name, {"queues": list(queues)}, timezone.now())


def test_the_links_are_pages_of_the_admin(db):
    base = reverse("admin:index")

    assert notice("blocked", "x", "a b").link(base) == (f"{reverse('admin:jobqueue_blockedkey_changelist')}?queue=a+b")
    assert notice("blocked", "x", "a", "b").link(base) == (reverse("admin:jobqueue_blockedkey_changelist"))
    assert notice("stopped", "a").link(base) == f"{reverse('admin:jobqueue_job_changelist')}?queue=a"
    assert notice("late", "a/b_c").link(base) == reverse("admin:jobqueue_schedule_change", args=["a_2Fb_5Fc"])


# ---------------------------------------------------------------------------------------------------- stopped queues


def waiting(queue, minutes=10, **fields):
    return JobFactory(queue=queue, created_at=ago(minutes=minutes), start_after=ago(minutes=minutes), **fields)


def checked_twice():
    services.send_alerts()
    return services.send_alerts()


def counted(queue=None, **counters):
    """As if maintenance had counted the minutes until now."""
    Maintenance.objects.update_or_create(pk=Maintenance.ONLY, defaults={"counted_until": ago(seconds=30)})
    if queue is not None:
        QueueMinute.objects.create(queue=queue, minute=ago(minutes=3), **counters)


def test_a_queue_without_a_worker_stands_still(by_mail, queue):
    waiting(queue)

    assert checked_twice() == [("mail", 1, "")]

    assert "Queue 'work' stands still: no live worker takes its jobs" in subjects()[0]


@pytest.mark.parametrize("queues", (["work"], []), ids=("named", "all"))
def test_a_queue_whose_worker_was_alive_a_moment_ago_does_not_stand_still(by_mail, queue, queues):  # a deployment
    waiting(queue)
    Worker.objects.create(name="w", queues=queues, stopped_at=ago(minutes=4), heartbeat_at=ago(minutes=4))
    Worker.objects.create(name="other", queues=["other"])

    assert checked_twice() == []

    Worker.objects.filter(name="w").update(stopped_at=ago(minutes=6), heartbeat_at=ago(minutes=6))
    assert checked_twice() == [("mail", 1, "")]


def test_a_queue_in_which_nothing_begins_or_ends_stands_still(by_mail, queue):
    waiting(queue)
    Worker.objects.create(name="w", queues=["work"])
    counted(queue, sent=7)

    assert checked_twice() == [("mail", 1, "")]

    assert "no attempt has begun or ended since" in subjects()[0]


@pytest.mark.parametrize("counter", ("started", "completed", "failed", "retried"))
def test_a_queue_in_which_jobs_begin_or_end_does_not_stand_still(by_mail, queue, counter):
    waiting(queue)
    Worker.objects.create(name="w", queues=["work"])
    counted(queue, **{counter: 1})

    assert checked_twice() == []


def test_a_queue_with_a_running_job_does_not_stand_still(by_mail, queue):
    waiting(queue)
    Worker.objects.create(name="w", queues=["work"])
    counted()
    JobFactory(queue=queue, state=JobState.ACTIVE)

    assert checked_twice() == []


def test_without_a_recent_count_no_queue_with_a_worker_is_said_to_stand_still(by_mail, queue):
    waiting(queue)
    Worker.objects.create(name="w", queues=["work"])
    Maintenance.objects.create(counted_until=ago(minutes=4))

    assert checked_twice() == []


def test_paused_queues_and_dead_letter_queues_and_delayed_jobs_do_not_stand_still(by_mail, queue):
    waiting(QueueFactory(name="paused", paused_at=ago(hours=1)))
    QueueFactory(name="source", dead_letter_id="letters")
    waiting(QueueFactory(name="letters"))
    waiting(queue, minutes=4)

    assert checked_twice() == []


def test_a_queue_that_was_just_resumed_is_not_told(by_mail, queue):
    job = waiting(queue)

    assert services.send_alerts() == []  # seen once
    services.cancel(job)
    assert services.send_alerts() == []
    assert mail.outbox == []


def test_after_seconds_decides_when_a_queue_stands_still(settings, queue):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mail": ["ops@example.com"], "after_seconds": 30}}
    waiting(queue, minutes=1)

    assert checked_twice() == [("mail", 1, "")]


# ---------------------------------------------------------------------------------------------------- late schedules


def test_a_late_schedule_is_told_and_its_end(by_mail, queue):
    services.create_schedule("nightly", queue=queue.name, cron="* * * * *")
    Schedule.objects.update(next_at=ago(minutes=4))
    assert services.send_alerts() == []

    Schedule.objects.update(next_at=ago(minutes=6))
    services.send_alerts()
    Schedule.objects.update(next_at=ago(minutes=-1))
    services.send_alerts()

    assert subjects()[0].startswith("[Django] Schedule 'nightly' is late: it was due at ")
    assert subjects()[1].startswith("[Django] Over after ")
    assert f"{ADMIN}jobqueue/schedule/nightly/change/" in mail.outbox[0].body


def test_a_schedule_that_is_off_is_not_late(by_mail, queue):
    services.create_schedule("nightly", queue=queue.name, cron="* * * * *", enabled=False)
    Schedule.objects.update(next_at=ago(hours=1))

    assert services.send_alerts() == []


# -------------------------------------------------------------------------------------------------------- deliveries


def test_a_webhook_receives_text_for_people_and_facts_for_programs(hook, fifo_queue):
    job = blocked(fifo_queue, "ada", waiting=1)

    services.send_alerts()

    (document,) = hook.received
    assert document["text"].startswith("1 blocked key in 'orders', 1 job waits behind, since ")
    (problem,) = document["problems"]
    assert {name: problem[name] for name in ("kind", "name", "status", "queues", "keys", "waiting", "example")} == {
        "kind": "blocked", "name": "cards", "status": "problem", "queues": ["orders"], "keys": 1, "waiting": 1,
        "example": str(job.pk),
    }  # fmt: skip
    assert problem["link"] is None
    assert problem["command"] == "manage.py jobs blocked orders"


def test_a_webhook_that_fails_is_tried_again_at_growing_intervals(hook, fifo_queue, caplog):
    blocked(fifo_queue, "ada")
    hook.status = 500

    assert services.send_alerts() == [("webhook", 1, "the webhook answered 500 Internal Server Error")]
    assert services.send_alerts() == []
    later(seconds=61)
    services.send_alerts()
    later(seconds=61)
    assert services.send_alerts() == []
    hook.status = 200
    later(seconds=61)

    assert services.send_alerts() == [("webhook", 1, "")]
    assert len(hook.received) == 3
    alert = Alert.objects.get()
    assert (alert.failures, alert.error, alert.retry_at) == (0, "", None)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "T0KEN" not in caplog.text


def test_a_redirect_is_not_followed(hook, fifo_queue):
    blocked(fifo_queue, "ada")
    hook.status, hook.headers = 302, {"Location": hook.url.replace("/hook", "/elsewhere"), "Content-Length": "0"}

    ((_, _, error),) = services.send_alerts()

    assert error == "the webhook answered 302 Found; a redirect is not followed, so set the URL it leads to"
    assert len(hook.received) == 1


def test_a_webhook_that_cannot_be_reached_is_told_without_its_url(settings, fifo_queue):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"webhook": "http://127.0.0.1:1/T0KEN"}}
    blocked(fifo_queue, "ada")

    ((_, _, error),) = services.send_alerts()

    assert error == "the webhook cannot be reached: [Errno 111] Connection refused"


def test_a_silent_webhook_does_not_hold_up_its_caller_and_is_not_called_again_meanwhile(hook, fifo_queue):
    options = alert_options()
    message = trial_message("", timezone.now())
    hook.answers.clear()

    with pytest.raises(deliveries.NotDelivered, match=r"no answer within 0\.2 s"):
        deliver(message, AlertBy.WEBHOOK, options, seconds=0.2)
    with pytest.raises(deliveries.NotDelivered, match="has not ended yet"):
        deliver(message, AlertBy.WEBHOOK, options)
    hook.answers.set()
    deliveries.running.threads[AlertBy.WEBHOOK].join(5)

    deliver(message, AlertBy.WEBHOOK, options)


@pytest.mark.parametrize(
    ("mailers", "advice"), ((None, "set EMAIL_TIMEOUT"), ({}, "set the option 'timeout' of the mailer in MAILERS"))
)
def test_the_advice_about_a_slow_mail_server_names_a_setting_of_this_project(settings, mailers, advice):
    settings.MAILERS = mailers or {}
    if mailers is None:
        del settings.MAILERS

    assert deliveries.advice(AlertBy.MAIL) == f"; {advice}"
    assert deliveries.advice(AlertBy.WEBHOOK) == ""


def test_a_dead_mail_server_does_not_delay_the_webhook(hook, settings, fifo_queue):
    backend = "django.core.mail.backends.smtp.EmailBackend"
    if hasattr(settings, "MAILERS"):  # from Django 6.1 on
        settings.MAILERS = {"default": {"BACKEND": backend, "OPTIONS": {"host": "127.0.0.1", "port": 1}}}
    else:
        settings.EMAIL_BACKEND, settings.EMAIL_HOST, settings.EMAIL_PORT = backend, "127.0.0.1", 1
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mail": ["ops@example.com"], "webhook": hook.url}}
    blocked(fifo_queue, "ada")

    (mailed, posted) = services.send_alerts()

    assert mailed.error == "ConnectionRefusedError: [Errno 111] Connection refused"
    assert posted == ("webhook", 1, "")
    assert services.send_alerts() == []


def test_a_process_that_ends_after_its_claim_does_not_lose_the_alert(hook, fifo_queue):
    blocked(fifo_queue, "ada")
    hook.status = 500
    services.send_alerts()
    later(minutes=2)
    assert claim(AlertBy.WEBHOOK, uuid4(), using="default")  # and then it is killed
    hook.status = 200

    later(seconds=110)
    assert services.send_alerts() == []
    later(seconds=15)
    assert services.send_alerts() == [("webhook", 1, "")]
    assert services.send_alerts() == []


def test_the_result_of_a_claim_that_expired_is_not_recorded(hook, fifo_queue):
    blocked(fifo_queue, "ada")
    Alert.objects.create(channel="webhook", kind="blocked", name="cards", latest_at=ago(minutes=1))
    late = claim(AlertBy.WEBHOOK, uuid4(), using="default")
    later(minutes=3)
    Alert.objects.update(holder=uuid4())

    execute("default", sql.alerts.DELIVERED,
        {"holder": uuid4(), "ids": [late[0].id], "seen": [late[0].seen_at]})  # fmt: skip

    assert not Alert.objects.get().is_told


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_one_tells_each_problem(hook, fifo_queue, race):
    blocked(fifo_queue, "ada")

    race(8, lambda: services.send_alerts())
    race(8, lambda: services.send_alerts(every=30))

    assert len(hook.received) == 1


def test_a_check_is_left_out_if_another_process_has_just_made_one(by_mail, fifo_queue):
    services.send_alerts()
    blocked(fifo_queue, "ada")

    assert services.send_alerts(every=30) == []
    Maintenance.objects.update(alerts_at=ago(seconds=31))
    assert services.send_alerts(every=30) == [("mail", 1, "")]


def test_a_channel_that_is_not_in_the_settings_any_more_is_forgotten(by_mail, settings, fifo_queue):
    blocked(fifo_queue, "ada")
    services.send_alerts()
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"webhook": "http://127.0.0.1:1/"}}

    services.send_alerts()

    assert list(Alert.objects.values_list("channel", flat=True)) == ["webhook"]


def test_problems_that_are_over_for_a_day_are_forgotten(by_mail, fifo_queue):
    job = blocked(fifo_queue, "ada")
    services.send_alerts()
    services.skip(job, reason="refunded")
    services.send_alerts()

    later(hours=25)
    services.send_alerts()

    assert not Alert.objects.exists()


def test_without_the_setting_nothing_is_read(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert services.send_alerts() == []


def test_invalid_options_are_refused(settings, db):
    settings.JOBQUEUE = {**settings.JOBQUEUE, "ALERTS": {"mails": ["ops@example.com"]}}

    with pytest.raises(ImproperlyConfigured, match=r"'mails'\] is not an option\. Did you mean 'mail'"):
        services.send_alerts()
