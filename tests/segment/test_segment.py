"""One named block of shared memory: opened, refused, mapped once, left behind by nobody."""

from __future__ import annotations

import gc
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shmlock
from shmlock._kernel import shm
from shmlock._segment import header as headers
from shmlock._segment.segment import check_name
from shmlock.errors import ForeignSegment, LayoutMismatch, SegmentNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Child, Peer, Start

HANG = 30.0
SOMEBODY, SOMEBODY_ELSE = 12345, 23456
KINDS = pytest.mark.parametrize("kind", [shmlock.RWLock, shmlock.Mutex, shmlock.SharedConfig])

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def file_of(name: str) -> Path:
    """What lies in /dev/shm for the segment."""
    return Path(shm.path(f"shmlock.{name}"))


# --- names


@pytest.mark.parametrize("name", ["a", "A-Za-z0-9._-", "0", "-", "_", "a.", "a..b", "x" * 200])
def test_good_names(name: str) -> None:
    """1 to 200 letters, digits, dots, underscores and dashes, not beginning with a dot."""
    assert check_name(name) == name


BAD = ["", ".", "..", ".a", "a/b", "/a", "../a", "a b", " a", "a\n", "a\0", "ä", "\u0661", "a:b", "~", "x" * 201]


@pytest.mark.parametrize("name", [*BAD, None, 1, b"a", Path("a"), ["a"]])
def test_bad_names(name: Any) -> None:
    """Anything else is a ValueError that says what a name may be and repeats what was given, wherever it is given."""
    for take in (check_name, shmlock.RWLock, shmlock.Mutex, shmlock.SharedConfig, shmlock.unlink):
        with pytest.raises(ValueError, match="a name is 1 to 200 characters") as refusal:
            take(name)
        assert repr(name) in str(refusal.value)


@given(st.text())
@example("a\n")
def test_only_good_names(name: str) -> None:
    """No name is accepted that could leave /dev/shm, or mean something to a shell."""
    try:
        check_name(name)
    except ValueError:
        return
    assert name.isascii()
    assert name.replace("-", "a").replace("_", "a").replace(".", "a").isalnum()
    assert not name.startswith(".")
    assert 1 <= len(name) <= 200


@KINDS
def test_longest_name(name: str, kind: type[shmlock.RWLock]) -> None:
    """The longest name works, for semaphores of slots with long numbers as well."""
    longest = name.ljust(200, "x")
    made = kind(longest, max_participants=16384)
    assert made._segment.semaphore(16383) == f"shmlock.{longest}.16383"
    assert len(f"sem.{made._segment.semaphore(16383)}") <= 251  # what sem_open(3) takes
    made.unlink()


# --- opening


@KINDS
def test_created_and_found(name: str, kind: type[shmlock.RWLock]) -> None:
    """What one makes another one finds, in this process and in others; `create=False` makes nothing."""
    with pytest.raises(SegmentNotFound, match=name):
        kind(name, create=False)
    assert not file_of(name).exists()
    made = kind(name)
    assert kind(name, create=False)._segment is made._segment
    assert made.name == name


@KINDS
@pytest.mark.parametrize("other", [shmlock.RWLock, shmlock.Mutex, shmlock.SharedConfig])
def test_another_kind(name: str, kind: type[shmlock.RWLock], other: type[shmlock.RWLock]) -> None:
    """A segment of another kind is refused, naming both kinds, and is not touched."""
    made = kind(name)
    before = file_of(name).read_bytes()
    if kind is other:
        other(name)
        return
    with pytest.raises(LayoutMismatch, match=f"{name}: is a {kind.__name__}, not a {other.__name__}"):
        other(name)
    assert file_of(name).read_bytes() == before
    assert not made.is_stale()


