"""Finding a job by its number, which people see everywhere, but which is in no b-tree: every send would pay for it."""

from __future__ import annotations

from functools import partial
from uuid import UUID

from django.db import OperationalError, transaction
from psycopg.errors import QueryCanceled

from . import sql
from .databases import rows
from .transactions import in_transaction

NEAR = 2_000  # jobs read on either side of where the number must be
MOST_MS = 2_000  # for each of the two statements


class TooManyJobs(Exception):
    """The table is too large to look for a number at every job."""


def id_with_number(number: int, using: str) -> UUID | None:
    """The id of the job with this number; ``None`` if there is none. Raises ``TooManyJobs``."""
    return in_transaction(using, partial(_find, number, using))


def _find(number: int, using: str) -> UUID | None:
    params = {"number": number, "near": NEAR}
    near = _bounded(using, sql.inspect.WITH_NUMBER, params)
    if near:
        return near[0]
    anywhere = _bounded(using, sql.inspect.WITH_NUMBER_ANYWHERE, params)
    if anywhere is None:
        raise TooManyJobs
    return anywhere[0] if anywhere else None


def _bounded(using: str, statement: str, params: dict[str, int]) -> list[UUID] | None:
    """The ids that the statement finds; ``None`` if it takes too long."""
    try:
        with transaction.atomic(using=using):
            ((before, _),) = rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [f"{MOST_MS}ms"])
            ids = [id for (id,) in rows(using, statement, params)]
            rows(using, sql.session.SWAP_STATEMENT_TIMEOUT, [before])
            return ids
    except OperationalError as error:
        if not isinstance(error.__cause__, QueryCanceled):
            raise
        return None
