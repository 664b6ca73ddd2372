"""To sleep and to be woken."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import posix_ipc
import psutil
import pytest

from shmlock._kernel import parker, shm
from shmlock._kernel.parker import Napper, Parker
from tests.order import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Peer, Start

HANG = 30.0
MOMENT = 0.05  # seconds: long enough to be told from "at once", short enough to wait for
US = os.geteuid(), os.getegid()


@pytest.fixture(params=[True, False], ids=["clockwait", "posix_ipc"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sem_clockwait` (glibc from 2.30 on), and without it."""
    if request.param and not parker._HAS_CLOCKWAIT:
        pytest.skip("this C library has no sem_clockwait")
    monkeypatch.setattr(parker, "_HAS_CLOCKWAIT", request.param)


@pytest.fixture
def semaphore(name: str) -> str:
    """The name of a slot's semaphore, which goes with the segment's."""
    return f"shmlock.{name}.0"


@pytest.fixture
def bed(semaphore: str) -> Parker:
    """Where to sleep."""
    return Parker(semaphore, mode=0o600, owner=US)


def post(semaphore: str) -> None:
    """Wake whoever sleeps there."""
    send = parker.opened(semaphore)
    assert send is not None
    send()


def file_of(semaphore: str) -> Path:
    """What lies in /dev/shm for it."""
    return Path(shm.path(f"sem.{semaphore}"))


@pytest.mark.usefixtures("either")
def test_post_before_wait(bed: Parker, semaphore: str) -> None:
    """A post that comes before the wait is not lost: the wait is over at once. It counts once."""
    post(semaphore)
    assert bed.wait(HANG) is True
    assert bed.wait(0) is False


@pytest.mark.usefixtures("either")
def test_left_over_posts(bed: Parker, semaphore: str) -> None:
    """Posts too many end as many later waits, and do no other harm."""
    for _ in range(3):
        post(semaphore)
    assert [bed.wait(0) for _ in range(5)] == [True, True, True, False, False]


@pytest.mark.usefixtures("either")
def test_wait_in_vain(bed: Parker) -> None:
    """A wait that nobody ends lasts as long as it was to, by the monotonic clock."""
    began = time.monotonic()
    assert bed.wait(MOMENT) is False
    # posix_ipc goes by the time of day, whose seconds are no longer or shorter by more than a per mille.
    assert time.monotonic() - began >= MOMENT * 0.99


def test_goes_by_the_monotonic_clock(bed: Parker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library can, the end is a moment of CLOCK_MONOTONIC: a step of the time of day changes nothing."""
    given: list[tuple[int, int]] = []
    if not bed._address:
        pytest.skip("this C library has no sem_clockwait: waits end at a time of day, and are kept short")

    def clockwait(_address: int, clock: int, until: Any) -> int:
        moment = until._obj  # what ctypes.byref keeps
        given.append((clock, moment.seconds * 1_000_000_000 + moment.nanoseconds))
        return 0

    monkeypatch.setattr(parker, "_sem_clockwait", clockwait)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before = time.monotonic_ns()
    assert bed.wait(1.5) is True
    after = time.monotonic_ns()
    [(clock, moment)] = given
    assert clock == time.CLOCK_MONOTONIC
    assert before + 1_500_000_000 <= moment <= after + 1_500_000_000


@pytest.mark.usefixtures("either")
def test_woken_by_another_process(semaphore: str, start: Start) -> None:
    """A sleeper is woken by a process that knows nothing but the name."""

    def sleep(peer: Peer) -> None:
        bed = Parker(semaphore, mode=0o600, owner=US)
        peer.say("ready")
        peer.say(bed.wait(HANG))

    child = start(sleep)
    assert child.hear() == "ready"
    post(semaphore)
    assert child.hear() is True


@pytest.fixture
def long_turns() -> Iterator[None]:
    """Threads are not switched unless one gives the interpreter away."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(HANG)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("long_turns", "either")
def test_other_threads_run_meanwhile(bed: Parker, semaphore: str) -> None:
    """Who sleeps gives the interpreter away: he may be woken by a thread of this process."""
    go = threading.Event()

    def wake() -> None:
        go.wait()
        post(semaphore)

    thread = threading.Thread(target=wake)
    thread.start()
    go.set()
    assert bed.wait(HANG) is True
    thread.join()


@pytest.mark.usefixtures("either")
def test_signal_ends_a_wait_early(semaphore: str, start: Start) -> None:
    """A signal ends the wait before its time, with False and without an error, after its handler has run."""

    def sleep(peer: Peer) -> None:
        ran = []
        signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
        bed = Parker(semaphore, mode=0o600, owner=US)
        signal.setitimer(signal.ITIMER_REAL, MOMENT, MOMENT)
        began = time.monotonic()
        posted = bed.wait(HANG)
        peer.say((posted, len(ran) > 0, time.monotonic() - began < HANG))

    assert start(sleep).hear() == (False, True, True)


@pytest.mark.usefixtures("either")
def test_signal_takes_no_post(semaphore: str, start: Start) -> None:
    """Under a hail of signals every post is received, exactly once."""
    posts = 200

    def sleep(peer: Peer) -> None:
        signal.signal(signal.SIGALRM, lambda *_: None)
        bed = Parker(semaphore, mode=0o600, owner=US)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        peer.say("ready")
        received = 0
        while received < posts:
            received += bed.wait(HANG)
        signal.setitimer(signal.ITIMER_REAL, 0)
        peer.say((received, bed.wait(0)))

    child = start(sleep)
    assert child.hear() == "ready"
    for _ in range(posts):
        post(semaphore)
    assert child.hear() == (posts, False)


@pytest.mark.parametrize("uid", sorted({os.geteuid(), 12345}))
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_exact_mode(semaphore: str, start: Start, mode: int, umask: int, uid: int) -> None:
    """A new semaphore has the mode that was asked for, whatever the umask, and whoever makes it."""
    if os.geteuid() not in {0, uid}:
        pytest.skip("only root can become another user")

    def make(_: Peer) -> None:
        os.setuid(uid)
        os.umask(umask)
        Parker(semaphore, mode=mode, owner=(uid, os.getgid()))

    assert start(make).join() == 0
    assert stat.S_IMODE(file_of(semaphore).stat().st_mode) == mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_exact_owner(semaphore: str) -> None:
    """A new semaphore belongs to the user and group that were asked for."""
    Parker(semaphore, mode=0o640, owner=(12345, 23456))
    status = file_of(semaphore).stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o640)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can give a file away")