@pytest.mark.parametrize(
    ("kind", "made", "asked", "said"),
    [
        (shmlock.RWLock, {"max_participants": 4}, {"max_participants": 5}, "max_participants is 4 .* 5 was asked for"),
        (shmlock.RWLock, {}, {"max_participants": 5}, "max_participants is 256 .* 5 was asked for"),
        (
            shmlock.RWLock,
            {"statistics": "full"},
            {"statistics": "slow"},
            "statistics is 'full' .* 'slow' was asked for",
        ),
        (shmlock.SharedConfig, {"capacity": 10}, {"capacity": 11}, "capacity is 10 .* 11 was asked for"),
        (shmlock.SharedConfig, {"codec": "bytes"}, {"codec": "json"}, "codec is 'bytes' .* 'json' was asked for"),
    ],
)
def test_another_size(name: str, kind: Any, made: dict[str, Any], asked: dict[str, Any], said: str) -> None:
    """What was fixed at creation can't be asked for differently; the error tells both values."""
    kind(name, **made)
    for create in (True, False):
        with pytest.raises(LayoutMismatch, match=said):
            kind(name, create=create, **asked)
    kind(name, **made)
    if "codec" not in asked:  # which has a default, and is always asked for
        kind(name)


def test_mapped_once(name: str) -> None:
    """However many handles there are, a process maps a segment once and keeps no descriptor."""
    process = psutil.Process()
    before = process.num_fds()
    handles = [shmlock.RWLock(name) for _ in range(5)]
    handles.append(shmlock.RWLock(name, create=False))
    assert process.num_fds() == before
    maps = [line for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines() if name in line]
    assert len(maps) == 1
    assert len({id(handle._segment) for handle in handles}) == 1


def test_no_descriptor_is_kept(name: str, start: Start) -> None:
    """Neither creating nor attaching, using, waiting nor failing costs a descriptor."""

    def use(peer: Peer) -> None:
        process = psutil.Process()
        process.num_fds()
        before = process.num_fds()
        for number in range(20):
            lock = shmlock.RWLock(f"{name}.{number}", max_participants=2)
            with lock.reader:
                pass
            with lock.writer:
                pass
            with pytest.raises(LayoutMismatch):
                shmlock.Mutex(lock.name)
            with pytest.raises(SegmentNotFound):
                shmlock.Mutex(f"{lock.name}.x", create=False)
            lock.close()
            shmlock.unlink(lock.name)
        held = shmlock.RWLock(name)
        assert not held.writer.acquire(timeout=0.05)  # waits, and so makes a semaphore
        peer.say(process.num_fds() - before)

    lock = shmlock.RWLock(name)
    with lock.writer:
        assert start(use).hear() == 0


def test_mapping_outlives_its_handles(name: str) -> None:
    """Closing and collecting all handles unmaps nothing: a robust mutex that is held must stay where it is."""
    lock = shmlock.RWLock(name)
    identity = lock._segment.identity
    lock.close()
    del lock
    gc.collect()
    assert name in Path("/proc/self/maps").read_text(encoding="utf-8")
    assert shmlock.RWLock(name)._segment.identity == identity


