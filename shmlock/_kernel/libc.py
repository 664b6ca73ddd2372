"""The C library, opened twice: once keeping the GIL, once giving it away.

A call that can't wait keeps the GIL (`PyDLL`): no thread switch, and half the price. A call that may wait
must give it away (`CDLL`), or it would stop the very thread that could end the wait.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from shmlock.errors import UnsupportedPlatform

if TYPE_CHECKING:
    from collections.abc import Callable

Function = "Callable[..., int]"

# bits/pthreadtypes-arch.h (glibc), bits/alltypes.h (musl): what the C library takes for a pthread_mutex_t.
_MUTEX_SIZES: Final = {
    ("glibc", "x86_64"): 40,
    ("glibc", "aarch64"): 48,
    ("musl", "x86_64"): 40,
    ("musl", "aarch64"): 40,
}


def _name() -> str:
    """Which C library this is: "glibc" or "musl"."""
    try:
        return "glibc" if (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc") else "musl"
    except (ValueError, OSError, AttributeError):
        return "musl"


NAME: Final = _name()
MACHINE: Final = platform.machine()
MUTEX_SIZE: Final = _MUTEX_SIZES.get((NAME, MACHINE), 0)


def missing() -> str | None:
    """What this platform lacks that nothing can replace, or None."""
    if sys.platform != "linux":
        return f"Linux (this is {sys.platform}): robust process-shared mutexes and membarrier"
    if sys.implementation.name != "cpython":
        return f"CPython (this is {sys.implementation.name}): an aligned memoryview store in one machine move"
    if not MUTEX_SIZE:
        return f"x86-64 or aarch64 (this is {MACHINE})"
    return None


def require() -> None:
    """Raise `UnsupportedPlatform` naming what is missing, if anything is."""
    lack = missing()
    if lack is not None:
        raise UnsupportedPlatform(f"shmlock needs {lack}")


def _absent(name: str) -> Callable[..., int]:
    def call(*_: object) -> int:
        require()
        raise UnsupportedPlatform(f"shmlock needs {name}, which this C library ({NAME}) does not have")

    return call


class _Library:
    """Functions of the C library by name, typed when they are asked for."""

    def __init__(self, loader: type[ctypes.CDLL]) -> None:
        self._dll = loader(None, use_errno=True) if missing() is None else None

    def has(self, name: str) -> bool:
        return hasattr(self._dll, name)

    def function(self, name: str, *argtypes: Any, restype: Any = ctypes.c_int) -> Callable[..., int]:
        if not self.has(name):
            return _absent(name)
        function = getattr(self._dll, name)
        function.argtypes = argtypes
        function.restype = restype
        return function  # type: ignore[no-any-return]

    def untyped(self, name: str) -> Callable[..., int]:
        """A function of its own that converts no arguments: it takes ctypes objects, and cuts an int to 32 bits."""
        return self._dll[name] if self._dll is not None else _absent(name)


holding_gil: Final = _Library(ctypes.PyDLL)
releasing_gil: Final = _Library(ctypes.CDLL)

ADDRESS: Final = ctypes.c_void_p


class Timespec(ctypes.Structure):
    """`struct timespec` on the 64-bit platforms that we support."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    @classmethod
    def from_ns(cls, nanoseconds: int) -> Timespec:
        return cls(*divmod(nanoseconds, 1_000_000_000))


def check(result: int) -> int:
    """Turn -1 with an errno into the OSError it means."""
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def check_refusal(error: OSError) -> None:
    """Raise it again unless the kernel made it.

    A signal handler that raises TimeoutError, or InterruptedError, raises an OSError out of whatever was under way. It
    has no errno, and must not be taken for an answer.
    """
    if error.errno is None:
        raise error


class Tolerated(AbstractContextManager[None]):
    """`with Tolerated():` what the kernel refuses does not matter. Anybody else's exception does."""

    def __exit__(self, kind: object, value: object, traceback: object) -> bool:
        return isinstance(value, OSError) and value.errno is not None
