"""A configuration from a web server, a real one on the loopback interface for every truth."""

from __future__ import annotations

import base64
import contextlib
import gc
import gzip
import os
import socket
import threading
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.updater import Fetched, SourceError
from shmlock.updater.from_http import HttpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HANG = 30.0
LIMIT = 1000


def get(url: str, last: Fetched | None = None, *, timeout: float = HANG) -> Fetched | None:
    """Fetch once."""
    return HttpSource(url, timeout=timeout, max_size=LIMIT).fetch(last)


def body_of(url: str) -> bytes:
    """Fetch once, expecting a body."""
    fetched = get(url)
    assert fetched is not None
    return fetched.body


def refusal(url: str, last: Fetched | None = None, *, timeout: float = HANG) -> str:
    """Fetch once, expecting an error; return what it says."""
    with pytest.raises(SourceError) as raised:
        get(url, last, timeout=timeout)
    return str(raised.value)


def test_body(web: Any) -> None:
    """A 200 brings its body; the request goes to the path and query of the URL, and its fragment stays here."""
    server = web.serve(lambda _: web.reply(b'{"a": 1}'))
    assert body_of(f"{server.url}/site.json?v=1#part") == b'{"a": 1}'
    (request,) = server.requests
    assert request.target == "/site.json?v=1"
    assert request.headers["Host"] == server.url.removeprefix("http://")
    assert request.headers["If-None-Match"] is None
    assert request.headers["Authorization"] is None


@pytest.mark.parametrize("size", [0, 1, LIMIT])
def test_sizes(web: Any, size: int) -> None:
    """Any size up to the limit is fetched: announced, not announced, in chunks, and compressed."""
    body = os.urandom(size)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
    packed = gzip.compress(body)
    for answer in (
        web.reply(body),
        web.head() + body,
        web.head(Transfer_Encoding="chunked") + chunks + b"0\r\n\r\n",
        web.reply(packed, Content_Encoding="gzip"),
        web.head(Content_Encoding="gzip") + packed,
    ):
        assert body_of(web.serve(lambda _, answer=answer: answer).url) == body


@pytest.mark.parametrize(
    ("sent", "asked"),
    [
        ({"ETag": '"v1"'}, {"If-None-Match": '"v1"', "If-Modified-Since": None}),
        ({"ETag": 'W/"v1"'}, {"If-None-Match": 'W/"v1"', "If-Modified-Since": None}),
        (
            {"Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            {"If-None-Match": None, "If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"},
        ),
        (
            {"ETag": '"v1"', "Last_Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
            {"If-None-Match": '"v1"', "If-Modified-Since": "Mon, 01 Jan 2024 00:00:00 GMT"},
        ),
    ],
)
def test_not_modified(web: Any, sent: dict[str, str], asked: dict[str, str | None]) -> None:
    """What the server gave to recognise a body by is sent back, and its 304 means not modified."""
    answers = iter([web.reply(b"{}", **sent), web.reply(status="304 Not Modified"), web.reply(b"[]")])
    server = web.serve(lambda _: next(answers))
    last = get(server.url)
    assert get(server.url, last) is None
    assert {name: server.requests[1].headers[name] for name in asked} == asked
    fetched = get(server.url, last)
    assert fetched is not None
    assert fetched.body == b"[]"


def test_unrecognisable(web: Any) -> None:
    """Without ETag and Last-Modified the next fetch asks for everything."""
    server = web.serve(lambda _: web.reply(b"{}"))
    last = get(server.url)
    assert get(server.url, last) is not None
    assert server.requests[1].headers["If-None-Match"] is None


def test_304_unasked(web: Any) -> None:
    """A 304 to a request without conditions is an error, not silence."""
    server = web.serve(lambda _: web.reply(status="304 Not Modified"))
    assert "status 304" in refusal(server.url)


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        ("404 Not Found", "correct the URL"),
        ("401 Unauthorized", "give this host access"),
        ("429 Too Many Requests", "ask less often"),
        ("500 Internal Server Error", "look at the server's own log"),
        ("503 Service Unavailable", "look at the server's own log"),
        ("204 No Content", "only 200 brings a configuration"),
        ("206 Partial Content", "only 200 brings a configuration"),
        ("300 Multiple Choices", "only 200 brings a configuration"),
    ],
)
def test_other_statuses(web: Any, status: str, remedy: str) -> None:
    """Any other status is an error with the URL, the status and a way out; it is asked for once."""
    server = web.serve(lambda _: web.reply(b"{}", status))
    message = refusal(f"{server.url}/site.json")
    assert message.startswith(f"{server.url}/site.json: status {status}")
    assert remedy in message
    assert len(server.requests) == 1


