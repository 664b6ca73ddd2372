"""Where a configuration comes from: the contract of a source, and which room serves which URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from shmlock.errors import ShmlockError


class SourceError(ShmlockError):
    """A source gave nothing usable: one line with the URL, what is wrong, and the way out."""

    def __init__(self, message: str) -> None:
        # Part of it may be the server's own words, which must not steer a terminal or fake a log line.
        printable = "".join(c if c.isprintable() else " " for c in message)
        super().__init__(" ".join(printable.split()))


@dataclass(frozen=True, slots=True)
class Fetched:
    """A body, and what its source needs to recognise it the next time."""

    body: bytes
    stamp: object
    """Opaque, and only for the source that made it. None: not to be recognised, fetch in full."""


class Source(Protocol):
    """Something that a configuration can be fetched from.

    A source keeps nothing between fetches: what was fetched last is the caller's to remember and to pass.
    """

    @property
    def url(self) -> str:
        """Name this source to people: without credentials."""
        ...

    def fetch(self, last: Fetched | None = None) -> Fetched | None:
        """Return what is there now, or None when that is still `last`.

        It does not retry. Raises `SourceError` when there is nothing usable.
        """
        ...


def shown(url: str) -> str:
    """Return `url` without user name and password (RFC 3986, section 3.2.1), fit for a log."""
    return re.sub(r"^([^/?#]*//)[^/?#]*@", r"\1", url)


def open_source(url: str, *, timeout: float, max_size: int) -> Source:
    """Return the source for `url`; nothing is fetched yet.

    `timeout`: seconds for one whole fetch, of those that wait for a network.
    `max_size`: bytes that a body may have, decompressed.
    Raises `SourceError` for a URL that can't be served, and when the `http` extra is missing.
    """
    if not url.isprintable() or " " in url:
        raise SourceError(f"{shown(url)!r}: not a URL: percent-encode blanks and control characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise SourceError(f"{shown(url)}: not a URL: {error}") from None
    if parts.scheme == "file":
        from shmlock.updater.from_file import FileSource, path_of  # noqa: PLC0415  it imports this room

        return FileSource(path_of(url), max_size=max_size)
    if parts.scheme in {"http", "https"}:
        if not parts.hostname:
            raise SourceError(f"{shown(url)}: the URL names no host; write {parts.scheme}://HOST/PATH")
        try:
            from shmlock.updater.from_http import HttpSource  # noqa: PLC0415  urllib3 is an extra
        except ImportError as error:
            if error.name is None or error.name.partition(".")[0] != "urllib3":
                raise
            raise SourceError(
                f'{shown(url)}: needs urllib3, which is not installed; run: pip install "shmlock-rw[http]"'
            ) from None
        return HttpSource(url, timeout=timeout, max_size=max_size)
    if not parts.scheme:
        raise SourceError(f"{shown(url)}: the URL has no scheme; write file:///PATH or https://HOST/PATH")
    raise SourceError(f"{shown(url)}: can't fetch from {parts.scheme}: URLs; use file, http or https")
