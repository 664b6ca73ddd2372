"""Everything, in surroundings that somebody else has made: all objects, end to end.

What each room does in them is tested with the room: a full /dev/shm in `kernel/test_shm.py`, other owners and modes
in `segment/test_segment.py`, mutexes in `kernel/test_robust.py`, the clock in `test_clock.py`.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._kernel import shm
from tests.conftest import HANG
from tests.hostile import everything
from tests.order import until, waiting
from tests.surroundings import in_namespace, needs_root, refuse_membarrier, with_private_mount

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child, Peer, Start

# --- pid namespaces


def holding(name: str, mode: str) -> Callable[[Peer], None]:
    """What a process does that takes W, or asks for it, and says its pid."""

    def run(peer: Peer) -> None:
        lock = shmlock.RWLock(name, create=False)
        peer.say(os.getpid())
        peer.hear()
        peer.say(getattr(lock, mode).acquire(timeout=HANG))
        peer.hear()

    return run


def elsewhere(start: Start, name: str, mode: str) -> tuple[Child, int]:
    """A process that is number 1 of a pid namespace of its own, about to take the lock; and its pid here."""
    child, pid = in_namespace(start, holding(name, mode))
    assert child.hear() == 1
    child.say("take it")
    return child, pid


@pytest.mark.parametrize("mode", ["reader", "writer"])
def test_a_holder_in_another_pid_namespace(name: str, start: Start, mode: str) -> None:
    """There is no process of its number here, and it lives: nothing is taken from it. When it dies, that is seen."""
    lock = shmlock.RWLock(name)
    child, pid = elsewhere(start, name, mode)
    assert child.hear() is True
    assert not lock.writer.acquire(timeout=0.1)
    assert lock.reap() == 0
    os.kill(pid, signal.SIGKILL)
    assert lock.writer.acquire(timeout=HANG)
    assert lock.writer.owner_died == (mode == "writer")
    lock.writer.release()


def test_two_of_one_number(name: str, start: Start) -> None:
    """Processes of equal pids and thread ids, of two namespaces, exclude each other; one's death is not the other's."""
    lock = shmlock.RWLock(name)
    first, pid = elsewhere(start, name, "writer")
    assert first.hear() is True
    second, other = elsewhere(start, name, "writer")
    until(waiting(lock, 1))
    assert not lock.reader.acquire(timeout=0.1)
    os.kill(pid, signal.SIGKILL)
    assert second.hear() is True
    assert not lock.reader.acquire(timeout=0.1)
    assert lock.statistics().evictions == 1
    os.kill(other, signal.SIGKILL)
    assert lock.reader.acquire(timeout=HANG)
    lock.reader.release()


# --- a container's filter


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS], ids=["EPERM", "ENOSYS"])
def test_all_without_membarrier(name: str, start: Start, code: int) -> None:
    """Where the system call is refused all objects do all they do, in the slow way, also for processes with it."""

    def use(peer: Peer) -> None:
        refuse_membarrier(code)
        objects = everything.made(name)
        peer.say([each._segment.header.fast for each in objects.values()])
        everything.used(objects)
        peer.say("used")
        peer.hear()

    child = start(use)
    assert child.hear() == [False] * len(everything.KINDS)
    assert child.hear() == "used"
    objects = everything.made(name, create=False)
    everything.used(objects)
    child.kill()
    everything.used(objects)
    everything.unlinked(objects)


@pytest.mark.parametrize("kind", everything.KINDS)
def test_none_of_the_fast_without_membarrier(name: str, start: Start, kind: str) -> None:
    """An object that was made with it is refused to who lacks it, with the reason; those that have it go on."""
    made = getattr(shmlock, kind)(name)
    if not made._segment.header.fast:
        pytest.skip("no membarrier here")

    def attach(peer: Peer) -> None:
        refuse_membarrier(errno.EPERM)
        with pytest.raises(shmlock.UnsupportedPlatform, match="membarrier"):
            getattr(shmlock, kind)(name)
        peer.say("refused")

    assert start(attach).hear() == "refused"
    assert made.statistics().evictions == 0


# --- a full /dev/shm


@needs_root
@pytest.mark.parametrize("kind", everything.KINDS)
def test_full_for_each(name: str, start: Start, kind: str) -> None:
    """Where there is no room for it, creating says so, names the object, and leaves nothing."""

    def create(peer: Peer) -> None:
        with pytest.raises(OSError, match=name) as caught:
            getattr(shmlock, kind)(name)
        peer.say((caught.value.errno, shm.names()))

    assert with_private_mount(start, shm.ROOT, "size=8k", create).hear() == (errno.ENOSPC, [])


@needs_root
def test_full_later(name: str, start: Start) -> None:
    """All that was made while there was room goes on when there is none; a writer that is killed then is recovered."""

    def fill(peer: Peer) -> None:
        objects = everything.made(name, max_participants=4)
        with suppress(OSError), Path(shm.path("filler")).open("wb") as filler:
            while True:
                filler.write(bytes(4096))
        everything.used(objects)
        lock = objects["RWLock"]
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            lock.writer.acquire()
            os.write(tell, b"x")
            signal.pause()
        os.read(told, 1)
        peer.say(lock.writer.acquire(timeout=0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        peer.say((lock.writer.acquire(timeout=HANG), lock.writer.owner_died))
        lock.writer.release()
        everything.used(objects)
        peer.say(os.statvfs(shm.ROOT).f_bfree)

    child = with_private_mount(start, shm.ROOT, "size=8m", fill)
    assert child.hear() is False
    assert child.hear() == (True, True)
    assert child.hear() == 0


# --- names that go


def test_all_names_are_removed_under_them(name: str, start: Start) -> None:
    """As systemd's RemoveIPC does at a logout: those that have the objects go on, wait for each other, and say it.

    Also when one of them is killed afterwards; and what is made anew is another one.
    """
    objects = everything.made(name)
    lock = objects["RWLock"]

    def work(peer: Peer) -> None:
        everything.used(objects)
        assert lock.writer.acquire()
        peer.say("in")
        peer.hear()

    child = start(work)
    assert child.hear() == "in"
    for entry in shm.names():
        if name in entry:
            shm.unlink(entry)
    assert all(each.is_stale() for each in objects.values())
    assert "its name is gone" in repr(lock)
    assert not lock.writer.acquire(timeout=0.05)  # there is no semaphore to sleep on
    anew = everything.made(name)
    assert anew["RWLock"].writer.acquire(blocking=False)
    anew["RWLock"].writer.release()
    child.kill()
    assert lock.writer.acquire(timeout=HANG)
    lock.writer.release()
    everything.used(objects)
    for each in objects.values():
        each.unlink()  # not theirs any more
    assert not any(each.is_stale() for each in anew.values())
    everything.unlinked(anew)


# --- umask


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
def test_umask(name: str, start: Start, umask: int) -> None:
    """Whatever it is, modes are as asked for, and all works, waiting included: the semaphores as well."""

    def use(peer: Peer) -> None:
        os.umask(umask)
        objects = everything.made(name, mode=0o640)
        everything.used(objects)
        objects["RWLock"].writer.acquire()
        peer.say("in")
        peer.hear()
        objects["RWLock"].writer.release()
        peer.hear()

    child = start(use)
    assert child.hear() == "in"
    objects = everything.made(name, create=False)

    def wait(peer: Peer) -> None:
        os.umask(umask)
        peer.say(objects["RWLock"].writer.acquire(timeout=HANG))
        objects["RWLock"].writer.release()

    waiter = start(wait)
    until(waiting(objects["RWLock"], 1))
    child.say("leave")
    assert waiter.hear() is True
    modes = {Path(shm.path(entry)).stat().st_mode & 0o777 for entry in shm.names() if name in entry}
    assert modes == {0o640}
    everything.unlinked(objects)


# --- privileges that are given up


@needs_root
def test_root_that_becomes_nobody(name: str, start: Start) -> None:
    """What root made for itself it keeps when it gives up its privileges; what it made for nobody, nobody can open.

    Else opening is a PermissionError that names the object and the way out.
    """
    nobody = 65534

    def drop(peer: Peer) -> None:
        kept = everything.made(f"{name}.kept")
        given = everything.made(f"{name}.given", owner=(nobody, nobody))
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
        everything.used(kept)
        everything.used(given)
        peer.say("used")
        pid = os.fork()  # which has nothing mapped of what it opens anew
        if not pid:
            everything.used(everything.made(f"{name}.given", create=False, owner=(nobody, nobody)))
            return
        peer.say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def attach(peer: Peer) -> None:
        os.setgroups([])
        os.setgid(nobody)
        os.setuid(nobody)
        for kind in everything.KINDS:
            with pytest.raises(PermissionError, match="owner=") as caught:
                getattr(shmlock, kind)(f"{name}.kept.{kind}", create=False)
            assert f"{name}.kept.{kind}" in str(caught.value)
        everything.used(everything.made(f"{name}.given", create=False))
        peer.say("used")

    child = start(drop)
    assert child.hear() == "used"
    assert child.hear() == 0
    assert start(attach).hear() == "used"
    for kind in everything.KINDS:
        shmlock.unlink(f"{name}.kept.{kind}")
        shmlock.unlink(f"{name}.given.{kind}")


# --- crowds


def test_a_hundred_processes_start_at_once(name: str, start: Start) -> None:
    """Each creates or attaches, uses the lock at once, and ends: no error, one segment, nobody lost, nothing left."""
    read, write = os.pipe()

    def come_and_go(peer: Peer) -> None:
        os.close(write)
        os.read(read, 1)  # which comes back for all at once, when the parent closes the other end
        lock = shmlock.RWLock(name)
        with lock.reader:
            pass
        with lock.writer:
            pass
        peer.say(lock._segment.identity)
        lock.close()

    children = [start(come_and_go) for _ in range(100)]
    os.close(write)
    os.close(read)
    assert {child.hear(4 * HANG) for child in children} == {shm.identity(f"shmlock.{name}")}
    assert [child.join() for child in children] == [0] * 100
    seen = shmlock.RWLock(name, create=False).statistics()
    assert (seen.write.locks, seen.write.unlocks, seen.evictions) == (100, 100, 0)


# --- signals


def test_signals_every_five_milliseconds(name: str, start: Start) -> None:
    """With a handler that runs all the time everything goes right: uses, and waits that end in time and not before."""

    def work(peer: Peer) -> None:
        ran: list[int] = []
        signal.signal(signal.SIGALRM, lambda signum, _: ran.append(signum))
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        objects = everything.made(name)
        peer.say("ready")
        peer.hear()
        for _ in range(20):
            everything.used(objects)
        peer.say("together")
        peer.hear()
        count(objects)
        waits: dict[str, Callable[[float], object]] = {
            "reader": lambda left: objects["RWLock"].reader.acquire(timeout=left),
            "writer": lambda left: objects["RWLock"].writer.acquire(timeout=left),
            "seeker": lambda left: objects["SeekLock"].seeker.acquire(timeout=left),
            "mutex": lambda left: objects["Mutex"].acquire(timeout=left),
            "seat": lambda left: objects["SharedConfig"].take_seat(timeout=left),
            "config": lambda left: objects["SharedConfig"].wait(timeout=left),
        }
        peer.say("hold them")
        peer.hear()
        for what, wait in waits.items():
            began = time.monotonic()
            peer.say((what, bool(wait(0.05)), time.monotonic() - began >= 0.05))
        peer.say(len(ran) > 0)

    counted = memoryview(mmap.mmap(-1, 24)).cast("Q")

    def count(objects: dict[str, Any]) -> None:
        for number, face in enumerate((objects["RWLock"].writer, objects["SeekLock"].writer, objects["Mutex"])):
            for _ in range(100):
                with face:
                    counted[number] += 1

    objects: dict[str, Any] = everything.made(name)
    child = start(work)
    assert child.hear() == "ready"
    child.say("alone")
    assert child.hear(4 * HANG) == "together"
    child.say("count")
    count(objects)
    assert child.hear(4 * HANG) == "hold them"
    assert counted.tolist() == [200] * 3
    with objects["RWLock"].writer, objects["SeekLock"].writer, objects["Mutex"]:
        assert objects["SharedConfig"].take_seat()
        child.say("wait")
        for what in ("reader", "writer", "seeker", "mutex", "seat", "config"):
            assert child.hear() == (what, False, True)
    assert child.hear() is True
    assert child.join() == 0
    everything.unlinked(objects)