def test_server_cannot_fake_a_log_line(web: Any) -> None:
    """Control characters in what a server says stay out of the error."""
    server = web.serve(lambda _: web.reply(status="404 No\x1b[31m\x9b such"))
    assert refusal(server.url).isprintable()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff garbage",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    ],
)
def test_garbage(web: Any, garbage: bytes) -> None:
    """What isn't HTTP, or far beyond its measures, is told as such."""
    assert "not an HTTP answer" in refusal(web.serve(lambda _: garbage).url)


def test_no_answer(web: Any) -> None:
    """A server that hangs up without a word is told as such."""
    assert "closed the connection without an answer" in refusal(web.serve(lambda _: b"").url)


def test_connection_refused() -> None:
    """A port where nobody listens is an error with the kernel's word for it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert refusal(url) == f"{url}: Connection refused; look at the server and the way to it"


def test_name_without_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that has no address is an error about its name."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "no address for this host: Name or service not known" in refusal("http://config.example/")


@pytest.mark.parametrize("announced", [True, False])
def test_too_large(web: Any, announced: bool) -> None:
    """A body larger than the limit is refused: unread when announced, and otherwise once it is seen."""
    head = web.head(Content_Length=str(LIMIT + 1)) if announced else web.head()
    body = [] if announced else [b"x" * (LIMIT + 1)]
    hung_up = threading.Event()

    def answer(_: object) -> Iterator[bytes]:
        yield head
        yield from body
        hung_up.wait(HANG)  # the client decides without the end of the response

    message = refusal(web.serve(answer).url)
    hung_up.set()
    assert f"larger than {LIMIT} bytes; raise the size limit" in message


@pytest.mark.parametrize("members", [1, 1000])
def test_gzip_bomb(web: Any, members: int) -> None:
    """A small body that inflates beyond the limit is refused without being inflated whole."""
    bomb = gzip.compress(b"\0" * (100_000_000 // members)) * members
    server = web.serve(lambda _: web.reply(bomb, Content_Encoding="gzip"))
    tracemalloc.start()
    try:
        message = refusal(server.url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert f"larger than {LIMIT} bytes" in message
    assert peak < 10_000_000


def test_gzip_members(web: Any) -> None:
    """Several gzip members, one of them empty, are one body."""
    packed = gzip.compress(b"{") + gzip.compress(b"") + gzip.compress(b"}")
    assert body_of(web.serve(lambda _: web.reply(packed, Content_Encoding="x-gzip")).url) == b"{}"


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(b"x" * 100)[:-1],
        gzip.compress(os.urandom(500))[:200],
        gzip.compress(b"{}")[:-4] + b"\0\0\0\0",
        b"{}",
        b"",
        gzip.compress(b"{}") + b"garbage",
    ],
)
def test_broken_gzip(web: Any, packed: bytes) -> None:
    """A gzip stream that is cut off, damaged, followed by something else or none at all is an error."""
    server = web.serve(lambda _: web.reply(packed, Content_Encoding="gzip"))
    assert "not the whole gzip stream" in refusal(server.url)


def test_unasked_encoding(web: Any) -> None:
    """An encoding that wasn't asked for is an error that names it."""
    server = web.serve(lambda _: web.reply(zlib.compress(b"{}"), Content_Encoding="deflate"))
    assert "sent as 'deflate'" in refusal(server.url)
    assert server.requests[0].headers["Accept-Encoding"] == "gzip"


@pytest.mark.parametrize("chunked", [True, False])
def test_truncated(web: Any, chunked: bool) -> None:
    """A body that ends before its announced end is an error."""
    in_chunks = web.head(Transfer_Encoding="chunked") + b"a\r\n{}"
    answer = in_chunks if chunked else web.reply(b"{}", Content_Length="10")
    assert "the body ended before its announced end" in refusal(web.serve(lambda _: answer).url)


def test_chunks_without_their_end(web: Any) -> None:
    """A chunked body whose last chunk never came is an error."""
    answer = web.head(Transfer_Encoding="chunked") + b"2\r\n{}\r\n"
    assert "the body ended before its announced end" in refusal(web.serve(lambda _: answer).url)


def drip(web: Any, beginning: bytes, drop: bytes) -> Iterator[bytes]:
    """Send a beginning, and then a drop at a time for ever."""
    yield beginning
    while not web.started[-1].closing.wait(0.01):
        yield drop