def test_opening_in_a_signal_handler(name: str, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that interrupts its thread in the middle of opening an object can open one itself."""
    check = headers.check

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(headers, "check", check)
        signal.raise_signal(signal.SIGUSR1)
        check(*arguments)

    def open_both(peer: Peer) -> None:
        opened = []
        signal.signal(signal.SIGUSR1, lambda *_: opened.append(shmlock.RWLock(name)))
        monkeypatch.setattr(headers, "check", interrupted)
        opened.append(shmlock.RWLock(name))
        peer.say(opened[0]._segment is opened[1]._segment)

    shmlock.RWLock(name)
    assert start(open_both).hear(timeout=10) is True


# --- stale names


def test_stale_after_unlink(name: str) -> None:
    """A name that is gone is stale; those that have the segment go on; unlinking again does nothing."""
    lock = shmlock.RWLock(name)
    assert not lock.is_stale()
    lock.unlink()
    assert lock.is_stale()
    lock.unlink()
    with lock.writer, lock.reader:
        assert not file_of(name).exists()
    with pytest.raises(SegmentNotFound):
        shmlock.RWLock(name, create=False)


def test_made_again(name: str) -> None:
    """A name that is made anew is another segment: the old one is stale, excludes nobody, and does not unlink it."""
    old = shmlock.RWLock(name)
    old.unlink()
    new = shmlock.RWLock(name)
    assert old.is_stale()
    assert not new.is_stale()
    assert old._segment is not new._segment
    with old.writer, new.writer:
        pass
    old.unlink()
    assert not new.is_stale()
    new.unlink()
    assert new.is_stale()


def test_unlink_function(name: str) -> None:
    """`shmlock.unlink` removes a name, and says whether there was one."""
    lock = shmlock.RWLock(name)
    assert shmlock.unlink(name) is True
    assert lock.is_stale()
    assert shmlock.unlink(name) is False


def test_unlink_takes_the_semaphores(name: str, start: Start) -> None:
    """With a segment go its own semaphores, and no other's, although one name is the beginning of the other."""
    children = []
    for called in (name, f"{name}.1", f"{name}x"):
        lock = shmlock.RWLock(called)
        with lock.writer:
            children.append(start(wait_for_writer(called)))
            assert children[-1].hear() == "it has waited"
    semaphores = {entry for entry in shm.names() if entry.startswith("sem.") and name in entry}
    others = {entry for entry in semaphores if entry.startswith((f"sem.shmlock.{name}.1.", f"sem.shmlock.{name}x."))}
    assert len(others) == 2
    assert len(semaphores - others) == 1
    assert shmlock.unlink(name) is True
    assert {entry for entry in shm.names() if entry.startswith("sem.") and name in entry} == others
    for called in (f"{name}.1", f"{name}x"):
        assert shmlock.unlink(called) is True
    assert not [entry for entry in shm.names() if name in entry]


def wait_for_writer(name: str) -> Callable[[Peer], None]:
    """A child that waits in vain, and so has a semaphore."""

    def run(peer: Peer) -> None:
        assert not shmlock.RWLock(name).writer.acquire(timeout=0.05)
        peer.say("it has waited")
        peer.hear()

    return run


# --- owner and mode


@KINDS
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_exact_mode(name: str, kind: type[shmlock.RWLock], mode: int, umask: int) -> None:
    """A segment has the mode that was asked for, whatever the umask."""
    before = os.umask(umask)
    try:
        kind(name, mode=mode)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file_of(name).stat().st_mode) == mode


def test_mode_of_semaphores(name: str, start: Start) -> None:
    """Semaphores have the segment's mode, whoever makes them and whatever his umask."""
    lock = shmlock.RWLock(name, mode=0o662)
    before = os.umask(0o777)
    try:
        with lock.writer:
            child = start(wait_for_writer(name))
            child.hear()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(shm.path(entry)).st_mode) for entry in shm.names() if name in entry]  # noqa: PTH116
    assert modes == [0o662, 0o662]


@pytest.mark.parametrize("mode", [-1, 0o1000, 0o1777, "600", None, 1.0])
def test_bad_modes(name: str, mode: Any) -> None:
    """What is no permission bits is a ValueError, and nothing is made."""
    with pytest.raises(ValueError, match="mode must be"):
        shmlock.RWLock(name, mode=mode)
    assert not file_of(name).exists()


@pytest.mark.parametrize("owner", [(1,), (1, 2, 3), (-1, 0), (0, -1), ("a", "b"), 0, "root", [0, 0]])
def test_bad_owners(name: str, owner: Any) -> None:
    """What is no pair of ids is a ValueError, and nothing is made."""
    with pytest.raises(ValueError, match="owner must be"):
        shmlock.RWLock(name, owner=owner)
    assert not file_of(name).exists()


def as_user(uid: int, function: Callable[[Peer], None]) -> Callable[[Peer], None]:
    """The same, done by another user."""

    def run(peer: Peer) -> None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        function(peer)

    return run


def told(peer: Peer, attempt: Callable[[], object]) -> None:
    """Tell what came of it: the error's type, errno and words, or None."""
    try:
        attempt()
    except shmlock.ShmlockError as error:
        peer.say((type(error), getattr(error, "errno", None), str(error)))
    else:
        peer.say(None)


