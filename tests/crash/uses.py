"""Every way to use a lock, once, by one who is alone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import shmlock


def read(lock: shmlock.RWLock) -> None:
    """R."""
    with lock.reader:
        pass


def write(lock: shmlock.RWLock) -> None:
    """W."""
    with lock.writer:
        pass


def write_and_read_on(lock: shmlock.RWLock) -> None:
    """W to R, by nesting."""
    lock.writer.acquire()
    with lock.reader:
        lock.writer.release()


def write_and_close(lock: shmlock.RWLock) -> None:
    """W, and free the slot."""
    with lock.writer:
        pass
    lock.close()


def write_nowait(lock: shmlock.RWLock) -> None:
    """W, without waiting."""
    assert lock.writer.acquire_nowait()
    lock.writer.release()


def seek(lock: shmlock.SeekLock) -> None:
    """S."""
    with lock.seeker:
        pass


def upgrade(lock: shmlock.SeekLock) -> None:
    """S to W and back."""
    with lock.seeker, lock.upgraded():
        pass


def seek_to_read(lock: shmlock.SeekLock) -> None:
    """S to R."""
    with lock.seeker:
        lock.seek_to_read()


def seek_to_write_to_read(lock: shmlock.SeekLock) -> None:
    """S to W to R."""
    with lock.seeker:
        assert lock.seek_to_write()
        lock.write_to_read()


def write_to_seek(lock: shmlock.SeekLock) -> None:
    """W to S."""
    with lock.writer:
        lock.write_to_seek()


def read_to_seek(lock: shmlock.SeekLock) -> None:
    """R to S."""
    with lock.reader:
        assert lock.read_to_seek()


def read_to_seek_and_back(lock: shmlock.SeekLock) -> None:
    """R to S to R."""
    with lock.reader:
        assert lock.read_to_seek()
        lock.seek_to_read()


def read_to_write_and_back(lock: shmlock.SeekLock) -> None:
    """R to W to R."""
    with lock.reader:
        assert lock.read_to_write()
        lock.write_to_read()
