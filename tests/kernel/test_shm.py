"""Names in /dev/shm: made whole, with exact owner and mode, and nothing left behind."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock._kernel import shm
from tests.surroundings import needs_root, with_private_mount

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Peer, Start

SIZE = 1 << 16
TEMPORARY = "shmlock.."  # how names begin that no user can give


@pytest.fixture
def entry(name: str) -> str:
    """The name of an object in /dev/shm."""
    return f"shmlock.{name}"


def without_tmpfile(name: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file system refuse files without a name, with this errno; the temporary ones are named after `name`."""
    real = os.open
    numbers = count()

    def refusing(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **keywords)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(secrets, "token_hex", lambda _: f"{name}-{os.getpid()}-{next(numbers)}")


@pytest.fixture(
    params=[None, errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL], ids=["O_TMPFILE", "EOPNOTSUPP", "EISDIR", "EINVAL"]
)
def either(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With files that have no name, and where they are refused: under a temporary name. None of those may stay."""
    if request.param is not None:
        without_tmpfile(name, request.param, monkeypatch)
    yield
    assert temporary_names(name) == []


def temporary_names(name: str) -> list[str]:
    """The names that this room has given to what has no name yet."""
    return [entry for entry in shm.names() if entry.startswith(TEMPORARY) and name in entry]


def written(unborn: shm.Unborn, what: bytes) -> shm.Unborn:
    """The same, with content."""
    os.pwrite(unborn.descriptor, what, 0)
    return unborn


@pytest.mark.usefixtures("either")
def test_absent_or_complete(entry: str) -> None:
    """There is nothing under the name until the object is whole; then it is there, with its size reserved."""
    unborn = written(shm.Unborn(entry, SIZE, mode=0o600, owner=None), b"content")
    assert shm.identity(entry) is None
    assert unborn.publish() is True
    unborn.discard()
    file = Path(shm.path(entry))
    assert file.read_bytes() == b"content".ljust(SIZE, b"\0")
    assert file.stat().st_blocks * 512 >= SIZE
    assert file.stat().st_nlink == 1


@pytest.mark.usefixtures("either")
def test_discarded(entry: str) -> None:
    """What is discarded without a name was never there."""
    written(shm.Unborn(entry, SIZE, mode=0o600, owner=None), b"content").discard()
    assert shm.identity(entry) is None


@pytest.mark.usefixtures("either")
def test_second_gets_no_name(entry: str) -> None:
    """A name goes to whoever publishes first; the other one's object vanishes, and harms nothing."""
    first, second = (written(shm.Unborn(entry, SIZE, mode=0o600, owner=None), what) for what in (b"first", b"second"))
    assert first.publish() is True
    identity = shm.identity(entry)
    assert second.publish() is False
    second.discard()
    first.discard()
    assert shm.identity(entry) == identity
    assert Path(shm.path(entry)).read_bytes().rstrip(b"\0") == b"first"


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("umask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_exact_mode(entry: str, mode: int, umask: int) -> None:
    """The object has the mode that was asked for, whatever the umask."""
    before = os.umask(umask)
    try:
        unborn = shm.Unborn(entry, SIZE, mode=mode, owner=None)
        unborn.publish()
        unborn.discard()
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path(shm.path(entry)).stat().st_mode) == mode


@needs_root
@pytest.mark.usefixtures("either")
def test_exact_owner(entry: str) -> None:
    """The object belongs to whom it was made for."""
    unborn = shm.Unborn(entry, SIZE, mode=0o660, owner=(12345, 23456))
    unborn.publish()
    unborn.discard()
    status = Path(shm.path(entry)).stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 23456, 0o660)


@needs_root
@pytest.mark.usefixtures("either")
def test_owner_that_can_not_be(name: str, entry: str, start: Start) -> None:
    """Who may not give the object away is told, and leaves nothing behind."""

    def give_away(peer: Peer) -> None:
        os.setuid(12345)
        try:
            shm.Unborn(entry, SIZE, mode=0o600, owner=(0, 0))
        except PermissionError:
            peer.say((shm.identity(entry), temporary_names(name)))

    assert start(give_away).hear() == (None, [])


