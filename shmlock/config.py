"""A configuration that one updater publishes and every worker reads for the price of a memory load.

The payload: control words, then two buffers. The version says which buffer is in force: the odd ones use the
second. A publisher writes the other buffer, under S, while readers go on reading; then it becomes a writer,
which drains those that read under the lock, and stores the new version, in one move. So nobody reads the
buffer that the next publish writes, and a publisher that is killed at any step leaves the last good version
in force. Readers copy without the lock and believe the copy only if the version is still the same.
"""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from dataclasses import dataclass
from errno import EBUSY, EINVAL, EOWNERDEAD, ETIMEDOUT
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from shmlock._engine.bias import Reader
from shmlock._engine.engine import engine_of
from shmlock._engine.handle import Handle
from shmlock._engine.stats import LockStatistics, read_statistics
from shmlock._kernel import robust
from shmlock._kernel.deadline import Deadline
from shmlock._segment.header import Kind
from shmlock._segment.record import Record
from shmlock._segment.words import LINE, WORD
from shmlock._values import CODECS, Codec, freeze
from shmlock.errors import NotPublished, PayloadTooLarge, SegmentCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.engine import Engine
    from shmlock._segment.segment import Segment

DEFAULT_CAPACITY: Final = 1 << 20  # bytes
_TRIES: Final = 8
_SLICE: Final = 0.020  # seconds, after which signal handlers run

