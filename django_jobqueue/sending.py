"""Sending jobs for a handler: its options, and the options of one send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from .exceptions import DuplicateJob, InvalidOption
from .key_functions import KEYS, KeyFunction
from .send_options import (
    NOT_OF_ITEMS,
    REFUSABLE,
    Item,
    KeyedSendOptions,
    PlainSendOptions,
    Refusing,
    Sure,
    closest,
    unknown_of_sends,
)

if TYPE_CHECKING:
    from .handlers import Handler
    from .models import Job

P = ParamSpec("P")
S = TypeVar("S")  # what a send returns: Job, or Job | None if the job can be refused


class Sendable(Generic[P, S]):
    """What has ``send``: a handler, or a handler with other options."""

    def _send_with(self, handler: Handler[P, Any, Any], options: Mapping[str, Any]) -> None:
        """Keep the options of this sender. Raises ``InvalidOption`` for a key that cannot be computed."""
        prepared = {"name": handler.name, **options}
        for option in KEYS:
            if callable(key := prepared.get(option)) and not isinstance(key, KeyFunction):
                prepared[option] = KeyFunction(key, option, handler.signature if handler.unpack else None)
        self._handler, self._options = handler, prepared
        self._computed = [(option, prepared[option]) for option in KEYS if callable(prepared.get(option))]
        self._queue: str = prepared.get("queue", handler.queue)
        self._to_send = prepared
        if "queue" in prepared:
            self._to_send = {name: value for name, value in prepared.items() if name != "queue"}
        self._is_sure = "on_duplicate" not in prepared and REFUSABLE.isdisjoint(prepared)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Store a job for this handler, in the caller's transaction; like :func:`django_jobqueue.services.send`.

        Returns ``None`` if the policy of the queue refuses a job with a ``singleton_key`` or ``throttle_seconds``, or
        one sent with ``on_duplicate="ignore"``. Raises ``DuplicateJob`` if the policy refuses a job without them.
        """
        from .services import send

        queue, data, options = self._prepared(args, kwargs)
        return self._sent(send(queue, data, **options))

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> S:
        """Like :meth:`send`, for async code."""
        from .services import asend

        queue, data, options = self._prepared(args, kwargs)
        return self._sent(await asend(queue, data, **options))

    def item(self, *args: P.args, **kwargs: P.kwargs) -> Item:
        """The item for ``send_many`` that stands for a job of this handler.

        Its queue, its database and ``on_duplicate`` are left out: they are arguments of ``send_many``.
        """
        _, data, options = self._prepared(args, kwargs)
        stored = {name: value for name, value in options.items() if name not in NOT_OF_ITEMS}
        return cast(Item, {"data": data, **stored})

    @overload
    def using(self, *, on_duplicate: Sure, **options: Unpack[KeyedSendOptions]) -> Sender[P, Job]: ...
    @overload
    def using(self, **options: Unpack[PlainSendOptions]) -> Sender[P, S]: ...
    @overload
    def using(self, *, on_duplicate: Refusing = None, **options: Unpack[KeyedSendOptions]) -> Sender[P, Job | None]: ...
    def using(self, **options: Any) -> Sender[P, Any]:
        """The handler with other options of ``send``: ``remind.using(delay=60, priority=5).send(user_id=1)``.

        Raises ``InvalidOption`` for an option that does not exist.
        """
        if (unknown := unknown_of_sends(options)) is not None:
            raise InvalidOption(unknown[:100], "there is no such option", hint=closest(unknown))
        return Sender(self._handler, {**self._options, **options})

    def _sent(self, job: Job | None) -> S:
        if job is None and self._is_sure:  # the type of this call promises a job
            raise DuplicateJob(self._queue, ["the policy of the queue allows no further job now"])
        return cast(S, job)

    def _prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
        data = self._handler.bind(args, kwargs)
        options = dict(self._to_send)
        for option, key in self._computed:
            options[option] = key(data)
        return self._queue, data, options


class Sender(Sendable[P, S]):
    """A handler with other options of ``send``."""

    def __init__(self, handler: Handler[P, Any, Any], options: Mapping[str, Any]) -> None:
        self._send_with(handler, options)