@needs_root
def test_made_by_root_for_workers(name: str, start: Start) -> None:
    """With `owner=`, root makes a segment that workers open who drop privileges; so are their semaphores theirs."""
    owner = SOMEBODY, SOMEBODY
    master = shmlock.RWLock(name, owner=owner)

    def work(peer: Peer) -> None:
        lock = shmlock.RWLock(name)
        peer.say(lock.writer.acquire(timeout=0.05))
        peer.say(lock.writer.acquire(timeout=HANG))
        lock.writer.release()
        peer.hear()

    with master.writer:
        workers = [start(as_user(SOMEBODY, work)) for _ in range(2)]
        assert [worker.hear() for worker in workers] == [False, False]
    assert [worker.hear() for worker in workers] == [True, True]
    for entry in shm.names():
        if name in entry:
            status = os.stat(shm.path(entry))  # noqa: PTH116  as it is
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (*owner, 0o600)


@needs_root
def test_made_by_root_for_itself(name: str, start: Start) -> None:
    """Without `owner=` a worker is refused by a PermissionError that names the object and the remedy."""
    shmlock.RWLock(name)
    child = start(as_user(SOMEBODY, lambda peer: told(peer, lambda: shmlock.RWLock(name))))
    kind, code, said = child.hear()
    assert kind is ForeignSegment
    assert issubclass(kind, PermissionError)
    assert code == 13
    assert str(file_of(name)) in said
    assert f"user {SOMEBODY} " in said
    assert "owner=" in said


@needs_root
def test_roots_segment_is_trusted(name: str, start: Start) -> None:
    """What root made for all is opened by anybody."""
    shmlock.RWLock(name, mode=0o666)
    assert start(as_user(SOMEBODY, lambda peer: told(peer, lambda: shmlock.RWLock(name)))).hear() is None


@needs_root
def test_another_users_segment(name: str, start: Start) -> None:
    """A segment that anybody else made is refused, by root as well, unless he is the owner that is expected."""

    def make(peer: Peer) -> None:
        shmlock.RWLock(name, mode=0o666)
        peer.say("made")

    assert start(as_user(SOMEBODY, make)).hear() == "made"
    owner, other = (SOMEBODY, SOMEBODY), (SOMEBODY_ELSE, SOMEBODY_ELSE)

    def open_as(uid: int, expected: tuple[int, int] | None) -> Any:
        return start(as_user(uid, lambda peer: told(peer, lambda: shmlock.RWLock(name, owner=expected)))).hear()

    for uid in (0, SOMEBODY_ELSE):
        for expected in (None, other):
            kind, code, said = open_as(uid, expected)
            assert kind is ForeignSegment
            assert code == 13
            assert f"{name}: belongs to user {SOMEBODY}, and this is user {uid}" in said
            assert f"owner=({SOMEBODY}, {SOMEBODY})" in said
        assert open_as(uid, owner) is None
    assert open_as(SOMEBODY, None) is None


@needs_root
def test_failing_attach_unlinks_nothing(name: str, start: Start) -> None:
    """A refused attach leaves the segment as it is, for everybody else."""
    lock = shmlock.RWLock(name)
    identity = shm.identity(f"shmlock.{name}")
    for uid in (0, SOMEBODY):
        child = start(as_user(uid, lambda peer: told(peer, lambda: shmlock.Mutex(name))))
        assert child.hear() is not None
        assert child.join() == 0
    assert shm.identity(f"shmlock.{name}") == identity
    assert not lock.is_stale()


# --- others' trackers, ends, and collections


def run(program: str, *arguments: str) -> None:
    """Run a program that must end well, and silently."""
    command = [sys.executable, "-P", "-X", "dev", "-W", "error", "-c", program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "")


ATTACHES = """
import sys
import shmlock
lock = shmlock.RWLock(sys.argv[1], create=False)
with lock.reader: pass
with lock.writer: pass
assert "multiprocessing.resource_tracker" not in sys.modules
"""

SPAWNS = """
import multiprocessing, sys
import shmlock
lock = shmlock.RWLock(sys.argv[1], create=False)
for method in ("spawn", "forkserver"):
    worker = multiprocessing.get_context(method).Process(target=repr, args=(lock,))
    worker.start(); worker.join()
    assert worker.exitcode == 0
assert not lock.is_stale()
"""


