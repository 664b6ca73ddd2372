"""A process that dies before its nth step: a store to shared memory, or a call into the kernel.

All shared stores go through the room `_segment.words`; here its views are replaced by ones that count, in the child
alone, and so are the functions of the C library and of the kernel that the rooms use. A bulk copy counts as two
steps: it may be cut in the middle. So a process is killed when it has just taken the guard, when it is about to leave
it, when it is about to post a semaphore, and between any two stores.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shmlock._engine import engine, mutual
from shmlock._kernel import libc, parker
from shmlock._segment import segment as segments
from shmlock._segment import words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Peer, Start

RECORD = "SHMLOCK_STEPS"
"""An environment variable: the file to which each step that is passed is added, as a line. Then each operation is only
killed at its first step, and runs once unharmed: what is recorded is what is killed otherwise."""
RECORDS = RECORD in os.environ

SYSTEM_CALLS = ("open", "link", "unlink", "posix_fallocate", "fchmod", "fchown", "pwrite", "close")


class Steps:
    """How many there have been in this process, and before which of them it is to die."""

    made = 0
    last = -1

    @classmethod
    def next(cls, what: str) -> None:
        """One is about to be made."""
        if cls.last < 0:
            return
        if cls.made == cls.last:
            os.kill(os.getpid(), signal.SIGKILL)
        cls.made += 1
        if RECORDS:
            with Path(os.environ[RECORD]).open("a", encoding="utf-8") as file:
                file.write(f"{what}\n")

    @classmethod
    def arm(cls, last: int) -> None:
        """From now on this process dies before step `last`; not at all if that is less than 0."""
        cls.made = 0
        cls.last = sys.maxsize if RECORDS and last > 0 else last


class Mortal:
    """A view whose stores are steps."""

    def __init__(self, view: Any) -> None:
        self._view = view

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, index: Any) -> Any:
        found = self._view[index]
        return Mortal(found) if isinstance(index, slice) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        Steps.next(where)
        if isinstance(index, slice):
            view, half = self._view[index], len(value) // 2
            view[:half] = value[:half]
            Steps.next(where)
            view[half:] = value[half:]
        else:
            self._view[index] = value

    def __bytes__(self) -> bytes:
        return bytes(self._view)

    def cast(self, kind: str) -> Mortal:
        """As a memoryview's."""
        return Mortal(self._view.cast(kind))

    def tolist(self) -> list[int]:
        """As a memoryview's."""
        found: list[int] = self._view.tolist()
        return found


def _step(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        Steps.next(name)
        return function(*args, **options)

    return call


def _calls() -> list[tuple[Any, str, Any]]:
    """All that calls the kernel: where it stands, its name there, and the same as a step."""
    of_libc: Any = type(libc.holding_gil.untyped("getpid")).__mro__[1]  # the type of all functions of ctypes
    found = [
        (room, name, _step(function.__name__, function))
        for module, room in list(sys.modules.items())
        if module.startswith("shmlock.")
        for name, function in vars(room).items()
        if isinstance(function, of_libc)
    ]
    return found + [(os, name, _step(name, getattr(os, name))) for name in SYSTEM_CALLS]


_CALLS: Final = _calls()  # looked for once, not in each of thousands of children


def mortal(last: int) -> None:
    """Make this process one that dies before step `last`, by starting its bookkeeping anew."""
    view, payload, opened = words.view, words.payload, parker.opened
    segments._mapped.clear()
    engine._engines.clear()
    mutual._mutexes.clear()
    words.view = lambda *where: Mortal(view(*where))  # type: ignore[assignment]
    words.payload = lambda *where: Mortal(payload(*where))  # type: ignore[assignment]
    for room, name, step in _CALLS:
        setattr(room, name, step)

    def post(name: str) -> Callable[[], None] | None:
        found = opened(name)
        return found and _step("post", found)

    parker.opened = post
    Steps.arm(last)


def every_step(start: Start, operation: Callable[[Peer], None], check: Callable[[int], None]) -> int:
    """Run the operation in children that die before step 0, 1, 2, ..., until one survives; check after each."""
    last = 0
    while True:

        def die(peer: Peer, last: int = last) -> None:
            mortal(last)
            operation(peer)

        code = start(die).join()
        check(last)
        if code == 0:
            return sys.maxsize if RECORDS else last
        assert code == -signal.SIGKILL
        last += 1
