"""A configuration from a web server (`http:` and `https:` URLs, RFC 9110). Needs urllib3.

Each fetch is a connection of its own, straight to the server: the environment's proxy settings are not read.
Credentials in the URL are sent as Basic authentication (RFC 7617), to the URL's own origin only.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import ssl
import threading
import time
import zlib
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urldefrag, urljoin

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url, parse_url

from shmlock.updater.source import Fetched, SourceError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from urllib3 import HTTPResponse

_CHUNK = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS  # zlib.h, inflateInit2: a gzip header and trailer are expected

_MOST_REDIRECTS = 5
_REDIRECTS = {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
    HTTPStatus.TEMPORARY_REDIRECT,
    HTTPStatus.PERMANENT_REDIRECT,
}


@dataclass(frozen=True, slots=True)
class _Validators:
    """What the server said to recognise a body by, and the URL, behind all redirects, that it said it of."""

    url: str
    etag: str | None
    last_modified: str | None

    def headers(self) -> dict[str, str]:
        asked = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in asked.items() if value is not None}


class HttpSource:
    """A resource, unmodified when the server says so (304) to its own ETag or Last-Modified."""

    def __init__(self, url: str, *, timeout: float, max_size: int) -> None:
        self._url = url
        self._timeout = timeout
        self._max_size = max_size

    @property
    def url(self) -> str:
        """The URL, without credentials."""
        return shown(self._url)

    def fetch(self, last: Fetched | None = None) -> Fetched | None:
        """Return the body, or None when the server says that it still is that of `last`.

        Raises `SourceError`, at the latest when the timeout has passed; later only if name resolution takes
        longer, to which getaddrinfo(3) sets no limit, or several addresses of the host don't answer.
        """
        last_seen = last.stamp if last is not None and isinstance(last.stamp, _Validators) else None
        with contextlib.ExitStack() as connections, _Deadline(self._timeout) as deadline:
            try:
                return self._follow(last_seen, deadline, connections)
            except (HTTPError, http.client.HTTPException, OSError, ValueError, zlib.error) as error:
                cause = error.__cause__ or error  # urllib3 wraps what the socket said
                if deadline.passed or isinstance(cause, TimeoutError):
                    reason = f"no whole answer in {self._timeout:g} s; allow more time or look at the server"
                else:
                    reason = _reason(cause)
                raise SourceError(f"{self.url}: {reason}") from error

    def _follow(
        self, last_seen: _Validators | None, deadline: _Deadline, connections: contextlib.ExitStack
    ) -> Fetched | None:
        visited = [self._url]
        while True:
            url = visited[-1]
            validators = last_seen if last_seen is not None and last_seen.url == url else None
            response = self._ask(url, validators, deadline, connections)
            if response.status in _REDIRECTS:
                visited.append(self._redirected(visited, response.headers.get("Location")))
                continue
            if response.status == HTTPStatus.NOT_MODIFIED and validators is not None:
                return None
            if response.status != HTTPStatus.OK:
                raise SourceError(f"{_trail(visited)}: {_status(response)}")
            body = self._body(response)
            # A connection that was cut looks like the end of a body whose length wasn't announced.
            deadline.check()
            etag, last_modified = response.headers.get("ETag"), response.headers.get("Last-Modified")
            recognisable = etag is not None or last_modified is not None
            return Fetched(body, _Validators(url, etag, last_modified) if recognisable else None)

    def _ask(
        self,
        url: str,
        validators: _Validators | None,
        deadline: _Deadline,
        connections: contextlib.ExitStack,
    ) -> HTTPResponse:
        target = parse_url(url)
        headers = {"User-Agent": "shmlock-updater", "Accept-Encoding": "gzip", "Connection": "close"}
        headers |= self._credentials(target)
        if validators is not None:
            headers |= validators.headers()
        connection = _connection(target, deadline.left())
        connections.callback(connection.close)
        connection.connect()
        deadline.watch(connection.sock)
        connection.timeout = deadline.left()
        # Decoded in this room: urllib3 before 2.6 inflates a chunk whole, and it takes half a gzip stream.
        connection.request("GET", target.request_uri, headers=headers, preload_content=False, decode_content=False)
        response = connection.getresponse()
        connections.callback(response.close)
        return response

    def _credentials(self, target: Url) -> dict[str, str]:
        own = parse_url(self._url)
        if own.auth is None or (own.scheme, own.host, own.port) != (target.scheme, target.host, target.port):
            return {}
        token = base64.b64encode(unquote(own.auth).encode()).decode()
        return {"Authorization": f"Basic {token}"}

    def _redirected(self, visited: list[str], location: str | None) -> str:
        trail = _trail(visited)
        if not location:
            raise SourceError(f"{trail}: redirected without a Location; correct the server or the URL")
        here = visited[-1]
        target = urldefrag(urljoin(here, location)).url
        scheme = parse_url(target).scheme
        if scheme not in {"http", "https"} or (scheme == "http" and parse_url(here).scheme == "https"):
            raise SourceError(
                f"{trail}: redirected to {shown(target)}, and only https, or http from http, is followed; "
                "correct the server or the URL"
            )
        if target in visited:
            raise SourceError(f"{_trail([*visited, target])}: redirected in a circle; correct the server")
        if len(visited) > _MOST_REDIRECTS:
            raise SourceError(f"{_trail([*visited, target])}: more than {_MOST_REDIRECTS} redirects; use the last URL")
        return target

    def _body(self, response: HTTPResponse) -> bytes:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        chunks = iter(lambda: response.read1(_CHUNK), b"")
        if encoding in {"gzip", "x-gzip"}:
            return self._gunzipped(chunks)
        if encoding not in {"", "identity"}:
            raise SourceError(f"{self.url}: sent as {encoding!r}, unasked; let the server send it plain or as gzip")
        body = bytearray()
        self._admit(response.length_remaining or 0)
        for chunk in chunks:
            body += chunk
            self._admit(len(body))
        return bytes(body)

    def _gunzipped(self, chunks: Iterable[bytes]) -> bytes:
        body = bytearray()
        member = zlib.decompressobj(_GZIP)
        for chunk in chunks:
            rest = chunk
            while rest:
                if member.eof:  # a gzip file is any number of members (RFC 1952, section 2.2)
                    member = zlib.decompressobj(_GZIP)
                body += member.decompress(rest, self._max_size + 1 - len(body))
                self._admit(len(body))
                rest = member.unconsumed_tail or member.unused_data
        if not member.eof:
            raise zlib.error("incomplete stream")
        return bytes(body)

    def _admit(self, size: int) -> None:
        if size > self._max_size:
            raise SourceError(f"{self.url}: larger than {self._max_size} bytes; raise the size limit or send less")


class _Deadline:
    """The end of a fetch. When it comes, the connection is cut, wherever the fetch is blocked on it.

    A socket's own timeout starts again with every byte, so that a server that drips would be waited for.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._end = time.monotonic() + seconds
        self._line: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        if self._line is not None:
            self._line.close()

    def left(self) -> float:
        """Seconds left, more than 0. Raises `TimeoutError` when there are none."""
        self.check()
        return max(self._end - time.monotonic(), 0.001)

    def check(self) -> None:
        """Raise `TimeoutError` once the deadline has passed."""
        if self.passed:
            raise TimeoutError

    def watch(self, sock: socket.socket) -> None:
        """Cut this connection at the deadline, and no longer the one before."""
        if self._line is not None:
            self._line.close()
        # A descriptor of our own: the number can't be given to another file in between, and a TLS socket's
        # own shutdown() would pull the TLS state away from the thread that reads.
        self._line = socket.fromfd(sock.fileno(), sock.family, sock.type)
        self.check()  # after the store: the timer, which stores `passed` first, may just have missed it

    def _cut(self) -> None:
        self.passed = True
        line = self._line
        if line is not None:
            with contextlib.suppress(OSError):  # ENOTCONN: the server was faster
                line.shutdown(socket.SHUT_RDWR)


