"""What the WSGI and the ASGI middleware have in common: a metrics object that never breaks a response."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

from shmlock.errors import ShmlockError

if TYPE_CHECKING:
    from collections.abc import Callable

NO_RESPONSE: Final = 500
"""The code of a request whose application raised, or ended without a response: what its server then answers."""

_log = logging.getLogger("shmlock")


class Metrics(Protocol):
    """What takes the responses: an `RTMetrics`, or anything else with this method."""

    def record(self, code: int, seconds: float) -> None:
        """Count a response."""


class Responses:
    """Records responses, and keeps the metrics' errors from the client.

    Each kind of error is logged once, for it would most likely come again with each request.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: set[type[Exception]] = set()

    def record(self, code: int, seconds: float) -> None:
        """Count a response, or say why it can't be counted."""
        try:
            self._metrics.record(code, seconds)
        except (ShmlockError, ValueError, TypeError) as error:
            if type(error) not in self._told:
                self._told.add(type(error))
                _log.warning("a response (%s, %s s) was not recorded: %s (logged once)", code, seconds, error)


class Request:
    """A request that has come in, until it is recorded."""

    __slots__ = ("_clock", "_responses", "_since")

    def __init__(self, responses: Responses, clock: Callable[[], float]) -> None:
        self._responses: Responses | None = responses
        self._clock = clock
        self._since = clock()

    def outcome(self) -> int:
        """The code that it is recorded with."""
        raise NotImplementedError

    def ends(self) -> None:
        """Record it, once."""
        responses, self._responses = self._responses, None
        if responses is not None:
            responses.record(self.outcome(), self._clock() - self._since)
