"""WSGI middleware: what is recorded of a response, under a server of the standard library's."""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING, Any
from wsgiref.handlers import SimpleHandler
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest

import shmlock
from shmlock.wsgi import RecordRequests
from tests.fakes import Clock, Recorded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HEADERS = [("Content-Type", "text/plain")]


class Body:
    """A body that tells whether it was closed, and whether that was in time."""

    def __init__(self, *chunks: bytes, recorded: Recorded) -> None:
        self._chunks = iter(chunks)
        self._recorded = recorded
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        """Count it."""
        assert self.closed or not self._recorded
        self.closed += 1


@pytest.fixture
def recorded() -> Recorded:
    """What was recorded."""
    return Recorded()


@pytest.fixture
def clock() -> Clock:
    """The clock that it goes by."""
    return Clock()


def environ() -> WSGIEnvironment:
    """A GET request."""
    request: WSGIEnvironment = {"QUERY_STRING": ""}
    setup_testing_defaults(request)
    return request


def served(application: WSGIApplication) -> bytes:
    """What a server sends that calls the application."""
    output = io.BytesIO()
    handler = SimpleHandler(io.BytesIO(), output, io.StringIO(), environ(), multithread=False)
    handler.run(application)
    return output.getvalue()


def never_mind(_status: str, _headers: list[tuple[str, str]], *_exc_info: Any) -> Any:
    """A server's `start_response` that takes anything."""
    return lambda _chunk: None


def test_a_response_is_recorded_when_it_is_closed(recorded: Recorded, clock: Clock) -> None:
    """The time is that from the call to the close of the body, which includes sending it; and it counts once."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        clock.now += 1
        start_response("201 Created", HEADERS)
        return body

    body = Body(b"a", b"b", recorded=recorded)
    answer: Any = RecordRequests(application, recorded, clock)(environ(), never_mind)
    assert list(answer) == [b"a", b"b"]
    clock.now += 2
    assert recorded == []
    answer.close()
    answer.close()
    assert recorded == [(201, 3.0)]
    assert body.closed == 2


def test_it_keeps_to_the_protocol(recorded: Recorded) -> None:
    """To its server it is a WSGI application, and to its application a server."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("404 Not Found", HEADERS)
        return [b"not ", b"here"]

    output = served(validator(RecordRequests(validator(application), recorded)))
    assert output.endswith(b"not here")
    assert [code for code, _ in recorded] == [404]


def test_the_length_of_a_body_is_still_known(recorded: Recorded) -> None:
    """A server that makes Content-Length of a body with a single chunk goes on doing so."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        return [b"twelve bytes"]

    assert served(RecordRequests(application, recorded)) == served(application)
    assert b"Content-Length: 12" in served(application)


def test_an_application_that_raises(recorded: Recorded, clock: Clock) -> None:
    """A call that raises, with or without a status, is a 500; the exception goes on."""

    def application(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        clock.now += 1
        if request["PATH_INFO"] == "/started":
            start_response("200 OK", HEADERS)
        raise LookupError("ours")

    recording = RecordRequests(application, recorded, clock)
    for path in ("/", "/started"):
        with pytest.raises(LookupError, match="ours"):
            recording(environ() | {"PATH_INFO": path}, never_mind)
    assert recorded == [(500, 1.0), (500, 1.0)]
    assert b"500 Internal Server Error" in served(recording)


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_a_body_that_raises(recorded: Recorded, error: type[BaseException]) -> None:
    """A body that raises in the middle is a 500, recorded at its close; the exception, of whatever kind, goes on."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        yield b"half of"
        raise error("ours")

    answer: Any = RecordRequests(application, recorded)(environ(), never_mind)
    assert next(answer) == b"half of"
    with pytest.raises(error, match="ours"):
        next(answer)
    assert recorded == []
    answer.close()
    assert [code for code, _ in recorded] == [500]


def test_a_body_that_cannot_be_iterated(recorded: Recorded) -> None:
    """What is no body at all is a 500."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", HEADERS)

    assert b"500 Internal Server Error" in served(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [500]


def test_a_close_that_raises(recorded: Recorded) -> None:
    """A body whose `close` raises is recorded with the status that the client has seen; the exception goes on."""

    class Stubborn(list[bytes]):
        def close(self) -> None:
            raise LookupError("ours")

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        return Stubborn([b"all"])

    answer: Any = RecordRequests(application, recorded)(environ(), never_mind)
    with pytest.raises(LookupError, match="ours"):
        answer.close()
    assert [code for code, _ in recorded] == [200]


def test_start_response_that_is_called_late(recorded: Recorded) -> None:
    """A generator calls `start_response` when its first chunk is asked for: that status counts."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("202 Accepted", HEADERS)
        yield b"later"

    assert served(validator(RecordRequests(validator(application), recorded))).endswith(b"later")
    assert [code for code, _ in recorded] == [202]


