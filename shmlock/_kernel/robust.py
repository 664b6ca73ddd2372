"""The robust, process-shared mutex of POSIX. "Its owner died" is a result here, not an error.

Every call takes the address of a `pthread_mutex_t` and answers with 0 or an errno:

    EBUSY, ETIMEDOUT    somebody that lives holds it
    EOWNERDEAD          it is yours, and its owner died inside: call `consistent` before anything else,
                        for an unlock without it makes the mutex ENOTRECOVERABLE for ever
    EPERM               (unlock) it is not yours
    EINVAL, ...         it is no such mutex any more: somebody else has written there

The type is NORMAL. ERRORCHECK compares thread ids, which are equal in different pid namespaces; RECURSIVE
lets both of such a pair in; PRIO_INHERIT together with ROBUST aborts the process in glibc's own assertion.

Noise in a mutex can end a process inside the C library, in two ways (found by trying). Another kind leads to other
code, some of which asserts (tpp.c): so whoever calls looks at the kind first, `sound`. And a mutex that is held is a
link in a list of its thread's, and unlocking follows its pointers: so whoever leaves one looks there first,
`can_be_left`.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import time
from errno import EBUSY, EINVAL, EOWNERDEAD, ETIMEDOUT
from typing import TYPE_CHECKING, Final

from shmlock._kernel.libc import ADDRESS, NAME, Timespec, holding_gil, releasing_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Block = ctypes.Array[ctypes.c_char]

MUTEX_SPACE: Final = 64  # bytes set aside for a pthread_mutex_t; the largest here takes 48
# robust_list(7): the kernel walks at most ROBUST_LIST_LIMIT (2048) mutexes when a thread ends, and
# forgets the rest. The threading library has its own claims; stay far away.
MOST_PER_THREAD: Final = 1024

# Words of a mutex, with glibc and with musl. kind: what it was made as, which never changes. before, after: its links
# to its neighbours in the list of the thread that holds it, robust_list(7); all of them point to a mutex's `after`.
KIND, BEFORE, AFTER = 2, 3, 4
_WORD: Final = 8
_LINKS: Final = 2 if NAME == "glibc" else 1  # musl's head of the list has no link back

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
_read_from = holding_gil.function(
    "process_vm_readv", ctypes.c_int, ADDRESS, ctypes.c_ulong, ADDRESS, ctypes.c_ulong, ctypes.c_ulong
)
_clocklock = releasing_gil.function("pthread_mutex_clocklock", ADDRESS, ctypes.c_int, ADDRESS)
_HAS_CLOCKLOCK: Final = releasing_gil.has("pthread_mutex_clocklock")  # glibc 2.30; not in musl


class _Vector(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_uint64), ("size", ctypes.c_size_t))


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
    """Whether somebody that lives holds the mutex. It is left free and usable when nobody does. Unsure means yes."""
    status = EINVAL
    try:
        if sound(address):
            (status,) = tried(address)
        if status == EOWNERDEAD:
            consistent(address)
    finally:
        # Or a handler that raised would leave it to this thread, which lives: nobody would ever see the death.
        if status in {0, EOWNERDEAD}:
            unlock(address)
    return status not in {0, EOWNERDEAD}


# --- noise


@functools.cache
def kind() -> int:
    """The word KIND of each mutex that `initialise` makes."""
    mutex = ctypes.create_string_buffer(MUTEX_SPACE)
    initialise([ctypes.addressof(mutex)])
    return _load(ctypes.addressof(mutex) + KIND * _WORD)


def sound(address: int) -> bool:
    """Whether what lies there says that it is a mutex of ours. Nothing may be called for one that is not."""
    return _load(address + KIND * _WORD) == kind()


def linked(address: int) -> bool:
    """Whether the mutex is in the list of the thread that holds it: its neighbours' links lead to it.

    Its own links may lead anywhere, so they are followed by the kernel, which says where there is nothing.
    """
    here = address + AFTER * _WORD
    before, after = (_load(address + word * _WORD) for word in (BEFORE, AFTER))
    return all(_leads(place, here) for place in (before, after - _WORD)[:_LINKS])


def _leads(place: int, there: int) -> bool:
    """Whether the word at `place`, which may be no address at all, is that address."""
    found = ctypes.c_uint64()
    ours, theirs = _Vector(ctypes.addressof(found), _WORD), _Vector(place % (1 << 64), _WORD)
    if _read_from(os.getpid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) == _WORD:
        return found.value == there
    return ctypes.get_errno() in {errno.EPERM, errno.ENOSYS}  # noise; or a sandbox does not let us look: we believe it


def can_be_left(address: int) -> bool:
    """Whether nothing stands in the way of an unlock by the thread that holds it."""
    return sound(address) and linked(address)


def _load(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value
