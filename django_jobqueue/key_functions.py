"""Keys that are functions of the arguments of a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from .exceptions import InvalidOption

KEYS = ("singleton_key", "group_key")


def named_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, without defaults. Raises ``TypeError`` if the function does not take them."""
    named = dict(signature.bind(*args, **kwargs).arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update(named.pop(parameter.name, {}))
    return named


def with_defaults(signature: inspect.Signature, named: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments by name, in the order of the function's parameters."""
    values = {
        one.name: named.get(one.name, () if one.kind is one.VAR_POSITIONAL else one.default)
        for one in signature.parameters.values()
        if one.kind is not one.VAR_KEYWORD
    }
    return {**values, **named}


class KeyFunction:
    """A function that computes a key from the arguments of a handler's call.

    It gets the arguments by name, with defaults: those that it has parameters for, or all if it takes ``**kwargs``.
    Positional-only parameters, also those of functions like ``str``, get the first arguments in their order. For a
    handler that takes its data as one argument (``handler`` is ``None``), it gets the data. Raises ``InvalidOption`` if
    it needs an argument that the handler does not have.
    """

    def __init__(self, function: Callable[..., Any], option: str, handler: inspect.Signature | None) -> None:
        self.function, self.option, self.handler = function, option, handler
        self.by_position: int | None = None  # how many of the first arguments are given by position; None: all
        self.names: frozenset[str] | None = frozenset()  # the other arguments that are given; None: all
        if inspect.iscoroutinefunction(function):
            raise InvalidOption(option, "the function is asynchronous", hint="Compute keys in a plain function.")
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a function of C without a signature
            return
        if handler is not None:
            self._match(list(parameters), handler)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the handler's arguments."""
        values = {} if self.handler is None else with_defaults(self.handler, {})
        return {name: value for name, value in values.items() if value is not inspect.Parameter.empty}

    def _match(self, parameters: list[inspect.Parameter], handler: inspect.Signature) -> None:
        kinds = [parameter.kind for parameter in parameters]
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        if inspect.Parameter.VAR_KEYWORD in kinds:
            self.names = None
        elif inspect.Parameter.VAR_POSITIONAL in kinds and not named:
            return
        else:
            self.names = frozenset(one.name for one in named)
        self.by_position = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
        missing = [one.name for one in named if one.default is one.empty and one.name not in handler.parameters]
        if missing and not any(one.kind is one.VAR_KEYWORD for one in handler.parameters.values()):
            raise InvalidOption(
                self.option,
                f"the function takes {', '.join(missing)}, which is no argument of the handler",
                hint=f"The arguments of the handler are: {', '.join(handler.parameters) or 'none'}.",
            )

    def __call__(self, data: Any) -> Any:
        """The key of a job with this data."""
        if self.handler is None:
            return self.function(data)
        if self.by_position == 0:
            values = {**self.defaults, **(data or {})}
            if self.names is None:
                return self.function(**values)
            return self.function(**{name: values[name] for name in self.names if name in values})
        ordered = list(with_defaults(self.handler, data or {}).items())
        first = ordered[: self.by_position]
        named = {name: value for name, value in ordered[len(first) :] if self.names is None or name in self.names}
        return self.function(*(value for _, value in first), **named)

    def of_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The key of a call. Raises ``TypeError`` if the handler does not take these arguments."""
        return self(None if self.handler is None else named_arguments(self.handler, args, kwargs))