def _connection(target: Url, timeout: float) -> HTTPConnection:
    if not target.host:
        raise ValueError("the URL names no host")
    if target.scheme == "https":
        tls = ssl.create_default_context()  # verifies certificate and host name
        return HTTPSConnection(target.host, target.port, timeout=timeout, ssl_context=tls)
    return HTTPConnection(target.host, target.port, timeout=timeout)


def _trail(urls: list[str]) -> str:
    return " -> ".join(shown(url) for url in urls)


def _status(response: HTTPResponse) -> str:
    match response.status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            remedy = "give this host access to it"
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            remedy = "correct the URL or put the configuration there"
        case HTTPStatus.TOO_MANY_REQUESTS:
            remedy = "ask less often"
        case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            remedy = "look at the server's own log"
        case _:
            remedy = "only 200 brings a configuration; correct the URL"
    return f"status {response.status} {response.reason or ''}; {remedy}"


def _reason(error: BaseException) -> str:
    match error:
        case socket.gaierror():
            reason = f"no address for this host: {error.strerror}; correct its name, or look at the name server"
        case ssl.SSLCertVerificationError():
            reason = f"certificate refused: {error.verify_message}; add its CA to those trusted here"
        case ssl.SSLError():
            reason = f"TLS failed: {error.reason or error}; see that the server speaks TLS at this port"
        case http.client.IncompleteRead():
            reason = "the body ended before its announced end; look at the server"
        case http.client.RemoteDisconnected():
            reason = "the server closed the connection without an answer; look at the server"
        case http.client.HTTPException():
            reason = f"not an HTTP answer ({type(error).__name__}); see that a web server listens at this port"
        case zlib.error():
            reason = "not the whole gzip stream that was announced; look at the server"
        case OSError():
            reason = f"{error.strerror or error}; look at the server and the way to it"
        case _:
            reason = f"{error}; correct the URL"
    return reason