@pytest.mark.parametrize("where", ["silent", "status", "headers", "body", "unannounced body", "gzip", "chunk"])
def test_slow_answers_end_at_the_deadline(web: Any, where: str) -> None:
    """The deadline is one for the whole fetch: a server that keeps dripping anywhere doesn't extend it."""
    empty_member = gzip.compress(b"")
    beginning, drop = {
        "silent": (b"", b""),
        "status": (b"HTTP/1.1 200 ", b"O"),
        "headers": (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        "body": (web.head(Content_Length="999"), b" "),
        "unannounced body": (web.head(), b" "),
        "gzip": (web.head(Content_Encoding="gzip"), empty_member),
        "chunk": (web.head(Transfer_Encoding="chunked") + b"3e7\r\n", b" "),
    }[where]
    server = web.serve(lambda _: drip(web, beginning, drop))
    assert "no whole answer in 0.3 s" in refusal(server.url, timeout=0.3)


def test_silent_tls() -> None:
    """A server that never begins the TLS handshake is left at the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts, and says nothing
        message = refusal(f"https://127.0.0.1:{listener.getsockname()[1]}/", timeout=0.3)
    assert "no whole answer in 0.3 s" in message


def test_slow_redirects_share_the_deadline(web: Any) -> None:
    """Each hop takes from the time that the whole fetch has."""

    def answer(request: Any) -> Iterable[bytes]:
        if request.target == "/":
            return [web.reply(status="302 Found", Location="/slow")]
        return drip(web, web.head(), b" ")

    server = web.serve(answer)
    assert "no whole answer in 0.3 s" in refusal(f"{server.url}/", timeout=0.3)


def test_full_backlog() -> None:
    """A connection that is never accepted is given up at the deadline."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        for _ in range(8):  # more than the kernel queues for a backlog of 0
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(address)
            waiting.append(client)
        assert "no whole answer in 0.3 s" in refusal(f"http://127.0.0.1:{address[1]}/", timeout=0.3)
        for client in waiting:
            client.close()


def test_endless(web: Any) -> None:
    """A body without end is left when it passes the limit."""

    def answer(_: object) -> Iterator[bytes]:
        yield web.head()
        while True:
            yield b"x" * 65536

    assert f"larger than {LIMIT} bytes" in refusal(web.serve(answer).url)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
@pytest.mark.parametrize("location", ["/b", "b", "{url}/b", "//{host}/b", "/b#part"])
def test_redirect(web: Any, status: str, location: str) -> None:
    """Every kind of redirect is followed, to a whole URL and to a relative one."""

    def answer(request: Any) -> Any:
        if request.target == "/b":
            return web.reply(b"{}")
        host = server.url.removeprefix("http://")
        return web.reply(b"elsewhere", status, Location=location.format(url=server.url, host=host))

    server = web.serve(answer)
    assert body_of(f"{server.url}/a") == b"{}"
    assert [request.target for request in server.requests] == ["/a", "/b"]


def redirecting(web: Any, length: int) -> Any:
    """Start a server that redirects from /0 to /1 to /2 and so on."""

    def answer(request: Any) -> Any:
        step = int(request.target[1:])
        if step == length:
            return web.reply(b"{}")
        return web.reply(status="302 Found", Location=f"/{step + 1}")

    return web.serve(answer)


def test_five_redirects(web: Any) -> None:
    """Five redirects are followed, and a sixth isn't."""
    assert body_of(f"{redirecting(web, 5).url}/0") == b"{}"
    server = redirecting(web, 6)
    message = refusal(f"{server.url}/0")
    assert "more than 5 redirects" in message
    assert message.startswith(f"{server.url}/0 -> {server.url}/1 -> ")
    assert len(server.requests) == 6


def test_circle(web: Any) -> None:
    """A circle of redirects is named, step by step, when it closes."""
    elsewhere = {"/a": "/b", "/b": "/a"}
    server = web.serve(lambda request: web.reply(status="302 Found", Location=elsewhere[request.target]))
    message = refusal(f"{server.url}/a")
    assert message.startswith(f"{server.url}/a -> {server.url}/b -> {server.url}/a: redirected in a circle")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher:x"])
def test_redirect_leaves_the_web(web: Any, location: str) -> None:
    """A redirect to something that isn't on the web is refused."""
    server = web.serve(lambda _: web.reply(status="302 Found", Location=location))
    assert f"redirected to {location}, and only https" in refusal(server.url)


@pytest.mark.parametrize("location", [None, "", "http://", "http://[::1", "http://127.0.0.1:x/"])
def test_redirect_to_nowhere(web: Any, location: str | None) -> None:
    """A redirect without a usable target is an error."""
    headers = {} if location is None else {"Location": location}
    server = web.serve(lambda _: web.reply(status="302 Found", **headers))
    assert refusal(server.url).startswith(server.url)
    assert len(server.requests) == 1


def test_validators_belong_to_a_url(web: Any) -> None:
    """Validators are sent to the URL that gave them, and not to others on the way to it or instead of it."""
    target = "/one"

    def answer(request: Any) -> Any:
        if request.target == "/":
            return web.reply(status="302 Found", Location=target)
        if request.headers["If-None-Match"] is not None:
            return web.reply(status="304 Not Modified")
        return web.reply(request.target.encode(), ETag='"v1"')

    server = web.serve(answer)
    last = get(f"{server.url}/")
    assert get(f"{server.url}/", last) is None
    assert [request.headers["If-None-Match"] for request in server.requests] == [None, None, None, '"v1"']
    target = "/two"
    fetched = get(f"{server.url}/", last)
    assert fetched is not None
    assert fetched.body == b"/two"


def test_credentials(web: Any) -> None:
    """User and password of the URL are sent to its own origin, not to another, and not told in errors."""
    other = web.serve(lambda _: web.reply(status="404 Not Found"))

    def answer(request: Any) -> Any:
        return web.reply(status="302 Found", Location="/b" if request.target == "/a" else other.url)

    server = web.serve(answer)
    message = refusal(server.url.replace("//", "//me:s%20cret%C3%A9@") + "/a")
    expected = f"Basic {base64.b64encode('me:s creté'.encode()).decode()}"
    assert [request.headers["Authorization"] for request in server.requests] == [expected, expected]
    assert other.requests[0].headers["Authorization"] is None
    assert "cret" not in message


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch, request: Any) -> None:
    """Trust the certificate of the tests' TLS servers."""
    monkeypatch.setenv("SSL_CERT_FILE", str(request.path.with_name("localhost.pem")))