def test_start_response_that_is_never_called(recorded: Recorded) -> None:
    """An application that gives no status has failed: its server answers with a 500, and that counts."""

    def application(_environ: WSGIEnvironment, _start_response: StartResponse) -> Iterable[bytes]:
        return [b"without a status"]

    assert b"500 Internal Server Error" in served(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [500]


def test_start_response_that_is_called_twice(recorded: Recorded) -> None:
    """With `exc_info` before anything is sent the second status replaces the first, there and in the counts."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        try:
            raise LookupError("ours")
        except LookupError:
            start_response("503 Service Unavailable", HEADERS, sys.exc_info())
        return [b"sorry"]

    assert b"503 Service Unavailable" in served(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [503]


def test_start_response_that_comes_too_late(recorded: Recorded) -> None:
    """With `exc_info` after something was sent the server raises it again: a 500."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        yield b"half of"
        try:
            raise LookupError("ours")
        except LookupError:
            start_response("503 Service Unavailable", HEADERS, sys.exc_info())

    output = served(RecordRequests(application, recorded))
    assert b"200 OK" in output
    assert b"503" not in output
    assert [code for code, _ in recorded] == [500]


def test_write(recorded: Recorded) -> None:
    """The server's `write` reaches an application that still uses it."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)(b"written")
        return []

    assert served(RecordRequests(application, recorded)).endswith(b"written")
    assert [code for code, _ in recorded] == [200]


def test_a_client_that_goes_away(recorded: Recorded, clock: Clock) -> None:
    """A body that is closed before its end is recorded with its status and the time until then."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        return body

    body = Body(b"a", b"b", recorded=recorded)
    answer: Any = RecordRequests(application, recorded, clock)(environ(), never_mind)
    assert next(answer) == b"a"
    clock.now += 5
    answer.close()
    assert recorded == [(200, 5.0)]
    assert body.closed == 1


def test_file_wrapper(recorded: Recorded, clock: Clock) -> None:
    """A server's file wrapper reaches it as it is, is closed by it, and then recorded."""

    def application(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        body: Iterable[bytes] = request["wsgi.file_wrapper"](file)
        return body

    file = io.BytesIO(b"of a file")
    answer: Any = RecordRequests(application, recorded, clock)(
        environ() | {"wsgi.file_wrapper": FileWrapper}, never_mind
    )
    assert type(answer) is FileWrapper
    assert recorded == []
    clock.now += 1
    answer.close()
    assert file.closed
    assert recorded == [(200, 1.0)]
    file = io.BytesIO(b"of a file")
    assert served(RecordRequests(application, recorded)).endswith(b"of a file")
    assert [code for code, _ in recorded] == [200, 200]


def test_file_wrapper_that_cannot_be_watched(recorded: Recorded) -> None:
    """One that takes no `close` of ours, as those written in C, still reaches the server, and is recorded at once."""

    class Sealed(FileWrapper):
        def __setattr__(self, name: str, value: object) -> None:
            if hasattr(self, name):
                raise AttributeError(name)
            super().__setattr__(name, value)

    def application(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        body: Iterable[bytes] = request["wsgi.file_wrapper"](io.BytesIO(b"of a file"))
        return body

    answer = RecordRequests(application, recorded)(environ() | {"wsgi.file_wrapper": Sealed}, never_mind)
    assert type(answer) is Sealed
    assert [code for code, _ in recorded] == [200]


def test_file_wrapper_that_is_a_function(recorded: Recorded) -> None:
    """Where it is no type but a function that returns anything, the body is taken for any other."""

    def application(request: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        body: Iterable[bytes] = request["wsgi.file_wrapper"](io.BytesIO(b"of a file"))
        return body

    answer: Any = RecordRequests(application, recorded)(environ() | {"wsgi.file_wrapper": iter}, never_mind)
    assert list(answer) == [b"of a file"]
    answer.close()
    assert [code for code, _ in recorded] == [200]


@pytest.mark.parametrize("status", ["999 Odd", "42 Short", "-200 Below", "nothing", "²00 Squared"])
def test_an_odd_status(name: str, caplog: pytest.LogCaptureFixture, status: str) -> None:
    """A status that can't be counted isn't, is logged once, and breaks nothing."""

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(status, HEADERS)
        return [b"all the same"]

    with shmlock.RTMetrics(name, max_participants=4) as metrics:
        recording = RecordRequests(application, metrics)
        for _ in range(3):
            answer: Any = recording(environ(), never_mind)
            assert list(answer) == [b"all the same"]
            answer.close()
        assert metrics.totals() == {}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_metrics_that_cannot_record(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Metrics that were closed, or have no room, are logged once for each kind of trouble, and break nothing."""

    class Crowded:
        def __init__(self) -> None:
            self.trouble: list[Exception] = [shmlock.ParticipantsExhausted(f"{name}: full")] * 2

        def record(self, code: int, seconds: float) -> None:
            if self.trouble:
                raise self.trouble.pop()
            metrics.record(code, seconds)

    def application(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", HEADERS)
        return [b"all the same"]

    with shmlock.RTMetrics(name, max_participants=4) as metrics:
        recording = RecordRequests(application, Crowded())
        for _ in range(3):
            assert served(recording).endswith(b"all the same")
        assert metrics.totals() == {200: 1}
    for _ in range(2):
        assert served(recording).endswith(b"all the same")
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert [name in record.getMessage() for record in caplog.records] == [True] * 2


def test_the_applications_own_errors_are_not_swallowed(name: str, recorded: Recorded) -> None:
    """An error of this package that the application raises is its own, and goes on."""

    def application(_environ: WSGIEnvironment, _start_response: StartResponse) -> Iterable[bytes]:
        shmlock.RWLock(name, create=False)
        return []

    with pytest.raises(shmlock.SegmentNotFound):
        RecordRequests(application, recorded)(environ(), never_mind)
    assert [code for code, _ in recorded] == [500]