def test_other_refusals_are_told(name: str, entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a file system without nameless files leads to a temporary name; any other error is the caller's."""
    without_tmpfile(name, errno.EACCES, monkeypatch)
    with pytest.raises(PermissionError):
        shm.Unborn(entry, SIZE, mode=0o600, owner=None)
    assert temporary_names(name) == []


@pytest.mark.parametrize("tmpfile", [True, False], ids=["O_TMPFILE", "temporary"])
def test_killed_before_it_has_a_name(
    name: str, entry: str, start: Start, monkeypatch: pytest.MonkeyPatch, tmpfile: bool
) -> None:
    """Who is killed before publishing leaves nothing under the name; with nameless files nothing at all."""
    if not tmpfile:
        without_tmpfile(name, errno.EOPNOTSUPP, monkeypatch)

    def begin(peer: Peer) -> None:
        shm.Unborn(entry, SIZE, mode=0o600, owner=None)
        peer.say("half way")
        peer.hear()

    child = start(begin)
    assert child.hear() == "half way"
    child.kill()
    left = temporary_names(name)
    for temporary in left:
        shm.unlink(temporary)
    assert shm.identity(entry) is None
    assert len(left) == (0 if tmpfile else 1)


# --- a /dev/shm of our own


@needs_root
@pytest.mark.parametrize("tmpfile", [True, False], ids=["O_TMPFILE", "temporary"])
@pytest.mark.parametrize(
    ("options", "fits"), [("size=64k", False), ("size=8k", False), ("nr_inodes=1", False), ("size=1m", True)]
)
def test_full(
    name: str, start: Start, monkeypatch: pytest.MonkeyPatch, options: str, tmpfile: bool, fits: bool
) -> None:
    """Where /dev/shm is too full, creating raises ENOSPC and names the object; nothing is left, nobody gets SIGBUS."""
    if not tmpfile:
        without_tmpfile(name, errno.EOPNOTSUPP, monkeypatch)

    def create(peer: Peer) -> None:
        for kind in (shmlock.RWLock, shmlock.SharedConfig):
            try:
                with kind(name) as made:
                    peer.say(repr(made))
            except OSError as error:
                peer.say((error.errno, str(error)))
            peer.say(shm.names())
            shmlock.unlink(name)

    child = with_private_mount(start, shm.ROOT, options, create)
    lock, names = child.hear(), child.hear()
    if fits:
        assert lock.startswith("<shmlock.RWLock")
        assert names == [f"shmlock.{name}"]
    else:
        assert lock[0] == errno.ENOSPC
        assert name in lock[1]
        assert names == []
    config, names = child.hear(), child.hear()
    assert config[0] == errno.ENOSPC
    assert name in config[1]
    assert names == []
    assert child.join() == 0


@needs_root
def test_filled_later(name: str, start: Start) -> None:
    """What was reserved at creation can be written when /dev/shm is full by then."""

    def fill(peer: Peer) -> None:
        config = shmlock.SharedConfig(name, capacity=300_000, codec="bytes")
        with suppress(OSError), Path(shm.path("filler")).open("wb") as filler:
            while True:
                filler.write(bytes(4096))
        for number in range(3):
            config.publish(bytes([number]) * 300_000)
        peer.say((os.statvfs(shm.ROOT).f_bfree, config.get()[:1]))

    child = with_private_mount(start, shm.ROOT, "size=1m", fill)
    assert child.hear() == (0, b"\2")


@needs_root
def test_waiting_when_full(name: str, start: Start) -> None:
    """A lock that was made while there was room works when there is none left: for those that wait as well."""

    def fill_and_wait(peer: Peer) -> None:
        lock = shmlock.RWLock(name)
        with suppress(OSError), Path(shm.path("filler")).open("wb") as filler:
            while True:
                filler.write(bytes(4096))
        lock.writer.acquire()
        pid = os.fork()
        if not pid:
            lock = shmlock.RWLock(name)
            peer.say((lock.reader.acquire(timeout=0.05), lock.writer.acquire(timeout=0.05)))
            peer.say(lock.writer.acquire(timeout=30))
            return
        peer.hear()
        lock.writer.release()
        os.waitpid(pid, 0)

    child = with_private_mount(start, shm.ROOT, "size=1m", fill_and_wait)
    assert child.hear() == (False, False)
    child.say("release it")
    assert child.hear() is True


@needs_root
def test_missing(name: str, start: Start) -> None:
    """Where there is no /dev/shm, creating says so, attaching finds nothing, and so does looking for names."""

    def create(peer: Peer) -> None:
        for create in (True, False):
            try:
                shmlock.RWLock(name, create=create)
            except OSError as error:
                peer.say((type(error), error.errno, str(error)))
        peer.say((shm.names(), shmlock.unlink(name)))

    child = with_private_mount(start, "/dev", "size=1m", create)
    kind, code, said = child.hear()
    assert (kind, code) == (FileNotFoundError, errno.ENOENT)
    assert shm.ROOT in said
    assert name in said
    assert child.hear()[0] is shmlock.SegmentNotFound
    assert child.hear() == ([], False)


# --- the rest of the room


@pytest.mark.parametrize("tmpfile", [True, False], ids=["O_TMPFILE", "temporary"])
def test_fifty_racing_creators(name: str, start: Start, monkeypatch: pytest.MonkeyPatch, tmpfile: bool) -> None:
    """50 processes that create one name at once end on one and the same segment, and leave nothing else."""
    if not tmpfile:
        without_tmpfile(name, errno.EOPNOTSUPP, monkeypatch)
    read, write = os.pipe()

    def create(peer: Peer) -> None:
        os.close(write)
        peer.say("ready")
        os.read(read, 1)  # which comes back for all at once, when the parent closes the other end
        lock = shmlock.RWLock(name, max_participants=64)
        with lock.writer:
            pass
        peer.say(lock._segment.identity)
        peer.hear()

    children = [start(create) for _ in range(50)]
    for child in children:
        assert child.hear() == "ready"
    os.close(write)
    os.close(read)
    identities = {child.hear() for child in children}
    assert identities == {shm.identity(f"shmlock.{name}")}
    assert shmlock.RWLock(name, create=False).statistics().write.locks == 50
    assert temporary_names(name) == []


def test_opened_is_closed(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor of an existing object is closed at the end, also by an exception; it is not inherited."""
    Path(shm.path(entry)).write_bytes(b"x")
    monkeypatch.chdir("/")
    with pytest.raises(ZeroDivisionError), shm.opened(entry) as descriptor:
        assert not os.get_inheritable(descriptor)
        assert os.fstat(descriptor).st_size == 1
        raise ZeroDivisionError
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_opened_follows_no_link(entry: str, tmp_path: Path) -> None:
    """A symbolic link under our name is not followed, and a FIFO does not make us wait for its other end."""
    file = Path(shm.path(entry))
    (tmp_path / "target").write_bytes(b"precious")
    file.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"), shm.opened(entry):
        pass
    file.unlink()
    os.mkfifo(file)
    with shm.opened(entry) as descriptor:
        assert stat.S_ISFIFO(os.fstat(descriptor).st_mode)


def test_map_shared(entry: str) -> None:
    """A mapping is shared, and goes on when descriptor and name are gone. What can't be mapped is an OSError."""
    unborn = written(shm.Unborn(entry, SIZE, mode=0o600, owner=None), b"before")
    one, other = (shm.map_shared(unborn.descriptor, SIZE) for _ in range(2))
    unborn.discard()
    ctypes.memmove(one, b"after!", 6)
    assert ctypes.string_at(other, 6) == b"after!"
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        shm.map_shared(-1, SIZE)


def test_identity(entry: str) -> None:
    """A name that is made anew means another object; one that is gone means none."""
    file = Path(shm.path(entry))
    assert shm.identity(entry) is None
    file.write_bytes(b"1")
    with file.open("rb"):  # which keeps its inode from being given to the next one
        first = shm.identity(entry)
        assert first == (file.stat().st_dev, file.stat().st_ino)
        assert shm.unlink(entry) is True
        assert shm.identity(entry) is None
        file.write_bytes(b"2")
        assert shm.identity(entry) not in {None, first}


def test_unlink(entry: str) -> None:
    """A name is removed once; then there is nothing to remove. A directory is not removed, and that is told."""
    file = Path(shm.path(entry))
    assert shm.unlink(entry) is False
    file.write_bytes(b"1")
    assert shm.unlink(entry) is True
    assert shm.unlink(entry) is False
    file.mkdir()
    with pytest.raises(OSError, match=r"directory|permitted"):
        shm.unlink(entry)
    file.rmdir()


def test_names(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All names are listed, those that are not ours as well; none where there is no /dev/shm."""
    Path(shm.path(entry)).write_bytes(b"1")
    assert entry in shm.names()
    monkeypatch.setattr(shm, "ROOT", "/nowhere/at/all")
    assert shm.names() == []
