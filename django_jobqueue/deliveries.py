"""Sending a message to operators by mail or to a webhook, in bounded time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from . import __version__
from .alert_options import AlertBy, AlertOptions
from .alert_texts import AlertText
from .process_memory import ProcessMemory

DELIVERY_SECONDS = 30.0  # the longest time for a delivery, with the resolution of names and all answers
ANSWER_SECONDS = 10.0  # the longest time for one answer of a webhook


class NotDelivered(Exception):
    """A message could not be delivered; the text does not contain the URL of the webhook, which may be a secret."""


class RunningDeliveries(ProcessMemory):
    """Deliveries that took too long. While one runs, none is begun by the same channel, so threads do not pile up."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[AlertBy, threading.Thread] = {}

    def forget(self) -> None:
        self.threads.clear()


running = RunningDeliveries()


def deliver(message: AlertText, channel: AlertBy, options: AlertOptions, *, seconds: float = DELIVERY_SECONDS) -> None:
    """Deliver a message, in a thread that is left behind if it takes too long. Raises ``NotDelivered``."""
    before = running.threads.get(channel)
    if before is not None and before.is_alive():
        raise NotDelivered(f"the delivery before has not ended yet{advice(channel)}")
    send = partial(_post, options.webhook) if channel == AlertBy.WEBHOOK else partial(_mail, list(options.mail))
    outcome: Future[None] = Future()
    thread = threading.Thread(target=_run, args=(send, message, outcome), name=f"jobqueue-{channel}", daemon=True)
    running.threads[channel] = thread
    thread.start()
    try:
        outcome.result(timeout=seconds)
    except TimeoutError as error:
        raise NotDelivered(f"no answer within {seconds:g} s{advice(channel)}") from error
    except NotDelivered:
        raise
    except Exception as error:  # a mail backend may raise anything
        raise NotDelivered(f"{type(error).__name__}: {error}") from error


def _run(send: Callable[[AlertText], None], message: AlertText, outcome: Future[None]) -> None:
    try:
        send(message)
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(None)


def advice(channel: AlertBy) -> str:
    """What to do if a delivery takes too long, as the end of a sentence."""
    from django.conf import settings

    if channel != AlertBy.MAIL:
        return ""
    # Django 6.1 refuses EMAIL_TIMEOUT in a project with MAILERS.
    has_mailers = hasattr(settings, "MAILERS")
    return "; set the option 'timeout' of the mailer in MAILERS" if has_mailers else "; set EMAIL_TIMEOUT"


def _mail(recipients: list[str], message: AlertText) -> None:
    from django.conf import settings
    from django.core.mail import send_mail

    subject = f"{settings.EMAIL_SUBJECT_PREFIX}{' '.join(message.subject.split())}"
    send_mail(subject, message.text, settings.SERVER_EMAIL, recipients)


def _post(url: str, message: AlertText) -> None:
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """A redirect would drop the message, and might lead to another scheme or host."""

        def redirect_request(self, *args: object) -> None:
            return None

    document = {
        "text": f"{message.subject}\n\n{message.text}",  # what Slack, Mattermost and others show
        "problems": [notice.as_dict(message.admin) for notice in message.notices],
    }
    headers = {"Content-Type": "application/json", "User-Agent": f"django-jobqueue/{__version__}"}
    request = Request(url, json.dumps(document).encode(), headers, method="POST")  # noqa: S310 # http or https: checked
    try:
        with build_opener(NoRedirects).open(request, timeout=ANSWER_SECONDS) as answer:
            answer.read(1)
    except HTTPError as error:
        with error:
            redirect = "; a redirect is not followed, so set the URL it leads to" if 300 <= error.code < 400 else ""
            raise NotDelivered(f"the webhook answered {error.code} {error.reason}{redirect}") from None
    except URLError as error:
        raise NotDelivered(f"the webhook cannot be reached: {error.reason}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise NotDelivered(f"the webhook gave no valid answer: {type(error).__name__}") from None
