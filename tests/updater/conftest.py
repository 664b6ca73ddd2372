"""A web server that answers what a test tells it to, and a source and a configuration under its control."""

from __future__ import annotations

import contextlib
import io
import json
import queue
import socket
import ssl
import threading
from dataclasses import dataclass, field
from http.client import parse_headers
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.errors import PayloadTooLarge
from shmlock.updater import Fetched, SourceError, Updater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from email.message import Message

HANG = 30.0
"""Seconds after which a test that waits has hung. No test is faster or slower by it."""

CERTIFICATE = Path(__file__).with_name("localhost.pem")


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    target: str
    headers: Message


class Web:
    """An HTTP server on the loopback interface: `answer` makes the raw bytes of each response.

    An iterator is sent piece by piece, until it or the client ends. Each connection is one exchange.
    """

    def __init__(self, answer: Callable[[Request], bytes | Iterable[bytes]], tls: Path | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._context = None
        if tls is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def close(self) -> None:
        """End every exchange and every thread."""
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(HANG)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG)
            assert not thread.is_alive()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # shut down
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                thread = threading.Thread(target=self._exchange, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _exchange(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):
            if self._context is None:
                self._converse(plain)
                return
            with self._context.wrap_socket(plain, server_side=True) as connection:
                self._converse(connection)

    def _converse(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as incoming:
            first = incoming.readline().decode("latin-1").split()
            if len(first) < 2:
                return
            request = Request(first[1], parse_headers(io.BytesIO(_head(incoming))))
            self.requests.append(request)
            answer = self.answer(request)
            for piece in [answer] if isinstance(answer, bytes) else answer:
                if self.closing.is_set():
                    return
                connection.sendall(piece)


class Servers:
    """Starts web servers, and makes responses for them."""

    def __init__(self) -> None:
        self.started: list[Web] = []

    def serve(self, answer: Callable[[Request], bytes | Iterable[bytes]], *, tls: bool = False) -> Web:
        """Start a server."""
        self.started.append(Web(answer, CERTIFICATE if tls else None))
        return self.started[-1]

    @staticmethod
    def head(status: str = "200 OK", **headers: str) -> bytes:
        """Return the head of a response, which announces no length. `Content_Length` is Content-Length."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1")

    def reply(self, body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
        """Return a whole response, with the body's length unless told otherwise."""
        return self.head(status, **({"Content_Length": str(len(body))} | headers)) + body


def _head(incoming: io.BufferedReader) -> bytes:
    lines = []
    while line := incoming.readline():
        lines.append(line)
        if line == b"\r\n":
            break
    return b"".join(lines)


class JsonCodec:
    """JSON, as a shared configuration has it: compact, in the order of the source."""

    def encode(self, value: object) -> bytes:
        """Encode."""
        return json.dumps(value, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> object:
        """Decode."""
        return json.loads(data)


@dataclass
class FakeConfig:
    """A shared configuration that isn't shared. What happens to it is told in `events`, in order."""

    name: str = "site.config"
    capacity: int = 1 << 20
    codec: Any = field(default_factory=JsonCodec)
    seat: threading.Lock = field(default_factory=threading.Lock)
    stale: bool = False
    version: int = 0
    bytes_published: bytes | None = None
    events: queue.SimpleQueue[tuple[Any, ...]] = field(default_factory=queue.SimpleQueue)
    seated: bool = False
    closed: int = 0

    def encoded(self) -> bytes | None:
        """Return what is published."""
        return self.bytes_published

    def publish(self, value: object) -> int:
        """Publish a new version."""
        encoded = self.codec.encode(value)
        if len(encoded) > self.capacity:
            raise PayloadTooLarge(f"{len(encoded)} bytes don't fit {self.capacity}")
        self.bytes_published = encoded
        self.version += 1
        self.events.put(("published", value))
        return self.version

    def confirm(self) -> None:
        """Note that the source still has it."""
        self.events.put(("confirmed",))

    def take_seat(self, timeout: float | None = 0) -> bool:
        """Take the seat; waiting is told as an event before each slice."""
        if timeout:
            self.events.put(("waiting",))
        self.seated = self.seat.acquire(timeout=-1 if timeout is None else timeout)
        return self.seated

    def leave_seat(self) -> None:
        """Leave the seat."""
        if self.seated:
            self.seated = False
            self.seat.release()
            self.events.put(("left",))

    def is_stale(self) -> bool:
        """Tell whether the name means another segment now."""
        return self.stale

    def close(self) -> None:
        """Count. The seat is not left: the process may have another handle that is open."""
        self.closed += 1

    def next(self, *awaited: str) -> tuple[Any, ...]:
        """Return the next event, other than those of waiting for the seat unless they are awaited."""
        while True:
            event = self.events.get(timeout=HANG)
            if event[0] != "waiting" or "waiting" in awaited:
                return event


class FakeSource:
    """A source that answers when and what a test says: bytes, None, an exception, or a body with a stamp."""

    url = "test:source"

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[Fetched | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def fetch(self, last: Fetched | None = None) -> Fetched | None:
        """Tell that a fetch began, and return the next outcome."""
        self.asked.put(last)
        outcome = self._outcomes.get(timeout=HANG)
        if isinstance(outcome, Exception):
            raise outcome
        return Fetched(outcome, stamp=outcome) if isinstance(outcome, bytes) else outcome

    def has(self, *outcomes: Any) -> None:
        """Say what the next fetches bring."""
        for outcome in outcomes:
            self._outcomes.put(outcome)


class Running:
    """An updater that runs in a thread of its own."""

    def __init__(self, updater: Updater) -> None:
        self.updater = updater
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.updater.run()
        except Exception as error:  # noqa: BLE001  for the test to look at
            self.raised = error

    def refresh(self) -> None:
        """Ask for a fetch."""
        self.updater.refresh()

    def end(self) -> None:
        """Stop it and wait for its end."""
        self.updater.stop()
        self.wait()

    def wait(self) -> None:
        """Wait for its end."""
        self._thread.join(HANG)
        assert not self._thread.is_alive()


@pytest.fixture
def web() -> Iterator[Servers]:
    """Servers that end with the test."""
    servers = Servers()
    yield servers
    for server in servers.started:
        server.close()


@pytest.fixture
def config() -> FakeConfig:
    """Return a configuration to publish to."""
    return FakeConfig()


@pytest.fixture
def source() -> Iterator[FakeSource]:
    """Yield a source under control. A fetch that still waits when the test ends is let go."""
    source = FakeSource()
    yield source
    source.has(*[SourceError("the test ended")] * 10)
    for thread in threading.enumerate():
        if thread.name == "shmlock-fetch":
            thread.join(HANG)
            assert not thread.is_alive()


@pytest.fixture
def launch(config: FakeConfig, source: FakeSource) -> Iterator[Callable[..., Running]]:
    """Return a function that runs an updater, which fetches at its start and then only when refreshed."""
    running: list[Running] = []

    def launch(**options: Any) -> Running:
        open_config = options.pop("open_config", lambda: config)
        options = {"interval": 3600.0, "timeout": 3600.0, **options}
        running.append(Running(Updater(open_config, source, **options)))
        return running[-1]

    yield launch
    for one in running:
        one.end()
