"""Sleep and wake one participant: the contract, and POSIX semaphores behind it.

A semaphore is opened under its name, so that any process can post it. The contract:

- `Parker.wait` is called by the participant that owns the slot, and by no other.
- `post` may be called by anybody at any time. It never waits, never raises because the sleeper is gone, and
  it may come too often: a sleeper looks at its own word after each wake-up, so that a left-over post costs
  one turn of its loop.
- Nobody relies on a post to arrive: its sender may be killed before it. Waits are cut into slices.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shmlock._kernel import shm
from shmlock._kernel.libc import ADDRESS, Timespec, Tolerated, check_refusal, releasing_gil

with suppress(ImportError):  # importing shmlock works where this can't be built; making an object does not
    import posix_ipc

if TYPE_CHECKING:
    from collections.abc import Callable

_sem_open = releasing_gil.function("sem_open", ctypes.c_char_p, ctypes.c_int, restype=ctypes.c_void_p)
_sem_clockwait = releasing_gil.function("sem_clockwait", ADDRESS, ctypes.c_int, ADDRESS)
_HAS_CLOCKWAIT: Final = releasing_gil.has("sem_clockwait")  # glibc 2.30; not in musl


def _file(name: str) -> str:
    """The file in /dev/shm behind the semaphore of this name: sem_overview(7), NOTES."""
    return f"sem.{name}"


def _open(name: str) -> posix_ipc.Semaphore:
    try:
        return posix_ipc.Semaphore(f"/{name}")
    except posix_ipc.Error as error:  # gone, or not ours to open
        raise OSError(errno.ENOENT, str(error)) from error


def _create(name: str, mode: int, owner: tuple[int, int]) -> posix_ipc.Semaphore:
    """Open the semaphore, made with exactly this mode and owner if it is new."""
    try:
        semaphore = posix_ipc.Semaphore(f"/{name}", posix_ipc.O_CREX, mode=mode, initial_value=0)
    except posix_ipc.ExistentialError:
        return _open(name)
    # sem_open(3) masks the mode with the umask; the file behind the name takes a chmod.
    with Tolerated():
        shm.set_owner_and_mode(_file(name), mode, owner)
    return semaphore


class Parker:
    """Where the owner of one slot sleeps."""

    def __init__(self, name: str, *, mode: int, owner: tuple[int, int]) -> None:
        self._semaphore = _create(name, mode, owner)
        # glibc maps a semaphore once per process: this is the address that posix_ipc uses, too.
        self._address = _sem_open(f"/{name}".encode(), 0) if _HAS_CLOCKWAIT else 0

    def wait(self, seconds: float) -> bool:
        """Sleep until posted or for `seconds`; True when posted. Ends early when a signal comes.

        By the monotonic clock where the C library can: `sem_timedwait` ends at a time of day, so that a
        clock stepped back by an hour would make this slice an hour longer.
        """
        if self._address:
            until = Timespec.from_ns(time.monotonic_ns() + int(seconds * 1e9))
            return _sem_clockwait(self._address, time.CLOCK_MONOTONIC, ctypes.byref(until)) == 0
        try:
            self._semaphore.acquire(seconds)
        except (posix_ipc.BusyError, posix_ipc.SignalError):
            return False
        return True


class Napper:
    """Where to sleep without a semaphore.

    The segment's names are gone, so that a new one would be left behind; or /dev/shm is full.
    """

    _NAP: Final = 0.005

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or 5 ms if that is less. Nobody can wake us, so: often."""
        time.sleep(min(seconds, self._NAP))
        return False


def opened(name: str) -> Callable[[], None] | None:
    """How to post the semaphore of this name; None when its owner never slept, so that there is none."""
    try:
        semaphore = _open(name)
    except OSError as error:
        check_refusal(error)
        return None

    def post() -> None:
        # EOVERFLOW: more than two thousand million posts that nobody took. One of them will do.
        with Tolerated(), suppress(posix_ipc.Error):
            semaphore.release()

    return post


def unlink(name: str) -> None:
    """Remove the semaphore's name. Those that have it open go on."""
    with suppress(FileNotFoundError):
        os.unlink(shm.path(_file(name)))