_CONTROL: Final = Record(
    # version: 0 before the first publish; grows by one. Stored by a writer (W), in one move, as the last
    # store of a publish. confirmed: when the value was last known to be current, ns of the monotonic clock.
    "version confirmed",
    # For each buffer what it holds. held: the version, 0 while the buffer is being written.
    "held0 length0 crc0 published0 pid0",
    "held1 length1 crc1 published1 pid1",
)
_VERSION: Final = _CONTROL["version"]
_CONFIRMED: Final = _CONTROL["confirmed"]
_BUFFERS: Final = (_CONTROL["held0"], _CONTROL["held1"])
_HELD, _LENGTH, _CRC, _PUBLISHED, _PID = range(5)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One published version: asked twice, it gives one truth.

    `published_at`: seconds since the epoch. `size`: bytes, encoded.
    """

    version: int
    value: Any
    published_at: float
    publisher_pid: int
    size: int


_NOTHING: Final = Snapshot(-1, None, 0.0, 0, 0)
_MISSING: Final = object()


class SharedConfig(Handle):
    """A value that one process publishes and all others read.

    >>> import shmlock
    >>> config = shmlock.SharedConfig("docs.config")
    >>> config.publish({"flags": {"new": True}})
    1
    >>> config.get()["flags"]["new"]
    True
    >>> config.unlink()

    `capacity`: the largest encoded value, in bytes; fixed at creation, 1 MiB if not given; twice of it is
    reserved. `codec`: "json", "bytes", or an object with `encode(value) -> bytes` and `decode(bytes)`. The other
    arguments as for `RWLock`.

    What `get` returns is shared by all threads of the process, so dicts and lists in it are read-only.
    """

    _kind: ClassVar[Kind] = Kind.SharedConfig

    def __init__(
        self,
        name: str,
        *,
        create: bool = True,
        mode: int = 0o600,
        owner: tuple[int, int] | None = None,
        max_participants: int | None = None,
        capacity: int | None = None,
        codec: Literal["json", "bytes"] | Codec = "json",
    ) -> None:
        if capacity is not None and not (isinstance(capacity, int) and 1 <= capacity <= 1 << 40):
            raise ValueError(f"capacity must be a number of bytes from 1 to 1 TiB, not {capacity!r}")
        self.codec: Codec = _codec(codec)
        self._codec_given = codec
        super().__init__(
            name,
            create=create,
            mode=mode,
            owner=owner,
            max_participants=max_participants,
            capacity=capacity,
            option=list(CODECS).index(codec) if isinstance(codec, str) else len(CODECS),
            option_name="codec",
            option_values=(*CODECS, "another codec"),
            defaults=(DEFAULT_CAPACITY, 0),
            payload_size=_payload_size,
        )
        self._engine: Engine = engine_of(self._segment)
        self._words = self._segment.payload[: _CONTROL.size * WORD].cast("Q")
        self._reader = Reader(self._engine)
        self._seat = _Seat(self._segment)
        self._latest = _NOTHING
        self._decoded: dict[int, Snapshot] = {}

    # --- reading

    def get(self, default: Any = _MISSING) -> Any:
        """The current value: the same object until the version changes. Cost in the steady state: one load.

        Raises NotPublished before the first publish when no default is given.
        """
        latest = self._latest
        if self._words[_VERSION] == latest.version:
            return latest.value
        current = self._refresh()
        if current is not None:
            return current.value
        if default is _MISSING:
            raise NotPublished(f"{self._name}: nothing has been published yet; publish first, or give get() a default")
        return default

    def snapshot(self) -> Snapshot:
        """The current version with all that belongs to it. Raises NotPublished before the first publish."""
        latest = self._latest
        if self._words[_VERSION] != latest.version:
            latest = self._refresh() or _NOTHING
        if latest is _NOTHING:
            raise NotPublished(f"{self._name}: nothing has been published yet")
        return latest

    def _refresh(self) -> Snapshot | None:
        """Decode the version in force, once per version and process. None before the first publish."""
        for _ in range(_TRIES):
            version = self._words[_VERSION]
            if not version:
                return None
            copied = self._decoded.get(version) or self._copy(version)
            # The version is loaded again after the copy: were it another one by now, a publisher could have
            # been writing in the buffer that we copied from.
            if copied is not None and self._words[_VERSION] == version:
                return self._adopt(copied)
        with self._reader:  # publishers come faster than we can copy: keep them out
            version = self._words[_VERSION]
            copied = self._decoded.get(version) or self._copy(version)
        if copied is None:
            raise SegmentCorrupt(f"{self._name}: version {version} is damaged; publish again")
        return self._adopt(copied)

    def _copy(self, version: int) -> tuple[Snapshot, bytes] | Snapshot | None:
        """What the version's buffer holds, or None when it is torn."""
        words = self._words
        at = _BUFFERS[version & 1]
        length = words[at + _LENGTH]
        published, pid, crc = words[at + _PUBLISHED], words[at + _PID], words[at + _CRC]
        if length > self._segment.header.capacity:
            return None
        start = self._start(version)
        data = bytes(self._segment.payload[start : start + length])
        if words[at + _HELD] != version or zlib.crc32(data) != crc:
            return None
        return Snapshot(version, None, published / 1e9, pid, length), data

    def _adopt(self, copied: tuple[Snapshot, bytes] | Snapshot) -> Snapshot:
        """Decode a validated copy, unless another thread has; keep it; forget older ones."""
        if isinstance(copied, Snapshot):
            current = copied
        else:
            head, data = copied
            try:
                value = freeze(self.codec.decode(data))
            except Exception as error:
                raise SegmentCorrupt(
                    f"{self._name}: version {head.version} does not decode with this codec: {error}"
                ) from error
            made = Snapshot(head.version, value, head.published_at, head.publisher_pid, head.size)
            current = self._decoded.setdefault(head.version, made)
        for version in list(self._decoded):
            if version < current.version:
                self._decoded.pop(version, None)
        if current.version > self._latest.version:
            self._latest = current
        return current

    def encoded(self) -> bytes | None:
        """The bytes in force, or None before the first publish."""
        if not self._words[_VERSION]:
            return None
        with self._reader:
            version = self._words[_VERSION]
            copied = self._copy(version)
        if not isinstance(copied, tuple):
            raise SegmentCorrupt(f"{self._name}: version {version} is damaged; publish again")
        return copied[1]

    @property
    def version(self) -> int:
        """How often a value has been published; 0 before the first time."""
        return self._words[_VERSION]

    @property
    def age(self) -> float:
        """Seconds since the value was published, or confirmed by its updater to be current; inf before that."""
        confirmed = self._words[_CONFIRMED]
        return (time.monotonic_ns() - confirmed) / 1e9 if confirmed else math.inf

    def wait(self, after: int | None = None, timeout: float | None = None) -> Snapshot | None:
        """Sleep until there is a version later than `after` (default: than now); None when the time is over.

        `timeout` in seconds, None for ever.
        """
        deadline = Deadline.after(timeout)
        seen = self.version if after is None else after
        if self.version <= seen and not self._engine.watch(lambda: self.version > seen, deadline):
            return None
        return self.snapshot()

    # --- publishing

    def publish(self, value: Any) -> int:
        """Make this the value for all; return its version. Publishers exclude each other, readers go on.

        The value is encoded, and by a codec of your own decoded again to see that it can be, before anything is
        changed. Raises what the codec raises (ValueError, TypeError), or PayloadTooLarge; the old value stays then.
        """
        data = self.codec.encode(value)
        if not isinstance(self._codec_given, str):  # ours decode what they encode
            self.codec.decode(data)
        capacity = self._segment.header.capacity
        if len(data) > capacity:
            raise PayloadTooLarge(
                f"{self._name}: {len(data)} bytes are more than the {capacity} that were reserved; the old value "
                f"stays. Stop all that use it, shmlock.unlink({self._name!r}), and create it with a larger capacity"
            )
        version = 0

        def write() -> None:
            nonlocal version
            version = self._words[_VERSION] + 1
            self._write(version, data)

        def switch() -> None:
            self._words[_CONFIRMED] = time.monotonic_ns()
            self._words[_VERSION] = version

        self._engine.update(write, switch)
        self._engine.wake_watchers()
        return version

    def _write(self, version: int, data: bytes) -> None:
        """Fill the buffer that is not in force; what vouches for it comes last."""
        words = self._words
        at = _BUFFERS[version & 1]
        words[at + _HELD] = 0
        start = self._start(version)
        self._segment.payload[start : start + len(data)] = data
        words[at + _LENGTH] = len(data)
        words[at + _CRC] = zlib.crc32(data)
        words[at + _PUBLISHED] = time.time_ns()
        words[at + _PID] = os.getpid()
        words[at + _HELD] = version

    def _start(self, version: int) -> int:
        """Where the version's buffer begins in the payload."""
        return _CONTROL.size * WORD + (version & 1) * _rounded(self._segment.header.capacity)

    def confirm(self) -> None:
        """Say that the source was asked and the value is current: `age` starts anew."""
        if self.version:
            self._words[_CONFIRMED] = time.monotonic_ns()

    # --- the updater's seat

    def take_seat(self, timeout: float | None = 0) -> bool:
        """Become this configuration's updater; False while another one lives. Held until the thread ends."""
        return self._seat.take(Deadline.after(timeout))

    def leave_seat(self) -> None:
        """Let another updater take over. Does nothing if the calling thread is not the updater."""
        self._seat.leave()

    def updater_alive(self) -> bool:
        """Whether an updater holds the seat. It may be unable to reach its source: see `age`."""
        return self._seat.taken()

    # --- as every shared object

    def statistics(self) -> LockStatistics:
        """The counters of the lock below."""
        return read_statistics(self._segment)

    def _leaving(self) -> Callable[[], None]:
        handles, seat, leave = self._segment.handles, self._seat, super()._leaving()

        def leave_seat_too() -> None:
            if not handles:
                seat.leave()
            leave()

        return leave_seat_too

    def _shut(self, closed: Any) -> None:
        self._words = self._seat = closed
        super()._shut(closed)

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"codec": self._codec_given}

    def _describe(self) -> str:
        return f"version {self.version}" if self.version else "nothing published"


