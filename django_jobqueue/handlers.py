"""Handlers: the decorator ``@job``, and the registry of all handlers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from .conf import valid_settings
from .exceptions import InvalidOption
from .key_functions import named_arguments
from .log_texts import error_line
from .options import YEAR
from .send_options import OF_DECORATOR, KeyedOptions, PlainOptions, Refusing, Sure, closest, unknown_of_decorator
from .sending import S, Sendable
from .text import check_queue_name

if TYPE_CHECKING:
    from .models import Job

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("django_jobqueue")

# Exceptions that a handler raises to decide how its attempt ends ----------------------------------------------------


class RetryLater(Exception):
    """Fail this attempt, and try again after ``delay`` seconds, or ``at`` a time, instead of the delay of the queue."""

    def __init__(
        self, message: str = "", *, delay: float | timedelta | None = None, at: datetime | None = None
    ) -> None:
        self.delay, self.at = delay, at
        super().__init__(message or "the handler asked for another attempt")


class FailForGood(Exception):
    """Fail the job for good, even if retries are left."""


class CancelJob(Exception):
    """End the job as stopped: its work is no longer needed."""


class Snooze(Exception):
    """Return the job to the queue without using up a retry; it starts again after ``delay`` seconds."""

    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        self.delay = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        super().__init__(message or f"snoozed for {self.delay:g} seconds")


class JobExpired(BaseException):
    """Raised inside a handler whose time is used up, or whose claim was lost.

    It is not an ``Exception``, so that ``except Exception`` does not catch it.
    """


class JobContext:
    """The first argument of a handler with ``takes_context=True``."""

    def __init__(self, job: Job, *, deadline: datetime | None = None) -> None:
        self.job = job
        self.attempt = job.attempt
        self.deadline = deadline or job.expire_at
        self.cancelled = False  # whether the job was cancelled, or its claim was lost
        self.logger = logging.LoggerAdapter(
            logging.getLogger("django_jobqueue.handlers"),
            {"job": str(job.pk), "queue": job.queue_id, "key": job.singleton_key, "attempt": job.attempt},
        )

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress, from 0 to 1. It is stored about once a second, outside of your transactions."""
        if not 0 <= fraction <= 1:
            raise InvalidOption("fraction", f"expected a number from 0 to 1, got {fraction!r}")
        self._report(float(fraction), str(text))

    def touch(self) -> None:
        """Send a heartbeat, for a job whose heartbeat the worker does not send."""
        self._touch()

    def _report(self, fraction: float, text: str) -> None:
        """Replaced by the worker."""

    def _touch(self) -> None:
        """Replaced by the worker."""


Rule = bool | float


SENDING_ELSEWHERE = frozenset({"apply_async", "async_task", "defer", "delay", "enqueue"})  # in other queues


