"""A configuration in a file of this machine (`file:` URLs, RFC 8089)."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes, urlsplit

from shmlock.updater.source import Fetched, SourceError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 16

_TICK_NS = 2_000_000_000
"""The coarsest clock that files are stamped with, FAT's. Two changes within one tick leave equal stamps."""


def path_of(url: str) -> Path:
    """Return the path that a `file:` URL names. Raises `SourceError` if that is none on this machine."""
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise SourceError(
            f"{shown(url)}: a file URL reaches this machine only, so it takes no host; write file:///PATH"
        )
    if parts.query or parts.fragment:
        raise SourceError(f"{url}: a file URL has no query or fragment; write ? as %3F and # as %23")
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if not path.startswith("/") or "\0" in path:
        raise SourceError(f"{url}: not an absolute path; write file:///PATH")
    return Path(path)


class FileSource:
    """A regular file, unmodified for as long as inode, size, and times of modification and change stay."""

    def __init__(self, path: Path, *, max_size: int) -> None:
        self._path = path.absolute()
        self._max_size = max_size

    @property
    def url(self) -> str:
        """The file's URL."""
        return self._path.as_uri()

    def fetch(self, last: Fetched | None = None) -> Fetched | None:
        """Return the file's content, or None when the file was not touched since `last`.

        Raises `SourceError` when it isn't there, isn't a readable regular file, is larger than the limit,
        or is being written.
        """
        with self._opened() as descriptor:
            if last is not None and last.stamp == _stamp(descriptor):
                return None
            return self._read(descriptor)

    def read(self) -> Fetched:
        """Return the file's content. Raises `SourceError` as `fetch` does."""
        with self._opened() as descriptor:
            return self._read(descriptor)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            # O_NONBLOCK: to open a FIFO without a writer would wait for one, open(2).
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise SourceError(f"{self.url}: not a regular file; name the file with the configuration")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SourceError(f"{self.url}: {error.strerror}; {_remedy(error)}") from error

    def _read(self, descriptor: int) -> Fetched:
        stamp = _stamp(descriptor)
        settled = time.time_ns() - os.fstat(descriptor).st_ctime_ns >= _TICK_NS
        body = bytearray()
        while chunk := os.read(descriptor, min(_CHUNK, self._max_size + 1 - len(body))):
            body += chunk
            if len(body) > self._max_size:
                raise SourceError(f"{self.url}: larger than {self._max_size} bytes; raise the size limit or shorten it")
        if _stamp(descriptor) != stamp:
            raise SourceError(f"{self.url}: changed while it was read; write another file and rename it over this one")
        return Fetched(bytes(body), stamp if settled else None)


def _stamp(descriptor: int) -> tuple[int, ...]:
    status = os.fstat(descriptor)
    # The time of change as well: tools that copy a file set back its time of modification.
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _remedy(error: OSError) -> str:
    match error:
        case FileNotFoundError() | NotADirectoryError():
            return "write the file or correct the URL"
        case PermissionError():
            return "let this user read it"
        case _:
            return "see that the file can be read"
