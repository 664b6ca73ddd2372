"""One named block of shared memory: created whole or attached to, mapped once per process, never unmapped."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shmlock._kernel import libc, membarrier, robust, shm
from shmlock._kernel.forks import in_child
from shmlock._kernel.parker import unlink as unlink_semaphore
from shmlock._segment import header as headers
from shmlock._segment import words as shared
from shmlock._segment.layout import GATE, GATE_OPEN, GATE_SLOW, GUARD, LATCH, SEAT, SEQUENCE, payload_at, slot
from shmlock._segment.words import WORD, address_of
from shmlock.errors import ForeignSegment, SegmentCorrupt, SegmentNotFound, UnsupportedPlatform

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from shmlock._segment.header import Header, Plan

PREFIX: Final = "shmlock."
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


def check_name(name: str) -> str:
    """Return the name, or raise ValueError saying what a name may be."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"a name is 1 to 200 characters of A-Z a-z 0-9 . _ - and does not start with a dot, not {name!r}"
        )
    return name


def semaphore(name: str, number: int) -> str:
    """The name of the semaphore of a slot."""
    return f"{PREFIX}{name}.{number}"


def unlink(name: str) -> bool:
    """Remove a segment's name and those of its semaphores, whatever lies there; False if nothing did.

    Processes that have it mapped go on with it, among themselves.
    """
    there = shm.unlink(PREFIX + check_name(name))
    ours = re.compile(re.escape(f"sem.{PREFIX}{name}.") + r"(\d+)")
    for entry in shm.names():
        match = ours.fullmatch(entry)
        if match:
            unlink_semaphore(semaphore(name, int(match[1])))
    return there


@dataclass(frozen=True, eq=False)
class Segment:
    """A mapped segment. One per process and inode, however many handles there are."""

    name: str
    header: Header
    address: int
    words: memoryview[int]
    payload: memoryview[int]
    identity: tuple[int, int]
    mode: int
    owner: tuple[int, int]
    # Who has it open in this process, by `opening()`. What the process holds is given up with the last.
    handles: set[weakref.ref[Any]] = field(default_factory=set)

    @property
    def guard_address(self) -> int:
        return self.address + GUARD * WORD

    @property
    def seat_address(self) -> int:
        return self.address + SEAT * WORD

    def latch_address(self, number: int) -> int:
        return self.address + (slot(number) + LATCH) * WORD

    def semaphore(self, number: int) -> str:
        return semaphore(self.name, number)

    def is_stale(self) -> bool:
        """Whether the name is gone, or now means another segment."""
        return shm.identity(PREFIX + self.name) != self.identity

    def is_gone(self) -> bool:
        """Whether the name means nothing any more."""
        return shm.identity(PREFIX + self.name) is None

    def unlink(self) -> bool:
        """Remove the names, unless they mean another segment by now."""
        return not self.is_stale() and unlink(self.name)


_mapped: dict[tuple[int, int], Segment] = {}
# A signal handler may open an object while its own thread is opening one.
_opening = threading.RLock()


@in_child
def _renew_lock() -> None:
    global _opening  # noqa: PLW0603  another thread of the parent may have held it at the fork
    _opening = threading.RLock()


def opening() -> AbstractContextManager[object]:
    """Keeps other threads of this process from opening and closing. Nobody waits for another process in it."""
    return _opening


def open_segment(
    name: str,
    plan: Plan,
    *,
    create: bool,
    mode: int,
    owner: tuple[int, int] | None,
    defaults: tuple[int, int, int],
    payload_size: Callable[[int], int],
) -> Segment:
    """Attach to the segment of this name, or create it.

    `defaults`: participants, capacity and option for what the plan leaves open; `payload_size`: bytes by capacity.
    """
    libc.require()
    check_name(name)
    while True:
        try:
            return _attach(name, plan, owner)
        except SegmentNotFound:
            if not create:
                raise
        # When somebody else gave it the name first, all go on with that one.
        _create(name, plan, mode=mode, owner=owner, defaults=defaults, payload_size=payload_size)