class Handler(Sendable[P, S], Generic[P, R, S]):
    """A function that does the work of jobs. Calling it calls the function; ``send`` stores a job for it.

    For type checkers, ``P`` and ``R`` are the arguments and the result of the function, and ``S`` is what ``send``
    returns: ``Job``, or ``Job | None`` if the job can be refused.
    """

    named_only: ClassVar[bool] = False  # whether jobs must name it, even if it is the only handler of its queue
    positional: Sequence[str] = ()  # the names of arguments that its jobs store without names

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        queue: str,
        name: str,
        aliases: Iterable[str] = (),
        takes_context: bool = False,
        atomic: bool = False,
        unpack: bool = True,
        default: bool = False,
        retries: Mapping[type[BaseException], Rule] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.function, self.queue, self.name, self.aliases = function, queue, name, tuple(aliases)
        self.queues: tuple[str, ...] = (queue,)  # the queues that its jobs may be in
        self.takes_context, self.atomic, self.unpack, self.default = takes_context, atomic, unpack, default
        self.retries = dict(retries or {})
        self.options = dict(options or {})
        self._called: str = getattr(function, "__name__", name)
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = _signature(function, self)  # of the arguments of a send
        self._send_with(self, self.options)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))

    if not TYPE_CHECKING:  # type checkers find what does not exist

        def __getattr__(self, name):
            if name in SENDING_ELSEWHERE:
                raise AttributeError(f"A handler has no {name}(). Send a job: {self._called}.send(…).")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<handler {self.name} of queue {self.queue}>"

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The data of a job for a call with these arguments. Raises ``TypeError`` if the handler does not take them."""
        if not self.unpack:
            if kwargs or len(args) > 1:
                raise TypeError(f"{self.name}() takes its data as one argument")
            return args[0] if args else None
        try:
            return named_arguments(self.signature, args, kwargs) or None
        except TypeError as error:
            raise TypeError(f"{self._called}(): {error}") from None

    def call(self, job: Job, context: JobContext | None) -> Any:
        """Call the function with the data of the job. Returns a coroutine if it is asynchronous."""
        data = job.data
        first = (context,) if self.takes_context else ()
        if not self.unpack:
            return self.function(*first, data)
        if type(data) is dict:
            return self.function(*first, **data)
        return self.function(*first) if data is None else self.function(*first, data)

    def rule_for(self, error: BaseException) -> Rule:
        """The rule for an error: retry with the delay of the job (``True``) or these seconds, or never (``False``)."""
        for kind in type(error).__mro__:
            if kind in self.retries:
                return self.retries[kind]
        return True


def _signature(function: Callable[..., Any], handler: Handler[Any, Any, Any]) -> inspect.Signature:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ImproperlyConfigured(f"{handler.name}() is a generator function: calling it would not run its code.")
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if handler.takes_context:
        if not parameters:
            raise ImproperlyConfigured(f"{handler.name}() takes the context as its first argument, but has none.")
        parameters = parameters[1:]
    for one in parameters if handler.unpack else ():
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
            raise ImproperlyConfigured(
                f"{handler.name}(): jobs call their handler by the names of its arguments, so {one} cannot be given. "
                "Name it, or take the data as one argument with @job(unpack=False)."
            )
    return signature.replace(parameters=parameters)


# The registry -------------------------------------------------------------------------------------------------------

Source = Callable[[str], "Handler[Any, Any, Any] | None"]


class HandlerRegistry:
    """The handlers that the imported modules declare, and other sources of handlers.

    It exists as long as the process, because a module declares its handlers once, when it is imported.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Handler[Any, Any, Any]] = {}  # by name and alias
        self.sources: list[Source] = []

    @contextmanager
    def restored(self, *, empty: bool = False) -> Iterator[None]:
        """For tests that declare handlers: forget them after the block. With ``empty`` none is known at first."""
        before = self.by_name
        self.by_name = {} if empty else dict(before)
        try:
            yield
        finally:
            self.by_name = before


registry = HandlerRegistry()


def register(handler: Handler[Any, Any, Any]) -> None:
    for name in (handler.name, *handler.aliases):
        other = registry.by_name.get(name)
        if other is not None and _place(other) != _place(handler):
            raise ImproperlyConfigured(
                f"Two handlers are named {name!r}: {_place(other)} and {_place(handler)}. Give one another name."
            )
        registry.by_name[name] = handler


def unregister(handler: Handler[Any, Any, Any]) -> None:
    """For tests that declare handlers."""
    for name in [name for name, one in registry.by_name.items() if one is handler]:
        del registry.by_name[name]


def _place(handler: Handler[Any, Any, Any]) -> str:
    function = handler.function
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', function)}"


def add_source(source: Source) -> None:
    """Add a function that finds handlers which are not registered, by their name."""
    if source not in registry.sources:
        registry.sources.append(source)


def known(name: str) -> Handler[Any, Any, Any] | None:
    """The handler registered under this name."""
    return registry.by_name.get(name)


def served(handlers: Iterable[Handler[Any, Any, Any]]) -> set[str]:
    """The queues that jobs of these handlers may be in."""
    return {queue for handler in handlers for queue in handler.queues}


