"""ASGI 3 middleware that records each response's status and time. Needs no framework.

    metrics = shmlock.RTMetrics("site.metrics")
    application = RecordRequests(application, metrics)

What is recorded of each `http` scope, and when:

- The status of `http.response.start`, with the time from the call of the application until the server has taken the
  last part of the body. What the application does after that (background tasks) doesn't count.
- 500 when the application raises before that, or ends without a response. The exception goes on.
- When the client has gone (the application was cancelled, or was told `http.disconnect`, or `send` has raised an
  OSError), the status that was under way, or 499 if there was none yet, as nginx does.

Other scopes (`websocket`, `lifespan`) pass through. What the metrics object can't take (a status of 999, a closed
object, no room for another participant) is logged once, and the response goes on.

`RTMetrics.record` is called in the event loop's thread, where it takes microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from shmlock._responses import NO_RESPONSE, Metrics, Request, Responses

__all__ = ["RecordRequests"]

_CLIENT_GONE: Final = 499  # nginx's NGX_HTTP_CLIENT_CLOSED_REQUEST

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_Application: TypeAlias = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]


class RecordRequests:
    """An ASGI application that records the responses of another one in `metrics`, an `RTMetrics`.

    `clock` returns seconds.
    """

    def __init__(self, app: _Application, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._responses = Responses(metrics)
        self._clock = clock

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answer as the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = _Request(self._responses, self._clock, receive, send)
        try:
            await self._app(scope, request.receive, request.send)
        except (Exception, SystemExit, KeyboardInterrupt):
            request.failed = True
            raise
        except BaseException:  # cancelled, by whatever event loop there is, or never awaited to the end
            request.gone = True
            raise
        finally:
            request.ends()


class _Request(Request):
    __slots__ = ("_code", "_receive", "_send", "failed", "gone")

    def __init__(self, responses: Responses, clock: Callable[[], float], receive: _Receive, send: _Send) -> None:
        self.failed = False
        self.gone = False
        self._code: int | None = None
        self._receive = receive
        self._send = send
        super().__init__(responses, clock)

    async def receive(self) -> _Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
        return message

    async def send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            self._code = message["status"]
        try:
            await self._send(message)
        except OSError:  # what servers raise when the client has gone (ASGI's HTTP message format, 2.4)
            self.gone = True
            raise
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.ends()

    def outcome(self) -> int:
        if self.gone:
            return self._code or _CLIENT_GONE
        return NO_RESPONSE if self.failed or self._code is None else self._code
