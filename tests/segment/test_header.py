"""What a segment says of itself, and the reasons to refuse it."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shmlock
from shmlock._kernel import libc, process, shm
from shmlock._segment import header as headers
from shmlock._segment.header import LAYOUT_VERSION, MAGIC, Header, Kind, Plan, check, load
from shmlock._segment.layout import HEADER, MOST_PARTICIPANTS, payload_at
from shmlock._segment.words import WORD
from shmlock.errors import LayoutMismatch, SegmentCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable

PARTICIPANTS, PAYLOAD = 4, 1000
SIZE = payload_at(PARTICIPANTS) * WORD + PAYLOAD
HERE = Header(
    kind=Kind.RWLock,
    size=SIZE,
    participants=PARTICIPANTS,
    payload=PAYLOAD,
    capacity=77,
    option=1,
    fast=True,
)


def image(header: Header = HERE) -> bytearray:
    """The bytes of a header."""
    raw = bytearray(headers.SIZE)
    header.store(memoryview(raw).cast("Q"))
    return raw


def changed(field: str, value: int, *, sealed: bool = True) -> bytes:
    """A header with another value in a field; `sealed`: with the checksum that belongs to it."""
    raw = image()
    words = memoryview(raw).cast("Q")
    words[HEADER[field]] = value
    if sealed:
        words[HEADER["checksum"]] = headers._checksum(words)
    return bytes(raw)


@given(
    st.sampled_from(Kind),
    st.integers(1, 50),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 62),
    st.integers(0, 1 << 62),
    st.booleans(),
)
def test_what_is_stored_is_loaded(
    kind: Kind, participants: int, payload: int, capacity: int, option: int, fast: bool
) -> None:
    """A header comes back as it was stored."""
    size = payload_at(participants) * WORD + payload
    header = Header(kind, size, participants, payload, capacity, option, fast)
    assert load(bytes(image(header)), size=size, name="any") == header


def test_what_is_stored() -> None:
    """The platform stands in it, and when it was made."""
    words = memoryview(image()).cast("Q")
    assert words[HEADER["magic"]] == MAGIC
    assert words[HEADER["version"]] == LAYOUT_VERSION
    assert words[HEADER["word_size"]] == 8
    assert words[HEADER["mutex_size"]] == libc.MUTEX_SIZE
    assert headers._text(words, "libc") == libc.NAME.encode()
    assert words[HEADER["boot"] : HEADER["boot"] + 2].tobytes() == process.boot_id()
    assert words[HEADER["created"]] > 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "version",
            LAYOUT_VERSION + 1,
            f"layout version {LAYOUT_VERSION + 1}, and this shmlock knows {LAYOUT_VERSION}",
        ),
        ("word_size", 4, "word_size is 4 there and 8 here"),
        ("mutex_size", 24, f"mutex_size is 24 there and {libc.MUTEX_SIZE} here"),
        ("libc", int.from_bytes(b"dietlibc", sys.byteorder), f"libc is dietlibc there and {libc.NAME} here"),
        ("boot", 1, "boot is "),
        ("kind", 99, "kind 99"),
    ],
)
def test_other_build(field: str, value: int, said: str) -> None:
    """A segment of another build, machine or boot is a LayoutMismatch that names the field, and both values."""
    with pytest.raises(LayoutMismatch) as refusal:
        load(changed(field, value), size=SIZE, name="site")
    assert said in str(refusal.value)
    assert "site" in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", SIZE + 1),
        ("size", 0),
        ("participants", PARTICIPANTS + 1),
        ("participants", MOST_PARTICIPANTS + 1),
        ("participants", (1 << 64) - 1),
        ("payload", PAYLOAD + 1),
        ("payload", (1 << 64) - 1),
    ],
)
def test_sizes_that_can_not_be(field: str, value: int) -> None:
    """Sizes that contradict each other, or the file's, are no whole segment."""
    with pytest.raises(SegmentCorrupt, match="site"):
        load(changed(field, value), size=SIZE, name="site")