def all_handlers() -> list[Handler[Any, Any, Any]]:
    return list(dict.fromkeys(registry.by_name.values()))


def autodiscover() -> list[Handler[Any, Any, Any]]:
    """Import the modules of installed apps in which handlers are declared, and return all of them."""
    autodiscover_modules(*valid_settings().HANDLER_MODULES)
    return all_handlers()


def discovered() -> Callable[[str, str], Handler[Any, Any, Any] | None] | None:
    """A function that finds this project's handlers, or ``None`` if they cannot be imported; that is logged."""
    try:
        autodiscover()
    except Exception as error:  # a module of the project may raise anything
        logger.warning(
            "handlers cannot be imported: %s", error_line(error), extra={"error": error_line(error)}, exc_info=True
        )
        return None
    return find


def find(queue: str, name: str) -> Handler[Any, Any, Any] | None:
    """The handler of a job: by its name, or, for a job without a name, the only or default handler of its queue."""
    if name:
        return registry.by_name.get(name) or next(filter(None, (source(name) for source in registry.sources)), None)
    candidates = _unnamed(queue)
    chosen = [handler for handler in candidates if handler.default] or candidates
    return chosen[0] if len(chosen) == 1 else None


def has(queue: str, name: str) -> bool:
    """Whether this code has the handler of such a job."""
    return find(queue, name) is not None


def runs_unnamed(queue: str) -> bool:
    """Whether a handler is declared for this queue that may run jobs without a name."""
    return bool(_unnamed(queue))


def _unnamed(queue: str) -> list[Handler[Any, Any, Any]]:
    """The handlers of a queue that a job without a name may run in."""
    return [handler for handler in all_handlers() if handler.queue == queue and not handler.named_only]


def missing_text(queue: str, name: str) -> str:
    """The error of a job whose handler is missing."""
    if not name:
        there = [handler.name for handler in _unnamed(queue)]
        if there:
            return (
                f"The job names no handler, and queue {queue!r} has several: {', '.join(there)}; mark one default=True."
            )
        return f"The job names no handler, and queue {queue!r} has none."
    close = get_close_matches(name, registry.by_name, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no handler named {name!r}.{hint}"


class _Declaration(TypedDict, total=False):
    """The parameters of ``@job`` that are no options of its sends, except ``takes_context``."""

    queue: str
    name: str | None
    aliases: Iterable[str]
    atomic: bool
    unpack: bool
    default: bool
    retries: Mapping[type[BaseException], Rule] | None


class _Plain(_Declaration, PlainOptions, total=False):
    pass


class _Keyed(_Declaration, KeyedOptions, total=False):
    pass


@overload
def job(function: Callable[P, R], /) -> Handler[P, R, Job]: ...
@overload
def job(
    *, takes_context: Literal[True], on_duplicate: Sure, **options: Unpack[_Keyed]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Handler[P, R, Job]]: ...
@overload
def job(
    *, takes_context: Literal[True], **options: Unpack[_Plain]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Handler[P, R, Job]]: ...
@overload
def job(
    *, takes_context: Literal[True], on_duplicate: Refusing = None, **options: Unpack[_Keyed]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Handler[P, R, Job | None]]: ...
@overload
def job(
    *, takes_context: Literal[False] = False, on_duplicate: Sure, **options: Unpack[_Keyed]
) -> Callable[[Callable[P, R]], Handler[P, R, Job]]: ...
@overload
def job(
    *, takes_context: Literal[False] = False, **options: Unpack[_Plain]
) -> Callable[[Callable[P, R]], Handler[P, R, Job]]: ...
@overload
def job(
    *, takes_context: Literal[False] = False, on_duplicate: Refusing = None, **options: Unpack[_Keyed]
) -> Callable[[Callable[P, R]], Handler[P, R, Job | None]]: ...
def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue: str = "default",
    takes_context: bool = False,
    name: str | None = None,
    aliases: Iterable[str] = (),
    atomic: bool = False,
    unpack: bool = True,
    default: bool = False,
    retries: Mapping[type[BaseException], Rule] | None = None,
    **options: Any,
) -> Any:
    """Make a function the handler of jobs in ``queue``. It is also used without parentheses, as ``@job``.

    Jobs find it by its ``name``, which defaults to its dotted path, or by one of its ``aliases`` (its former names).
    The other ``options`` are defaults for its sends, as :func:`django_jobqueue.services.send` takes them; keys may be
    functions, which get the arguments of the call by name, with defaults. With ``atomic`` it runs in the same
    transaction as its completion. ``retries`` maps exception classes to ``False`` (never retry), or to the seconds
    until the next attempt. Raises ``ImproperlyConfigured`` for a function that no job could call, also for a method.
    """
    _check_options(options)
    _check_declaration(queue, aliases, retries)

    def decorate(function: Callable[..., Any]) -> Handler[..., Any, Any]:
        _check_no_method(function)
        try:
            handler: Handler[..., Any, Any] = Handler(
                function,
                queue=queue,
                name=_checked_name(name or _dotted_path(function)),
                aliases=aliases,
                takes_context=takes_context,
                atomic=atomic,
                unpack=unpack,
                default=default,
                retries=retries,
                options=options,
            )
        except InvalidOption as error:
            raise ImproperlyConfigured(f"@job(): {error}") from error
        if atomic and handler.is_async:
            raise ImproperlyConfigured(
                f"{handler.name}(): Django has no asynchronous transactions, so atomic=True needs a plain function."
            )
        register(handler)
        return handler

    if function is None:
        return decorate
    if isinstance(function, str):
        raise ImproperlyConfigured(f"@job({function!r}): name the argument, @job(queue={function!r}).")
    return decorate(function)