def test_owner_that_can_not_be(semaphore: str) -> None:
    """Who may not give a file away makes the semaphore all the same."""
    Parker(semaphore, mode=0o600, owner=(0, 0))
    assert file_of(semaphore).stat().st_uid == os.geteuid()


@pytest.mark.usefixtures("either")
def test_there_already(bed: Parker, semaphore: str) -> None:
    """The slot's next owner goes on with the semaphore that is there, as it is."""
    post(semaphore)
    inode = file_of(semaphore).stat().st_ino
    again = Parker(semaphore, mode=0o666, owner=US)
    assert again.wait(0) is True
    assert bed.wait(0) is False
    assert file_of(semaphore).stat().st_ino == inode
    assert stat.S_IMODE(file_of(semaphore).stat().st_mode) == 0o600


def test_nobody_ever_slept_there(semaphore: str) -> None:
    """There is nothing to post where nobody slept, and asking makes nothing."""
    assert parker.opened(semaphore) is None
    assert not file_of(semaphore).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.usefixtures("bed")
def test_not_ours_to_post(semaphore: str, start: Start) -> None:
    """A semaphore that another user may not open is as none."""

    def try_to_post(peer: Peer) -> None:
        os.setuid(12345)
        peer.say(parker.opened(semaphore) is None)

    assert start(try_to_post).hear() is True


def test_more_posts_than_it_can_count(semaphore: str) -> None:
    """A post that the semaphore can't count is dropped without an error."""
    posix_ipc.Semaphore(f"/{semaphore}", posix_ipc.O_CREX, mode=0o600, initial_value=posix_ipc.SEMAPHORE_VALUE_MAX)
    post(semaphore)


def test_unlinked_meanwhile(bed: Parker, semaphore: str) -> None:
    """Sleeper and waker that have it open go on when the name is gone; new wakers find nothing."""
    send = parker.opened(semaphore)
    assert send is not None
    parker.unlink(semaphore)
    send()
    assert bed.wait(0) is True
    assert parker.opened(semaphore) is None
    parker.unlink(semaphore)  # again: no error


def test_killed_while_making_one(semaphore: str, start: Start) -> None:
    """At whatever moment: no file is left but the semaphores that were made, each of them whole."""

    def unnamed() -> set[str]:
        """What sem_open(3) leaves when it is cut off."""
        return {found for found in shm.names() if re.fullmatch(r"sem\.\w{6}", found)}

    def make(peer: Peer) -> None:
        peer.say("begins")
        for number in range(100_000):
            Parker(f"{semaphore}.{number}", mode=0o600, owner=US)

    before = unnamed()
    for turn in range(40):
        child = start(make)
        child.hear()
        time.sleep(turn * 50e-6)
        child.kill()
        made = [found.removeprefix("sem.") for found in shm.names() if found.startswith(f"sem.{semaphore}.")]
        for found in made:
            post(found)
            parker.unlink(found)
    until(lambda: unnamed() <= before)  # another program may be making one just now


def test_no_descriptor(name: str) -> None:
    """Neither sleeping nor waking keeps a descriptor open."""
    before = psutil.Process().num_fds()
    beds = [Parker(f"shmlock.{name}.{number}", mode=0o600, owner=US) for number in range(3)]
    sends = [parker.opened(f"shmlock.{name}.{number}") for number in range(3)]
    assert psutil.Process().num_fds() == before
    del beds, sends


def test_napper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no name can be made one naps: never posted, 5 ms at most, and no longer than was asked for."""
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    assert [Napper().wait(seconds) for seconds in (HANG, 0.001, 0)] == [False] * 3
    assert naps == [0.005, 0.001, 0]
