"""A middleware that gives every request an id. Jobs that the request sends carry it to their handlers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from .carriers import request_id

HEADER = "X-Request-ID"
_VALID = re.compile(r"[\w.:/+=@-]{1,200}")  # clients choose the id, and it is written to logs


class RequestIdMiddleware:
    """Takes the id from the header ``X-Request-ID`` or makes one, and adds the header to the response."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        id = _id_of(request)
        with request_id(id):
            response: HttpResponseBase = self.get_response(request)
        response.headers[HEADER] = id
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        id = _id_of(request)
        with request_id(id):
            response: HttpResponseBase = await self.get_response(request)
        response.headers[HEADER] = id
        return response


def _id_of(request: HttpRequest) -> str:
    given = request.headers.get(HEADER, "")
    return given if _VALID.fullmatch(given) else uuid4().hex