@pytest.mark.parametrize("program", [ATTACHES, SPAWNS], ids=["attaches", "spawns"])
def test_attaching_process_unlinks_nothing(name: str, program: str) -> None:
    """A process that attaches, and all that it starts, end without unlinking the name, and say nothing."""
    lock = shmlock.RWLock(name)
    for _ in range(2):
        run(program, name)
    assert not lock.is_stale()


def test_creating_process_unlinks_nothing(name: str) -> None:
    """Nor does the process that created the segment: a name is there until somebody unlinks it."""
    run("import sys, shmlock; lock = shmlock.RWLock(sys.argv[1]); lock.writer.acquire(); lock.writer.release()", name)
    with shmlock.RWLock(name, create=False).writer:
        pass


BEGIN = """
import gc, os, sys, threading, time
import shmlock
name = sys.argv[1]
lock, config, mutex = shmlock.RWLock(name), shmlock.SharedConfig(name + ".c"), shmlock.Mutex(name + ".m")
config.publish({"a": [1]})
"""

ENDS = {
    "nothing": "",
    "held": "lock.writer.acquire(); mutex.acquire(); config.get(); config.take_seat()",
    "read": "lock.reader.acquire(); lock.reader.acquire()",
    "closed": "for one in (lock, config, mutex): one.close(); one.close()",
    "closed held": "lock.writer.acquire(); mutex.acquire(); config.take_seat()\n"
    "for one in (lock, config, mutex): one.close()",
    "unlinked": "lock.reader.acquire(); lock.unlink(); config.unlink(); mutex.unlink()",
    "collected": "del lock, config, mutex; gc.collect()",
    "collected held": "lock.writer.acquire(); mutex.acquire(); del lock, config, mutex; gc.collect()",
    "in a cycle": "cycle = [lock, config, mutex]; cycle.append(cycle); lock.reader.acquire()\n"
    "del lock, config, mutex, cycle",
    "kept in a module": "sys.kept = lock, config, mutex, lock.reader, lock.writer; lock.reader.acquire()",
    "thread holds": "thread = threading.Thread(target=lock.writer.acquire); thread.start(); thread.join()",
    "thread waits": "lock.writer.acquire(); threading.Thread(target=lock.reader.acquire, daemon=True).start()",
    "thread sleeps": "threading.Thread(target=lambda: (lock.reader.acquire(), time.sleep(60)), daemon=True).start()",
    "forked": "lock.reader.acquire()\nif not os.fork(): lock.unlink(); sys.exit()\nos.wait()",
    "exit in hold": "with lock.writer, mutex: sys.exit()",
    "late": "import atexit; atexit.register(lambda: (lock.reader.acquire(), lock.reader.release(), lock.close()))",
}


@pytest.fixture
def named(name: str) -> Iterator[str]:
    """A name for three segments."""
    yield name
    for suffix in (".c", ".m"):
        shmlock.unlink(name + suffix)


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_silence(named: str, end: str) -> None:
    """However a process ends or drops its handles, held or not: exit code 0, and not a word."""
    run(BEGIN + end, named)


def test_what_an_ended_process_held_is_free(named: str) -> None:
    """What a process held when it ended is evicted, and the next one is let in."""
    run(BEGIN + ENDS["held"], named)
    lock, mutex = shmlock.RWLock(named), shmlock.Mutex(f"{named}.m")
    assert lock.writer.acquire(timeout=HANG)
    assert mutex.acquire(timeout=HANG)
    lock.writer.release()
    mutex.release()


def test_no_child_is_needed_to_clean_up(name: str, start: Start) -> None:
    """A whole tree that is killed leaves a name that opens at once, and no hold."""

    def take_part(peer: Peer) -> None:
        lock = shmlock.RWLock(name, max_participants=3)
        lock.reader.acquire()
        peer.say("in")
        peer.hear()

    children: list[Child] = [start(take_part) for _ in range(3)]
    for child in children:
        child.hear()
    for child in children:
        child.kill(reap=False)
    lock = shmlock.RWLock(name)
    assert lock.writer.acquire(timeout=HANG)
    assert lock.statistics().evictions == 3
    lock.writer.release()
