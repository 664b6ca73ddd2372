"""ASGI middleware: what is recorded of a response, under a server that does what a test tells it to."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock.asgi import RecordRequests
from tests.fakes import Clock, Recorded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

HTTP = {"type": "http", "asgi": {"version": "3.0"}, "method": "GET", "path": "/"}


class Server:
    """What an application is given, and what it has sent."""

    def __init__(self, *trouble: BaseException) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.trouble = list(trouble)  # raised by `send` from the second message on

    async def receive(self) -> MutableMapping[str, Any]:
        """Say that the client has gone."""
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take a message."""
        if self.sent and self.trouble:
            raise self.trouble.pop()
        self.sent.append(message)

    def serve(self, application: Callable[..., Awaitable[None]], scope: MutableMapping[str, Any] = HTTP) -> None:
        """Call the application."""

        async def call() -> None:
            await application(scope, self.receive, self.send)

        asyncio.run(call())


@pytest.fixture
def recorded() -> Recorded:
    """What was recorded."""
    return Recorded()


@pytest.fixture
def clock() -> Clock:
    """The clock that it goes by."""
    return Clock()


def start(status: Any = 200) -> MutableMapping[str, Any]:
    """The message that begins a response."""
    return {"type": "http.response.start", "status": status, "headers": []}


def body(chunk: bytes = b"", **more: bool) -> MutableMapping[str, Any]:
    """A message with a part of the body."""
    return {"type": "http.response.body", "body": chunk, **more}


async def answers(_scope: Any, _receive: Any, send: Any) -> None:
    """Be the simplest of applications."""
    await send(start())
    await send(body(b"all"))


def test_a_response_is_recorded_with_its_last_part(recorded: Recorded, clock: Clock) -> None:
    """The time is that from the call to the last part of the body; what comes after that isn't counted."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        clock.now += 1
        await send(start(201))
        clock.now += 1
        await send(body(b"a", more_body=True))
        assert recorded == []
        clock.now += 1
        await send(body(b"b", more_body=False))
        assert recorded == [(201, 3.0)]
        clock.now += 10
        raise LookupError("in the background")

    server = Server()
    with pytest.raises(LookupError):
        server.serve(RecordRequests(application, recorded, clock))
    assert recorded == [(201, 3.0)]
    assert server.sent == [start(201), body(b"a", more_body=True), body(b"b", more_body=False)]


def test_a_slow_client_counts(recorded: Recorded, clock: Clock) -> None:
    """The time includes what the server takes to get rid of the last part."""

    class Slow(Server):
        async def send(self, message: MutableMapping[str, Any]) -> None:
            clock.now += 1
            await super().send(message)

    Slow().serve(RecordRequests(answers, recorded, clock))
    assert recorded == [(200, 2.0)]


@pytest.mark.parametrize("messages", [[], [start(200)], [start(200), body(b"half of", more_body=True)]], ids=len)
def test_an_application_that_raises(recorded: Recorded, messages: list[MutableMapping[str, Any]]) -> None:
    """One that raises before the last part of the body, with or without a status, is a 500; the exception goes on."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        raise LookupError("ours")

    with pytest.raises(LookupError, match="ours"):
        Server().serve(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [500]


@pytest.mark.parametrize(("messages", "code"), [([], 500), ([start(204)], 204)], ids=["nothing", "no-body"])
def test_an_application_that_ends_early(
    recorded: Recorded, messages: list[MutableMapping[str, Any]], code: int
) -> None:
    """One that ends without a response is a 500, which its server answers; with half a one, what that said."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    Server().serve(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [code]


@pytest.mark.parametrize(("messages", "code"), [([], 499), ([start(200)], 200)], ids=["before", "during"])
def test_a_cancelled_application(recorded: Recorded, messages: list[MutableMapping[str, Any]], code: int) -> None:
    """The client has gone: the status that was under way, or else 499. The cancellation goes on."""

    async def cancelled() -> None:
        waits = asyncio.Event()

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            for message in messages:
                await send(message)
            waits.set()
            await asyncio.get_running_loop().create_future()

        server = Server()
        task = asyncio.ensure_future(RecordRequests(application, recorded)(HTTP, server.receive, server.send))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert [code for code, _ in recorded] == [code]


@pytest.mark.parametrize(("messages", "code"), [([], 499), ([start(200)], 200)], ids=["before", "during"])
def test_an_application_that_hears_of_a_disconnect(
    recorded: Recorded, messages: list[MutableMapping[str, Any]], code: int
) -> None:
    """Servers that don't cancel say `http.disconnect`; an application that then ends somehow hasn't failed."""

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        assert (await receive())["type"] == "http.disconnect"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        Server().serve(RecordRequests(application, recorded))
    assert [code for code, _ in recorded] == [code]


def test_a_send_that_finds_no_client(recorded: Recorded) -> None:
    """An OSError of the server's `send` means that the client has gone, and is no error of the application."""
    with pytest.raises(BrokenPipeError):
        Server(BrokenPipeError()).serve(RecordRequests(answers, recorded))
    assert [code for code, _ in recorded] == [200]


def test_a_send_that_refuses_a_message(recorded: Recorded) -> None:
    """Any other exception of `send` is the application's fault: a 500."""
    with pytest.raises(RuntimeError):
        Server(RuntimeError("not now")).serve(RecordRequests(answers, recorded))
    assert [code for code, _ in recorded] == [500]


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_scopes_pass_through(recorded: Recorded, kind: str) -> None:
    """What is no http request gets the server's own functions, and isn't counted."""
    seen = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([scope["type"], receive, send])

    server = Server()
    server.serve(RecordRequests(application, recorded), {"type": kind})
    assert seen == [kind, server.receive, server.send]
    assert recorded == []


def test_requests_at_once(recorded: Recorded, clock: Clock) -> None:
    """Requests that are served at the same time have a time and a status each."""

    async def at_once() -> None:
        gates = {code: asyncio.Event() for code in (200, 404)}

        async def application(scope: Any, _receive: Any, send: Any) -> None:
            await gates[scope["code"]].wait()
            await send(start(scope["code"]))
            await send(body())

        recording = RecordRequests(application, recorded, clock)
        server = Server()
        async with asyncio.TaskGroup() as tasks:
            for code in gates:
                tasks.create_task(recording(HTTP | {"code": code}, server.receive, server.send))
                await asyncio.sleep(0)  # until it waits at its gate
                clock.now += 1
            gates[404].set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            clock.now += 1
            gates[200].set()

    asyncio.run(at_once())
    assert recorded == [(404, 1.0), (200, 3.0)]


@pytest.mark.parametrize("status", [999, 0, "200"])
def test_an_odd_status(name: str, caplog: pytest.LogCaptureFixture, status: Any) -> None:
    """A status that can't be counted isn't, is logged once, and breaks nothing."""

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        await send(start(status))
        await send(body(b"all the same"))

    server = Server()
    with shmlock.RTMetrics(name, max_participants=4) as metrics:
        recording = RecordRequests(application, metrics)
        for _ in range(3):
            server.serve(recording)
        assert metrics.totals() == {}
    assert server.sent == [start(status), body(b"all the same")] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_metrics_that_were_closed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Metrics that were closed are logged once, and break nothing."""
    server = Server()
    with shmlock.RTMetrics(name, max_participants=4) as metrics:
        recording = RecordRequests(answers, metrics)
        server.serve(recording)
        assert metrics.totals() == {200: 1}
    for _ in range(2):
        server.serve(recording)
    assert server.sent == [start(), body(b"all")] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text
