"""A web server on the loopback interface that has the configuration, with an ETag."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

_PADDING = "x" * 50_000  # so that there is a long way from the first field to the last


class Source:
    """Serves the configuration, which is another one after each `change`."""

    def __init__(self) -> None:
        self.changes = 0
        self._body = b""
        self.change()
        source = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                source._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True  # a client may keep its connection
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/site.json"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def change(self) -> None:
        """Have the next one: its first and its last field are the same number."""
        self.changes += 1
        self._body = json.dumps({"first": self.changes, "padding": _PADDING, "last": self.changes}).encode()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        body = self._body
        tag = f'"{hash(body):x}"'
        if request.headers.get("If-None-Match") == tag:
            request.send_response(304)
            request.send_header("ETag", tag)
            request.end_headers()
            return
        request.send_response(200)
        request.send_header("ETag", tag)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