class _Seat:
    """The robust mutex that makes one thread the updater."""

    def __init__(self, segment: Segment) -> None:
        self._name = segment.name
        self._address = segment.seat_address
        self._taken_by: tuple[int, int] | None = None

    def _is_ours(self) -> bool:
        return self._taken_by == (os.getpid(), threading.get_native_id())

    def take(self, deadline: Deadline) -> bool:
        us = os.getpid(), threading.get_native_id()
        while self._taken_by != us:
            status = EINVAL
            if robust.sound(self._address):
                (status,) = robust.tried(self._address)
            if status == EBUSY and deadline.waits:
                status = robust.lock_within(self._address, min(deadline.left(), _SLICE))
            if status in {0, EOWNERDEAD}:
                self._taken_by = us  # before the next call, at which a handler may raise
                if status:
                    robust.consistent(self._address)
            elif status not in {EBUSY, ETIMEDOUT}:
                raise SegmentCorrupt(f"{self._name}: the seat is broken (errno {status}); unlink and create it anew")
            elif deadline.passed():
                return False
        return True

    def leave(self) -> None:
        if self._is_ours():
            can_be_left = robust.can_be_left(self._address)
            self._taken_by = None
            if can_be_left:
                robust.unlock(self._address)

    def taken(self) -> bool:
        return self._is_ours() or robust.lives(self._address)


def _codec(codec: str | Codec) -> Codec:
    if isinstance(codec, str):
        if codec not in CODECS:
            raise ValueError(f'codec must be "json", "bytes" or an object with encode and decode, not {codec!r}')
        return CODECS[codec]
    if not (callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))):
        raise TypeError(f"codec must have encode(value) -> bytes and decode(bytes), and {codec!r} has not")
    return codec


def _rounded(size: int) -> int:
    return -(-size // LINE) * LINE


def _payload_size(capacity: int) -> int:
    return _CONTROL.size * WORD + 2 * _rounded(capacity)