def test_too_many_participants() -> None:
    """More participants than there can be are refused, although the sizes agree with each other."""
    size = payload_at(MOST_PARTICIPANTS + 1) * WORD
    raw = image(Header(Kind.RWLock, size, MOST_PARTICIPANTS + 1, 0, 0, 0, fast=True))
    with pytest.raises(SegmentCorrupt, match="contradict"):
        load(bytes(raw), size=size, name="site")


def test_other_byte_order() -> None:
    """A header of a machine with the other byte order is refused by its magic."""
    raw = image()
    words = memoryview(raw).cast("Q")
    swapped = b"".join(word.to_bytes(8, "big" if sys.byteorder == "little" else "little") for word in words)
    with pytest.raises(SegmentCorrupt, match="not a segment of shmlock"):
        load(swapped, size=SIZE, name="site")


def end_of_checksum() -> int:
    """The first byte that no checksum covers, nor is one."""
    return (HEADER["checksum"] + 1) * WORD


@pytest.mark.parametrize("noise", [0x01, 0x80, 0xFF])
def test_noise_in_each_byte(noise: int) -> None:
    """A header in which any byte is another one is refused as what it is, and with nothing but that."""
    for position in range(end_of_checksum()):
        raw = image()
        raw[position] ^= noise
        with pytest.raises((SegmentCorrupt, LayoutMismatch)):
            load(bytes(raw), size=SIZE, name="site")
    for position in range(end_of_checksum(), headers.SIZE):
        raw = image()
        raw[position] ^= noise
        assert load(bytes(raw), size=SIZE, name="site") == HERE, "what nobody uses may be anything"


@given(st.binary(max_size=2 * headers.SIZE), st.integers(0, 1 << 20))
def test_junk(junk: bytes, size: int) -> None:
    """Whatever bytes there are, of whatever length: SegmentCorrupt, never anything else."""
    with pytest.raises(SegmentCorrupt, match=r"shmlock\.unlink\('site'\)"):
        load(junk, size=size, name="site")


@given(st.lists(st.tuples(st.integers(0, end_of_checksum() - 1), st.integers(1, 255)), min_size=1, max_size=20))
def test_noise_anywhere(noise: list[tuple[int, int]]) -> None:
    """Any noise in a header is refused, unless it cancels itself out."""
    sound = bytes(image())
    raw = bytearray(sound)
    for position, byte in noise:
        raw[position] ^= byte
    if raw != sound:
        with pytest.raises((SegmentCorrupt, LayoutMismatch)):
            load(bytes(raw), size=SIZE, name="site")


@pytest.mark.parametrize("field", [field for field in HEADER if field != "checksum"])
def test_checksum_covers_every_field(field: str) -> None:
    """A field that was changed alone is refused, whatever it is."""
    with pytest.raises((SegmentCorrupt, LayoutMismatch)):
        load(changed(field, 3, sealed=False), size=SIZE, name="site")


@pytest.mark.parametrize("length", [0, 1, 8, headers.SIZE - 1])
def test_too_short(length: int) -> None:
    """Fewer bytes than a header has are no segment, 0 included."""
    with pytest.raises(SegmentCorrupt, match=f"{length} bytes"):
        load(bytes(image()[:length]), size=length, name="site")


PLAN = Plan(Kind.RWLock, PARTICIPANTS, capacity=77, option=1, option_name="statistics", option_values=("slow", "full"))


def plan(**changes: Any) -> Plan:
    """What is asked for, with changes."""
    return Plan(**{**PLAN.__dict__, **changes})


def test_as_asked_for() -> None:
    """What is as it was asked for, or was not asked for, is accepted."""
    check(HERE, PLAN, "site")
    check(HERE, Plan(Kind.RWLock, None), "site")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": Kind.Mutex}, ["is a RWLock, not a Mutex"]),
        (
            {"participants": 5},
            ["max_participants is 4", "5 was asked for", "shmlock.unlink('site')", "leave the argument out"],
        ),
        ({"capacity": 78}, ["capacity is 77", "78 was asked for"]),
        ({"option": 0}, ["statistics is 'full'", "'slow' was asked for"]),
        ({"option": 7}, ["statistics is 'full'", "7 was asked for"]),
    ],
)
def test_not_as_asked_for(changes: dict[str, Any], said: list[str]) -> None:
    """What differs from what was asked for is named in the words of the caller, with both values and the remedy."""
    with pytest.raises(LayoutMismatch) as refusal:
        check(HERE, plan(**changes), "site")
    for part in ["site", *said]:
        assert part in str(refusal.value)


