"""WSGI middleware that records each response's status and time. Needs no framework.

    metrics = shmlock.RTMetrics("site.metrics")
    application = RecordRequests(application, metrics)

What is recorded, and when:

- The last status that was given to `start_response`, with the time from the call of the application until the server
  has closed what it returned. That is when the body has been sent, or the client has gone; for a client that has gone
  in the middle, the status is the one that it has seen.
- 500 when the application raises, in its call or in its body, or has not called `start_response` at the end. The
  exception goes on.
- A `wsgi.file_wrapper` is passed on as it is, so that the server can use sendfile(2), and recorded when it is closed;
  or at once where the server's own can't be told when that is (mod_wsgi).

What the metrics object can't take (a status of 999, a closed object, no room for another participant) is logged once,
and the response goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from shmlock._responses import NO_RESPONSE, Metrics, Request, Responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["RecordRequests"]


class RecordRequests:
    """A WSGI application that records the responses of another one in `metrics`, an `RTMetrics`.

    `clock` returns seconds.
    """

    def __init__(self, app: WSGIApplication, metrics: Metrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._responses = Responses(metrics)
        self._clock = clock

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer as the application does."""
        request = _Request(self._responses, self._clock)

        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Callable[[bytes], object]:
            write = start_response(status, headers, *exc_info)
            request.code = _code(status)
            return write

        try:
            body = self._app(environ, start)
        except BaseException:
            request.fails()
            request.ends()
            raise
        if _is_file(body, environ):
            return _watched(body, request)
        return _SizedBody(body, request) if hasattr(body, "__len__") else _Body(body, request)


class _Request(Request):
    __slots__ = ("code",)

    def __init__(self, responses: Responses, clock: Callable[[], float]) -> None:
        self.code = NO_RESPONSE
        super().__init__(responses, clock)

    def fails(self) -> None:
        self.code = NO_RESPONSE

    def outcome(self) -> int:
        return self.code


class _Body:
    """The application's iterable, with an end that is noticed."""

    __slots__ = ("_body", "_chunks", "_request")

    def __init__(self, body: Iterable[bytes], request: _Request) -> None:
        self._body: Any = body
        self._chunks: Iterator[bytes] | None = None
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            if self._chunks is None:
                self._chunks = iter(self._body)
            return next(self._chunks)
        except StopIteration:
            raise
        except BaseException:
            self._request.fails()
            raise

    def close(self) -> None:
        """Called by the server in any case (PEP 3333), also when it has not come to the end."""
        try:
            close = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._request.ends()


class _SizedBody(_Body):
    """Of an iterable with a length, by which servers tell that the only chunk is the whole body (PEP 3333)."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self._body)


def _code(status: str) -> int:
    """The number in "200 OK"; 0, which no metrics object takes, if there is none."""
    number = status.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def _is_file(body: Iterable[bytes], environ: WSGIEnvironment) -> bool:
    """Whether the server looks for this very object, by its type. uWSGI's is a function: it just takes any iterable."""
    kind = environ.get("wsgi.file_wrapper")
    return isinstance(kind, type) and isinstance(body, kind)


def _watched(body: Iterable[bytes], request: _Request) -> Iterable[bytes]:
    """The same object, with a `close` that records."""
    file: Any = body
    close = getattr(file, "close", None)

    def close_and_record() -> None:
        try:
            if close is not None:
                close()
        finally:
            request.ends()

    try:
        file.close = close_and_record
    except AttributeError:  # a type written in C
        request.ends()
    return body