def _check_no_method(function: object) -> None:
    """A function in the body of a class would be called without ``self``, and its name leads to no handler."""
    where, _, name = getattr(function, "__qualname__", "").rpartition(".")
    is_in_class = bool(where) and not where.endswith("<locals>") and not inspect.ismethod(function)
    if isinstance(function, staticmethod | classmethod) or is_in_class:
        kind = type(function).__name__ if isinstance(function, staticmethod | classmethod) else "method"
        raise ImproperlyConfigured(
            f"@job(): {name or 'this'}() is a {kind} of the class {where.rpartition('.')[2]}; a job has no object to "
            "call it on. Decorate a function of the module, which may call it."
        )


def _check_declaration(queue: object, aliases: Any, retries: Mapping[Any, Any] | None) -> None:
    try:
        check_queue_name(queue)
    except InvalidOption as error:
        raise ImproperlyConfigured(f"@job(): {error}") from error
    if isinstance(aliases, str) or not all(isinstance(alias, str) and alias for alias in aliases):
        raise ImproperlyConfigured("@job(): aliases must be a list of names.")
    for kind, rule in (retries or {}).items():
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ImproperlyConfigured(f"@job(): retries: {kind!r} is not an exception class.")
        if not isinstance(rule, int | float) or not 0 <= rule <= 100 * YEAR:
            raise ImproperlyConfigured(f"@job(): retries: {kind.__name__} needs False, True or seconds, not {rule!r}.")


def _dotted_path(function: Callable[..., Any]) -> str:
    try:
        return f"{function.__module__}.{function.__qualname__}"
    except AttributeError:
        raise ImproperlyConfigured(f"@job(): {function!r} has no name of its own: give one with name=.") from None


def _checked_name(name: str) -> str:
    if len(name) > 255:
        raise ImproperlyConfigured(
            f"@job(): the name {name[:40]!r}… is longer than 255 characters: give a shorter one."
        )
    return name


def _check_options(options: Mapping[str, Any]) -> None:
    if (unknown := unknown_of_decorator(options)) is not None:
        known = ("queue", "name", "takes_context", *_Declaration.__optional_keys__, *OF_DECORATOR)
        raise ImproperlyConfigured(f"@job() has no option {unknown!r}. {closest(unknown, dict.fromkeys(known))}")
