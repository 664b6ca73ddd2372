"""The robust, process-shared mutex of POSIX. "Its owner died" is a result here, not an error.

Every call takes the address of a `pthread_mutex_t` and answers with 0 or an errno:

    EBUSY, ETIMEDOUT    somebody that lives holds it
    EOWNERDEAD          it is yours, and its owner died inside: call `consistent` before anything else,
                        for an unlock without it makes the mutex ENOTRECOVERABLE for ever
    EPERM               (unlock) it is not yours

The type is NORMAL. ERRORCHECK compares thread ids, which are equal in different pid namespaces; RECURSIVE
lets both of such a pair in; PRIO_INHERIT together with ROBUST aborts the process in glibc's own assertion.
"""

from __future__ import annotations

import ctypes
import time
from errno import EBUSY, EOWNERDEAD, ETIMEDOUT
from typing import TYPE_CHECKING, Final

from shmlock._kernel.libc import ADDRESS, Timespec, holding_gil, releasing_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Block = ctypes.Array[ctypes.c_char]

MUTEX_SPACE: Final = 64  # bytes set aside for a pthread_mutex_t; the largest here takes 48
# robust_list(7): the kernel walks at most ROBUST_LIST_LIMIT (2048) mutexes when a thread ends, and
# forgets the rest. The threading library has its own claims; stay far away.
MOST_PER_THREAD: Final = 1024

_PTHREAD_PROCESS_SHARED: Final = 1
_PTHREAD_MUTEX_ROBUST: Final = 1

# They never wait, so they keep the GIL.
trylock: Final[Callable[[int], int]] = holding_gil.function("pthread_mutex_trylock", ADDRESS)
unlock: Final[Callable[[int], int]] = holding_gil.function("pthread_mutex_unlock", ADDRESS)
consistent: Final[Callable[[int], int]] = holding_gil.function("pthread_mutex_consistent", ADDRESS)

# The same for a mutex that is taken all the time, as what `block` makes: ctypes passes an array's address without
# converting anything, which saves a quarter of a call.
trylock_block: Final[Callable[[Block], int]] = holding_gil.untyped("pthread_mutex_trylock")
unlock_block: Final[Callable[[Block], int]] = holding_gil.untyped("pthread_mutex_unlock")

_init = holding_gil.function("pthread_mutex_init", ADDRESS, ADDRESS)
_attr_init = holding_gil.function("pthread_mutexattr_init", ADDRESS)
_attr_shared = holding_gil.function("pthread_mutexattr_setpshared", ADDRESS, ctypes.c_int)
_attr_robust = holding_gil.function("pthread_mutexattr_setrobust", ADDRESS, ctypes.c_int)
_clocklock = releasing_gil.function("pthread_mutex_clocklock", ADDRESS, ctypes.c_int, ADDRESS)
_HAS_CLOCKLOCK: Final = releasing_gil.has("pthread_mutex_clocklock")  # glibc 2.30; not in musl


def block(address: int) -> Block:
    """The mutex at `address`, for `trylock_block` and `unlock_block`."""
    return (ctypes.c_char * MUTEX_SPACE).from_address(address)


def initialise(addresses: Iterable[int]) -> None:
    """Make the mutexes at these addresses, which nobody uses yet."""
    attributes = ctypes.create_string_buffer(MUTEX_SPACE)
    _check(_attr_init(attributes))
    _check(_attr_shared(attributes, _PTHREAD_PROCESS_SHARED))
    _check(_attr_robust(attributes, _PTHREAD_MUTEX_ROBUST))
    for address in addresses:
        _check(_init(address, attributes))


def _check(status: int) -> None:
    if status:
        raise OSError(status, "a robust, process-shared mutex can't be made here")


def tried(address: int) -> Iterator[int]:
    """As `trylock`, but that no signal handler runs before its status is known; for `(status,) = ...`.

    The call into C is made by the unpacking, after which CPython does not look for signals, and not by a call of
    Python's, after which it does. So a `finally` knows what it has to unlock, without trying what another one may hold.
    """
    return map(trylock, (address,))


def lock_within(address: int, seconds: float) -> int:
    """Wait for the mutex, giving the GIL away: 0, EOWNERDEAD or ETIMEDOUT. Whoever gets it, knows: see `tried`.

    The clock is the monotonic one. `pthread_mutex_timedlock` goes by the wall clock, where a step back of
    an hour makes 20 ms an hour; where nothing better exists we would rather knock every millisecond.
    """
    if _HAS_CLOCKLOCK:
        until = Timespec.from_ns(time.monotonic_ns() + int(seconds * 1e9))
        (status,) = map(_clocklock, (address,), (time.CLOCK_MONOTONIC,), (ctypes.byref(until),))  # see `tried`
        if status != ETIMEDOUT:
            return status
        # glibc leaves the mutex noted as our pending operation when the time is over; were we killed now, the
        # kernel would look at it, and take an equal thread id in another pid namespace for ours. Trying clears it.
        (status,) = tried(address)
        return ETIMEDOUT if status == EBUSY else status
    end = time.monotonic() + seconds
    (status,) = tried(address)
    while status == EBUSY:
        if time.monotonic() >= end:
            return ETIMEDOUT
        time.sleep(0.001)
        (status,) = tried(address)
    return status


def lives(address: int) -> bool:
    """Whether somebody that lives holds the mutex. It is left free and usable when nobody does."""
    status = EBUSY
    try:
        (status,) = tried(address)
        if status == EOWNERDEAD:
            consistent(address)
    finally:
        # Or a handler that raised would leave it to this thread, which lives: nobody would ever see the death.
        if status != EBUSY:
            unlock(address)
    return status == EBUSY
