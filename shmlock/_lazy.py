"""Attributes that are worked out when they are first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  a decorator, as `property`
    """As functools.cached_property, without the lock that it takes in CPython 3.11 (removed in 3.12: issue 87634).

    A child that is forked while another thread has that lock would wait for ever. Two threads at once may both work the
    value out, so it must be the same for both.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value: T = self._function(instance)
        instance.__dict__[self._function.__name__] = value  # found first, from now on
        return value
