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
from shmlock._kernel.libc import (
    ADDRESS,
    NAME,
    Timespec,
    Tolerated,
    check,
    check_refusal,
    holding_gil,
    releasing_gil,
)

with suppress(ImportError):  # importing shmlock works where this can't be built; making an object does not
    import posix_ipc

if TYPE_CHECKING:
    from collections.abc import Callable

_sem_open = releasing_gil.function("sem_open", ctypes.c_char_p, ctypes.c_int, restype=ctypes.c_void_p)
_sem_clockwait = releasing_gil.function("sem_clockwait", ADDRESS, ctypes.c_int, ADDRESS)
_sem_init = holding_gil.function("sem_init", ADDRESS, ctypes.c_int, ctypes.c_uint)
_HAS_CLOCKWAIT: Final = releasing_gil.has("sem_clockwait")  # glibc 2.30; not in musl


def _nobody_waits() -> bytes:
    """What lies in a semaphore's file that nobody has posted."""
    memory = ctypes.create_string_buffer(32)  # sizeof(sem_t): bits/semaphore.h (glibc), bits/alltypes.h (musl)
    check(_sem_init(ctypes.addressof(memory), 1, 0))  # 1: among processes
    return memory.raw


def _file(name: str) -> str:
    """The file in /dev/shm behind the semaphore of this name."""
    return f"sem.{name}"


def _called(name: str) -> str:
    """What sem_open(3) calls that file: glibc writes the prefix itself, and musl has none."""
    return f"/{name}" if NAME == "glibc" else f"/{_file(name)}"


def _open(name: str) -> posix_ipc.Semaphore:
    try:
        return posix_ipc.Semaphore(_called(name))
    except posix_ipc.Error as error:  # gone, or not ours to open
        raise OSError(errno.ENOENT, str(error)) from error


def _create(name: str, mode: int, owner: tuple[int, int]) -> None:
    """Make the semaphore, with exactly this mode and owner; nothing, if it is there.

    By hand: killed in sem_open(3), which makes a file under another name first, it would leave that; and it masks the
    mode with the umask.
    """
    content = _nobody_waits()
    made = shm.Unborn(_file(name), len(content), mode=mode, owner=None)
    try:
        with Tolerated():
            os.fchown(made.descriptor, *owner)
        os.pwrite(made.descriptor, content, 0)
        made.publish()
    finally:
        made.discard()


class Parker:
    """Where the owner of one slot sleeps."""

    def __init__(self, name: str, *, mode: int, owner: tuple[int, int]) -> None:
        try:
            self._semaphore = _open(name)  # the slot's former owner's
        except OSError as error:
            check_refusal(error)
            _create(name, mode, owner)
            self._semaphore = _open(name)
        # glibc maps a semaphore once per process: this is the address that posix_ipc uses, too.
        self._address = _sem_open(_called(name).encode(), 0) if _HAS_CLOCKWAIT else 0

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
        try:  # no context managers: whoever is woken waits for this
            semaphore.release()
        except posix_ipc.Error:
            pass
        except OSError as error:
            check_refusal(error)

    return post


def unlink(name: str) -> None:
    """Remove the semaphore's name. Those that have it open go on."""
    with suppress(FileNotFoundError):
        os.unlink(shm.path(_file(name)))
