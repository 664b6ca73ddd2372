"""Names in /dev/shm: create whole, open, map, unlink. With exact owner and mode, and no resource tracker.

These are the same objects that `multiprocessing.shared_memory` opens (`SharedMemory("shmlock.NAME")`), made
by hand because that class registers every opener with a tracker which unlinks the name when the opener
exits (bpo-38119; `track=False` came with 3.13), creates names before their content, and unmaps on collection.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from shmlock._kernel.libc import ADDRESS, check_refusal, releasing_gil

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = "/dev/shm"  # noqa: S108  shm_overview(7): where glibc and musl keep POSIX shared memory

_PROT_READ_WRITE: Final = 0x3
_MAP_SHARED: Final = 0x1
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_mmap = releasing_gil.function(
    "mmap", ADDRESS, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long, restype=ADDRESS
)


def path(name: str) -> str:
    return f"{ROOT}/{name}"


@contextmanager
def opened(name: str) -> Iterator[int]:
    """A descriptor of the existing object, closed at the end. OSError as open(2) raises it."""
    descriptor = os.open(path(name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Unborn:
    """An object that has no name yet: fill it, then `publish` it under one, whole."""

    def __init__(self, name: str, size: int, *, mode: int, owner: tuple[int, int] | None) -> None:
        """Reserve `size` bytes for the future `name`. OSError(ENOSPC) when /dev/shm is too full for them."""
        self._name = name
        self._temporary: str | None = None
        self.descriptor = self._open()
        try:
            # Without it a full /dev/shm would be a SIGBUS at the first store to a page that can't be had.
            os.posix_fallocate(self.descriptor, 0, size)
            if owner is not None:
                os.fchown(self.descriptor, *owner)
            os.fchmod(self.descriptor, mode)  # open(2) masks the mode with the umask; and chown clears bits
        except BaseException:
            self.discard()
            raise

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            # A file without a name vanishes by itself if we are killed before `publish`.
            return os.open(ROOT, flags | os.O_TMPFILE, 0o600)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL}:
                raise
        # Some sandboxes' file systems have no such files. No public name starts with a dot.
        self._temporary = path(f"shmlock..{secrets.token_hex(8)}")
        return os.open(self._temporary, flags | os.O_CREAT | os.O_EXCL, 0o600)

    def publish(self) -> bool:
        """Give the object its name; False when somebody else's object got the name first."""
        source = self._temporary or f"/proc/self/fd/{self.descriptor}"
        try:
            # The directory descriptor means nothing to an absolute path: it makes os.link use linkat(2) with
            # AT_SYMLINK_FOLLOW, while the default is link(2), which would link the symbolic link itself.
            os.link(source, path(self._name), src_dir_fd=self.descriptor, follow_symlinks=True)
        except FileExistsError:
            return False
        return True

    def discard(self) -> None:
        """Close; an object that got no name is gone then."""
        os.close(self.descriptor)
        if self._temporary is not None:
            os.unlink(self._temporary)


def map_shared(descriptor: int, size: int) -> int:
    """Map the object for good and return the address. The descriptor may be closed afterwards.

    There is no unmap: unmapping a robust mutex that some thread holds cuts that thread's robust list, and
    all older entries of it are never marked dead (measured). The mapping ends with the process.
    """
    address = _mmap(None, size, _PROT_READ_WRITE, _MAP_SHARED, descriptor, 0)
    if address in (None, _MAP_FAILED):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return address


def identity(name: str) -> tuple[int, int] | None:
    """(device, inode) of what the name means now, or None."""
    try:
        status = os.stat(path(name), follow_symlinks=False)
    except OSError as error:
        check_refusal(error)
        return None
    return status.st_dev, status.st_ino


def names() -> list[str]:
    """All names there are; none where there is no /dev/shm."""
    try:
        return os.listdir(ROOT)
    except OSError as error:
        check_refusal(error)
        return []


def unlink(name: str) -> bool:
    """Remove the name; False when it was not there. Those that have the object mapped go on."""
    try:
        os.unlink(path(name))
    except FileNotFoundError:
        return False
    return True