# --- the same, on real objects


def write(name: str, content: bytes) -> None:
    """Put something under the name."""
    Path(shm.path(f"shmlock.{name}")).write_bytes(content)


def whole(name: str) -> bytes:
    """The bytes of a sound segment of this name, which is gone afterwards."""
    shmlock.RWLock(name, max_participants=2).unlink()
    lock = shmlock.RWLock(name, max_participants=2)
    content = Path(shm.path(f"shmlock.{name}")).read_bytes()
    lock.unlink()
    return content


CUTS: list[Callable[[bytes], bytes]] = [
    lambda _: b"",
    lambda _: b"\0",
    lambda _: b"#!/bin/sh\necho foreign\n",
    lambda _: bytes(100_000),
    lambda _: os.urandom(4096),
    lambda content: content[:10],
    lambda content: content[: headers.SIZE - 1],
    lambda content: content[: headers.SIZE],
    lambda content: content[: len(content) // 2],
    lambda content: content[:-1],
    lambda content: content + b"\0",
    lambda content: bytes(8) + content[8:],
]


@pytest.mark.parametrize("cut", CUTS, ids=range(len(CUTS)))
@pytest.mark.parametrize("create", [True, False])
def test_junk_under_our_name(name: str, cut: Callable[[bytes], bytes], create: bool) -> None:
    """0 bytes, foreign bytes, half a segment: SegmentCorrupt; `unlink` removes it, and the name is good again."""
    write(name, cut(whole(name)))
    with pytest.raises(SegmentCorrupt, match=name):
        shmlock.RWLock(name, create=create)
    assert shmlock.unlink(name) is True
    with shmlock.RWLock(name) as lock, lock.writer:
        pass


def make_link(path: Path) -> None:
    """Another name for something that is there."""
    path.symlink_to("/etc/passwd")


def make_dangling_link(path: Path) -> None:
    """A name for nothing."""
    path.symlink_to("/nowhere/at/all")


def make_socket(path: Path) -> None:
    """Where a program listens, or has listened."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_link, make_dangling_link, make_socket, os.mkfifo])
@pytest.mark.parametrize("create", [True, False])
def test_no_file_under_our_name(name: str, make: Callable[[Path], None], create: bool) -> None:
    """What is no file at all is SegmentCorrupt as well, at once, and `unlink` removes it, not what it points to."""
    path = Path(shm.path(f"shmlock.{name}"))
    make(path)
    with pytest.raises(SegmentCorrupt, match=name):
        shmlock.RWLock(name, create=create)
    assert shmlock.unlink(name) is True
    assert Path("/etc/passwd").exists()
    with shmlock.RWLock(name) as lock, lock.reader:
        pass


def test_directory_under_our_name(name: str) -> None:
    """A directory is SegmentCorrupt; it may hold anything, so removing it is left to its owner, who is told."""
    path = Path(shm.path(f"shmlock.{name}"))
    path.mkdir()
    try:
        with pytest.raises(SegmentCorrupt, match="directory"):
            shmlock.RWLock(name)
        with pytest.raises(OSError, match=name):
            shmlock.unlink(name)
    finally:
        path.rmdir()


def test_another_layout_under_our_name(name: str) -> None:
    """A segment of another layout version is told as such, not as junk; `unlink` removes that, too."""
    content = bytearray(whole(name))
    words = memoryview(content).cast("Q")
    words[HEADER["version"]] = LAYOUT_VERSION + 1
    words.release()
    write(name, bytes(content))
    with pytest.raises(LayoutMismatch, match=f"layout version {LAYOUT_VERSION + 1}"):
        shmlock.RWLock(name)
    assert shmlock.unlink(name) is True