def _attach(name: str, plan: Plan, owner: tuple[int, int] | None) -> Segment:
    with _opening, _opened(name) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentCorrupt(f"{name}: what lies at {shm.path(PREFIX + name)} is no file")
        identity = status.st_dev, status.st_ino
        expected = {0, os.geteuid()} | ({owner[0]} if owner else set())
        if status.st_uid not in expected and identity not in _mapped:  # else this process has trusted it before
            raise ForeignSegment(
                errno.EACCES,
                f"{name}: belongs to user {status.st_uid}, and this is user {os.geteuid()}; "
                f"pass owner=({status.st_uid}, {status.st_gid}) if that is whom you trust",
            )
        header = headers.load(os.pread(descriptor, headers.SIZE, 0), size=status.st_size, name=name)
        headers.check(header, plan, name)
        if header.fast:
            _require_fence(name)
        if identity not in _mapped:
            address = shm.map_shared(descriptor, header.size)
            at = payload_at(header.participants) * WORD
            _mapped[identity] = Segment(
                name=name,
                header=header,
                address=address,
                words=shared.view(address, at),
                payload=shared.payload(address + at, header.payload),
                identity=identity,
                mode=stat.S_IMODE(status.st_mode),
                owner=(status.st_uid, status.st_gid),
            )
        return _mapped[identity]


class _opened:  # noqa: N801  reads as the function that it wraps
    """`shm.opened`, with the errors of opening told in our own words."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._context = shm.opened(PREFIX + name)

    def __enter__(self) -> int:
        name = self._name
        try:
            return self._context.__enter__()
        except FileNotFoundError:
            raise SegmentNotFound(errno.ENOENT, f"{name}: there is no such segment") from None
        except PermissionError:
            raise ForeignSegment(
                errno.EACCES,
                f"{name}: user {os.geteuid()} may not open {shm.path(PREFIX + name)}; "
                "create it with owner=(uid, gid) of the user that the workers run as",
            ) from None
        except OSError as error:
            libc.check_refusal(error)
            # ELOOP: a symbolic link; EISDIR, ENXIO: a directory, a socket or a FIFO.
            raise SegmentCorrupt(f"{name}: {shm.path(PREFIX + name)} is no segment ({error.strerror})") from None

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(None, None, None)


def _require_fence(name: str) -> None:
    reason = membarrier.available()
    if reason is not None:
        raise UnsupportedPlatform(
            errno.ENOSYS,
            f"{name}: its readers take the fast path, which needs membarrier(2) in every process; here it fails "
            f"({reason}). Allow the system call, or create the segment where it is not allowed",
        )


def _create(
    name: str,
    plan: Plan,
    *,
    mode: int,
    owner: tuple[int, int] | None,
    defaults: tuple[int, int, int],
    payload_size: Callable[[int], int],
) -> None:
    participants, capacity, option = (
        default if asked is None else asked
        for asked, default in zip((plan.participants, plan.capacity, plan.option), defaults, strict=True)
    )
    at = payload_at(participants) * WORD
    size = at + payload_size(capacity)
    fast = membarrier.available() is None
    try:
        unborn = shm.Unborn(PREFIX + name, size, mode=mode, owner=owner)
    except OSError as error:
        libc.check_refusal(error)
        raise OSError(error.errno, f"{name}: {size} bytes in {shm.ROOT}: {os.strerror(error.errno or 0)}") from error
    try:
        header = headers.Header(
            kind=plan.kind,
            size=size,
            participants=participants,
            payload=size - at,
            capacity=capacity,
            option=option,
            fast=fast,
        )
        _write(unborn.descriptor, _image(header, at))
        unborn.publish()
    finally:
        unborn.discard()


def _image(header: Header, size: int) -> bytearray:
    """The first `size` bytes of a new segment: everything but the payload, which begins as zeros."""
    image = bytearray(size)
    words = memoryview(image).cast("Q")
    header.store(words)
    words[GATE] = GATE_OPEN if header.fast else GATE_SLOW
    words[SEQUENCE] = 2  # 0 is the stamp of no valid moment
    address = address_of(image)
    latches = [address + (slot(number) + LATCH) * WORD for number in range(header.participants)]
    # A mutex that nobody has locked yet holds no address, so the image may be made elsewhere and copied.
    robust.initialise([address + GUARD * WORD, address + SEAT * WORD, *latches])
    return image


def _write(descriptor: int, image: bytearray) -> None:
    written = 0
    while written < len(image):
        written += os.pwrite(descriptor, memoryview(image)[written:], written)
