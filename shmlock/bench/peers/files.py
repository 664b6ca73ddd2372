"""What the locks on files have in common: a directory of their own, and contexts that are made anew for each `with`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock.bench.peers import Context


class Again:
    """`with again:` is `with make():`, any number of times, one after the other."""

    def __init__(self, make: Callable[[], Context]) -> None:
        self._make = make
        self._context: Context | None = None

    def __enter__(self) -> object:
        self._context = context = self._make()
        return context.__enter__()

    def __exit__(self, *exception: object) -> bool | None:
        assert self._context is not None  # noqa: S101  for type checkers: it was entered
        return self._context.__exit__(*exception)  # type: ignore[arg-type]


class FileLock:
    """A file in a temporary directory. The kernel frees it when its holder dies."""

    package: ClassVar[str | None] = None
    recovers: ClassVar = True

    def __init__(self, unique: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"{unique}."))
        self._path = self._directory / "lock"

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)