@pytest.mark.usefixtures("trusted")
def test_https(web: Any) -> None:
    """A body comes over TLS from a server with a certificate that is trusted."""
    assert body_of(web.serve(lambda _: web.reply(b"{}"), tls=True).url) == b"{}"


def test_unknown_certificate(web: Any) -> None:
    """A certificate that nobody vouches for is refused, and the request is not sent."""
    server = web.serve(lambda _: web.reply(b"{}"), tls=True)
    assert "certificate refused" in refusal(server.url)
    assert server.requests == []


@pytest.mark.usefixtures("trusted")
def test_certificate_of_another_host(web: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trusted certificate for another name is refused."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest: resolve("127.0.0.1", *rest))
    server = web.serve(lambda _: web.reply(b"{}"), tls=True)
    assert "certificate refused" in refusal(server.url.replace("127.0.0.1", "config.example"))


def test_https_at_a_plain_port() -> None:
    """A server that doesn't speak TLS is told as such."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def object_to_anything() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.recv(1)

        server = threading.Thread(target=object_to_anything)
        server.start()
        message = refusal(f"https://127.0.0.1:{listener.getsockname()[1]}/")
        server.join(HANG)
    assert "see that the server speaks TLS at this port" in message


@pytest.mark.usefixtures("trusted")
def test_from_https_to_http(web: Any) -> None:
    """A redirect from https to http is refused before the other server is asked."""
    plain = web.serve(lambda _: web.reply(b"{}"))
    secure = web.serve(lambda _: web.reply(status="302 Found", Location=plain.url), tls=True)
    assert f"redirected to {plain.url}, and only https" in refusal(secure.url)
    assert plain.requests == []


@pytest.mark.usefixtures("trusted")
def test_from_http_to_https(web: Any) -> None:
    """A redirect from http to https is followed."""
    secure = web.serve(lambda _: web.reply(b"{}"), tls=True)
    plain = web.serve(lambda _: web.reply(status="302 Found", Location=f"{secure.url}/x"))
    assert body_of(plain.url) == b"{}"


@pytest.mark.usefixtures("trusted")
def test_slow_tls_ends_at_the_deadline(web: Any) -> None:
    """The deadline holds for a drip inside TLS, too."""
    server = web.serve(lambda _: drip(web, web.head(), b" "), tls=True)
    assert "no whole answer in 1 s" in refusal(server.url, timeout=1)


def test_nothing_stays_behind(web: Any) -> None:
    """No fetch, however it ends, leaves its timer running or a socket to the garbage collector."""
    answers = [
        web.reply(b"{}"),
        web.reply(status="404 Not Found"),
        web.reply(status="302 Found", Location="/"),
        web.reply(b"x" * (LIMIT + 1)),
        web.reply(b"{}", Content_Length="10"),
        b"garbage",
    ]
    for answer in answers:
        server = web.serve(lambda _, answer=answer: answer)
        with contextlib.suppress(SourceError):
            get(f"{server.url}/")
        assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        gc.collect()  # an unclosed socket warns, and a warning is an error here
