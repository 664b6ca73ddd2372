"""The header: what a segment says of itself, and the reasons to refuse it."""

from __future__ import annotations

import enum
import sys
import time
import zlib
from dataclasses import dataclass
from typing import Final

from shmlock._kernel import libc, process
from shmlock._segment.layout import HEADER, MOST_PARTICIPANTS, payload_at
from shmlock._segment.words import WORD
from shmlock.errors import LayoutMismatch, SegmentCorrupt

LAYOUT_VERSION: Final = 1
SIZE: Final = HEADER.size * WORD  # bytes
# Reads backwards on a machine of the other byte order, and so refuses there.
MAGIC: Final = int.from_bytes(b"SHMLOCK\x01", "little")


class Kind(enum.IntEnum):
    """What a segment holds."""

    RWLock = 1
    SeekLock = 2
    Mutex = 3
    SharedConfig = 4
    RTMetrics = 5
    TimerQueue = 6


@dataclass(frozen=True)
class Plan:
    """What a segment is to be when it is created, or must be when it is there: None means "as it is"."""

    kind: Kind
    participants: int | None
    capacity: int | None = None
    option: int | None = None
    option_name: str = "option"
    option_values: tuple[str, ...] = ()  # what the numbers mean, for messages


@dataclass(frozen=True)
class Header:
    """The fields of a header, checked."""

    kind: Kind
    size: int  # bytes, of the whole segment
    participants: int
    payload: int  # bytes
    capacity: int  # in the kind's own unit
    option: int  # the kind's own
    fast: bool

    def store(self, words: memoryview[int]) -> None:
        """Write the header of a segment that has no name yet."""
        fields: dict[str, int | bytes] = {
            "magic": MAGIC,
            "version": LAYOUT_VERSION,
            "kind": self.kind,
            "size": self.size,
            "participants": self.participants,
            "payload": self.payload,
            "capacity": self.capacity,
            "option": self.option,
            "word_size": WORD,
            "mutex_size": libc.MUTEX_SIZE,
            "libc": libc.NAME.encode(),
            "fast": self.fast,
            "boot": process.boot_id(),
            "created": time.time_ns(),
        }
        for name, value in fields.items():
            at = HEADER[name]
            if isinstance(value, bytes):
                words[at] = int.from_bytes(value[:8], sys.byteorder)
                words[at + 1] = int.from_bytes(value[8:16], sys.byteorder)
            else:
                words[at] = value
        words[HEADER["checksum"]] = _checksum(words)


def _checksum(words: memoryview[int]) -> int:
    """Over all of the header before the checksum, so that noise is told from a header."""
    return zlib.crc32(words[: HEADER["checksum"]].tobytes())


def _text(words: memoryview[int], name: str) -> bytes:
    return words[HEADER[name] : HEADER[name] + 2].tobytes().rstrip(b"\0")


def load(raw: bytes, *, size: int, name: str) -> Header:
    """Check the header that stands in `raw`, of a file of `size` bytes.

    Raises SegmentCorrupt for what is no whole segment, LayoutMismatch for one of another build.
    """
    remedy = f"shmlock.unlink({name!r}) removes it"
    if size < SIZE or len(raw) < SIZE:
        raise SegmentCorrupt(f"{name}: {size} bytes are no segment of shmlock; {remedy}")
    words = memoryview(raw).cast("Q")
    if words[HEADER["magic"]] != MAGIC:
        raise SegmentCorrupt(f"{name}: not a segment of shmlock; {remedy}")
    if words[HEADER["version"]] != LAYOUT_VERSION:
        raise LayoutMismatch(
            f"{name}: layout version {words[HEADER['version']]}, and this shmlock knows {LAYOUT_VERSION}: "
            f"stop all that use it, then {remedy}"
        )
    if words[HEADER["checksum"]] != _checksum(words):
        raise SegmentCorrupt(f"{name}: the header's checksum is wrong; {remedy}")
    _check_platform(words, name, remedy)
    header = Header(
        kind=_kind(words[HEADER["kind"]], name),
        size=words[HEADER["size"]],
        participants=words[HEADER["participants"]],
        payload=words[HEADER["payload"]],
        capacity=words[HEADER["capacity"]],
        option=words[HEADER["option"]],
        fast=bool(words[HEADER["fast"]]),
    )
    if header.size != size:
        raise SegmentCorrupt(f"{name}: {size} bytes of {header.size} are there; {remedy}")
    if header.participants > MOST_PARTICIPANTS or (payload_at(header.participants) * WORD + header.payload) > size:
        raise SegmentCorrupt(f"{name}: the sizes in the header contradict each other; {remedy}")
    return header


def _check_platform(words: memoryview[int], name: str, remedy: str) -> None:
    """Words, mutexes and clocks must mean the same here as where the segment was made."""
    for field, here in (("word_size", WORD), ("mutex_size", libc.MUTEX_SIZE)):
        if words[HEADER[field]] != here:
            raise LayoutMismatch(f"{name}: {field} is {words[HEADER[field]]} there and {here} here; {remedy}")
    for field, mine in (("libc", libc.NAME.encode()), ("boot", process.boot_id().rstrip(b"\0"))):
        theirs = _text(words, field)
        if theirs != mine:
            raise LayoutMismatch(f"{name}: {field} is {_show(theirs)} there and {_show(mine)} here; {remedy}")


def _kind(value: int, name: str) -> Kind:
    try:
        return Kind(value)
    except ValueError:
        raise LayoutMismatch(f"{name}: kind {value} is not known to this shmlock") from None


def _show(value: bytes) -> str:
    return value.decode() if value.isalpha() else value.hex()


def check(header: Header, plan: Plan, name: str) -> None:
    """Raise LayoutMismatch, saying what differs, if the segment is not what was asked for."""
    if header.kind != plan.kind:
        raise LayoutMismatch(f"{name}: is a {header.kind.name}, not a {plan.kind.name}")
    for field, word in (
        ("participants", "max_participants"),
        ("capacity", "capacity"),
        ("option", plan.option_name),
    ):
        asked = getattr(plan, field)
        there = getattr(header, field)
        if asked is not None and asked != there:
            if field == "option":
                asked, there = (_meaning(plan.option_values, value) for value in (asked, there))
            raise LayoutMismatch(
                f"{name}: {word} is {there} in the segment and {asked} was asked for; it was fixed at creation, "
                f"so stop all that use it and shmlock.unlink({name!r}), or leave the argument out to attach as it is"
            )


def _meaning(values: tuple[str, ...], value: int) -> str:
    return repr(values[value]) if value < len(values) else str(value)
