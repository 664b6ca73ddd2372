"""The last good body on disk, for a start while the source can't be reached."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from shmlock.updater.from_file import FileSource


class Cache:
    """A file that holds one whole body at any time, whenever its writer is killed."""

    def __init__(self, path: Path, *, max_size: int) -> None:
        self._path = path
        self._source = FileSource(path, max_size=max_size)

    @property
    def url(self) -> str:
        """The file's URL."""
        return self._source.url

    def load(self) -> bytes:
        """Return the body. Raises `SourceError`."""
        return self._source.read().body

    def store(self, body: bytes) -> None:
        """Replace the file atomically; only this user can read it. Raises OSError."""
        # In the same directory, since rename(2) doesn't cross file systems. mkstemp(3) creates with 0600.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(body)
                file.flush()
                os.fsync(descriptor)  # before the rename, or a power cut can leave the name with no content
            Path(temporary).replace(self._path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
