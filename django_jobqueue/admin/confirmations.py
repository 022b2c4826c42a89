"""What a page asks an operator to confirm: the verb, the jobs as they were shown, and an id, signed in the page's URL.

So the page can be opened again, by *Back* or in another tab, and acts only once: its operation has the id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.core import signing
from django.utils.translation import gettext as _

from ..exceptions import InvalidOption, JobQueueError
from ..identifiers import as_uuid, uuid7
from ..selection import Selection
from ..services.operations import Shown, shown_now

SALT = "jobqueue.confirmation"
SHOWN_SALT = "jobqueue.shown"
MAX_AGE = 24 * 3600  # seconds
MAX_CHARS = 3_500  # web servers refuse longer URLs


class NotConfirmable(JobQueueError):
    """A URL cannot be confirmed: it is too old, or was not made here."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A verb for jobs as they were shown; ``back`` is the query of the list that they were selected in."""

    verb: str
    selection: Selection
    snapshot: str
    shown_at: datetime
    back: str = ""
    id: UUID = field(default_factory=uuid7)

    @classmethod
    def of(
        cls, verb: str, selection: Selection, *, shown: Shown | None = None, back: str = "", using: str
    ) -> Confirmation:
        """For the jobs as the list had ``shown`` them; without it, to be made before the jobs are read for the page."""
        shown = shown or shown_now(using=using)
        return cls(verb, selection, shown.snapshot, shown.at, back)

    def token(self) -> str:
        """The signed text for the URL. Raises ``NotConfirmable`` if it would be too long."""
        document = {
            "verb": self.verb,
            "selection": self.selection.to_json(),
            "snapshot": self.snapshot,
            "at": self.shown_at.isoformat(),
            "back": self.back,
            "id": self.id.hex,
        }
        token = signing.dumps(document, salt=SALT, compress=True)
        if len(token) > MAX_CHARS:
            raise NotConfirmable(_("Too many jobs were selected one by one. Select all jobs that match a filter."))
        return token

    @classmethod
    def read(cls, token: str) -> Confirmation:
        """The confirmation of a URL. Raises ``NotConfirmable``."""
        try:
            document = signing.loads(token, salt=SALT, max_age=MAX_AGE)
            return cls(
                document["verb"],
                Selection.from_json(document["selection"]),
                document["snapshot"],
                datetime.fromisoformat(document["at"]),
                document["back"],
                as_uuid(document["id"]),
            )
        except signing.SignatureExpired as error:
            raise _too_old() from error
        except (signing.BadSignature, InvalidOption, KeyError, ValueError, TypeError) as error:
            raise NotConfirmable(_("This page cannot be confirmed. Select the jobs again.")) from error


def token_of(shown: Shown) -> str:
    """What a list has shown, as signed text for its form."""
    return signing.dumps([shown.snapshot, shown.at.isoformat()], salt=SHOWN_SALT, compress=True)


def as_shown(token: str) -> Shown | None:
    """What a list had shown when its form was sent; ``None`` without it. Raises ``NotConfirmable``."""
    if not token:
        return None
    try:
        snapshot, at = signing.loads(token, salt=SHOWN_SALT, max_age=MAX_AGE)
        return Shown(snapshot, datetime.fromisoformat(at))
    except signing.SignatureExpired as error:
        raise _too_old() from error
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise NotConfirmable(_("This list cannot be confirmed. Select the jobs again.")) from error


def _too_old() -> NotConfirmable:
    return NotConfirmable(_("This page is older than a day. Select the jobs again."))
