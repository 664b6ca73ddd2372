"""Fences on other processes' CPUs, and what is left where the system call is refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._kernel import membarrier
from shmlock._kernel.membarrier import Fences, fence
from shmlock._segment.layout import GATE, GATE_OPEN, GATE_SLOW
from tests.surroundings import refuse_membarrier

if TYPE_CHECKING:
    from tests.conftest import Peer, Start

offered = pytest.mark.skipif(
    membarrier.available() is not None, reason=f"membarrier is refused here: {membarrier.available()}"
)


@offered
def test_works_here(start: Start) -> None:
    """A process can register, again and again, and fence; a forked child is registered already and can, too."""
    for _ in range(3):
        membarrier.register()
        fence()
    assert membarrier.available() is None

    def fence_at_once(peer: Peer) -> None:
        fence()
        peer.say(membarrier.available())

    assert start(fence_at_once).hear() is None


@offered
def test_fence_of_ones_own() -> None:
    """The cheaper fence, of the calling thread alone, is to be had on every machine."""
    membarrier.fence_here()
    with pytest.MonkeyPatch.context() as patch:
        fenced: list[int] = []
        patch.setattr(membarrier, "MACHINE", "aarch64")
        patch.setattr(membarrier, "fence", lambda: fenced.append(1))
        membarrier.fence_here()
        assert fenced == [1]


def test_obligations(monkeypatch: pytest.MonkeyPatch) -> None:
    """On x86-64 one fence is needed, where order is weak all three, and none at all in slow mode."""

    def due(*, fast: bool) -> list[bool]:
        fences = Fences(fast=fast)
        each = [fences.after_closing, fences.before_writing, fences.before_opening]
        assert all(one in {None, fence} for one in each)
        return [one is not None for one in each]

    monkeypatch.setattr(membarrier, "MACHINE", "x86_64")
    assert due(fast=True) == [True, False, False]
    assert due(fast=False) == [False, False, False]
    monkeypatch.setattr(membarrier, "MACHINE", "aarch64")
    assert due(fast=True) == [True, True, True]
    assert due(fast=False) == [False, False, False]


def test_kernel_that_does_not_offer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that knows membarrier but not the command (before 4.16) is told from one that refuses."""
    monkeypatch.setattr(membarrier, "_syscall", lambda *_: 1)
    with pytest.raises(OSError, match="GLOBAL_EXPEDITED"):
        membarrier.register()
    assert "GLOBAL_EXPEDITED" in (membarrier.available() or "")


# --- where a container's filter refuses it

REFUSALS = pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])


@REFUSALS
def test_refused(start: Start, code: int) -> None:
    """Where a filter refuses the call, registering and fencing raise, and `available` gives the reason."""

    def ask(peer: Peer) -> None:
        refuse_membarrier(code)
        codes = []
        for call in (membarrier.register, fence):
            try:
                call()
            except OSError as error:
                codes.append(error.errno)
        peer.say((codes, membarrier.available()))

    assert start(ask).hear() == ([code, code], os.strerror(code))


@REFUSALS
def test_segment_created_there_is_slow(start: Start, name: str, code: int) -> None:
    """A lock that is created without membarrier works between processes, its gate closed for good.

    One process below runs without membarrier, the other with it.
    """

    def use(peer: Peer) -> None:
        refuse_membarrier(code)
        lock = shmlock.RWLock(name)
        peer.say((lock._segment.header.fast, lock._words[GATE]))
        peer.hear()
        with lock.reader, lock.reader:
            peer.say("it reads")
            peer.hear()
        peer.say(lock.writer.acquire(timeout=30))
        peer.hear()
        lock.writer.release()
        peer.say((lock.reader.acquire(blocking=False), lock._words[GATE]))
        peer.hear()
        lock.reader.release()
        peer.say("it has left")

    child = start(use)
    assert child.hear() == (False, GATE_SLOW)
    lock = shmlock.RWLock(name, create=False)
    assert lock._segment.header.fast is False
    child.say("read")

    assert child.hear() == "it reads"
    assert lock.reader.acquire(blocking=False)
    lock.reader.release()
    assert not lock.writer.acquire(blocking=False)
    child.say("leave, and write")

    assert child.hear() is True
    assert not lock.reader.acquire(blocking=False)
    assert not lock.writer.acquire(blocking=False)
    child.say("leave, and read")

    assert child.hear() == (True, GATE_SLOW)
    assert lock.reader.acquire(blocking=False)
    lock.reader.release()
    assert not lock.writer.acquire(blocking=False)
    child.say("leave")

    assert child.hear() == "it has left"
    assert lock.writer.acquire(blocking=False)
    lock.writer.release()
    assert lock._words[GATE] == GATE_SLOW


@offered
@REFUSALS
def test_fast_segment_is_refused_there(start: Start, name: str, code: int) -> None:
    """Who has no membarrier can't attach to a segment whose readers rely on it; the error names it and the reason."""
    lock = shmlock.RWLock(name)
    assert lock._segment.header.fast is True
    assert lock._words[GATE] == GATE_OPEN

    def attach(peer: Peer) -> None:
        refuse_membarrier(code)
        try:
            shmlock.RWLock(name)
        except shmlock.UnsupportedPlatform as error:
            peer.say(str(error))

    said = start(attach).hear()
    assert "membarrier" in said
    assert name in said
    assert os.strerror(code) in said
    with lock.writer:
        pass


_GET_REGISTRATIONS, _REGISTERED = 1 << 9, 1 << 2

PROGRAM = """
import sys
from shmlock._kernel import membarrier
import shmlock
before = membarrier._call(1 << 9)
lock = shmlock.RWLock(sys.argv[1])
print(before & 1 << 2, membarrier._call(1 << 9) & 1 << 2)
"""


@offered
def test_registered_by_attaching(start: Start, name: str) -> None:
    """A program is not registered when it starts, and is when it has attached; a forked child inherits it."""
    try:
        membarrier._call(_GET_REGISTRATIONS)
    except OSError:
        pytest.skip("this kernel does not tell (before 6.3)")
    lock = shmlock.RWLock(name)
    ran = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, name], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == f"0 {_REGISTERED}\n"
    assert membarrier._call(_GET_REGISTRATIONS) & _REGISTERED
    child = start(lambda peer: peer.say(membarrier._call(_GET_REGISTRATIONS) & _REGISTERED))
    assert child.hear() == _REGISTERED
    with lock.reader:
        pass
