"""The C library, and platforms that we can't serve: they can import shmlock, and are told what they lack."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shmlock._kernel import libc, robust
from shmlock._kernel.libc import Tolerated, check_refusal
from shmlock.errors import UnsupportedPlatform

# What a program does on a platform that lacks something; `{pretend}` makes it look like one.
PROGRAM = """
    import ctypes, multiprocessing.connection, os, platform, psutil, subprocess, sys, tempfile, threading, time
    sys.modules["posix_ipc"] = None  # can't be built there
    {pretend}
    import shmlock, shmlock._kernel.probe
    print(shmlock._kernel.probe.capabilities().missing)
    for kind in (shmlock.RWLock, shmlock.Mutex, shmlock.SharedConfig):
        for create in (True, False):
            try:
                kind("test-platform", create=create)
            except shmlock.UnsupportedPlatform as error:
                print(error)
            else:
                print("made")
"""

WITHOUT_POSIX = """
    for name in ("register_at_fork", "confstr", "O_TMPFILE", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "fork",
                 "posix_fallocate", "fchmod", "fchown", "geteuid", "getuid", "sysconf", "pwrite", "pread"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("CLOCK_MONOTONIC", "clock_gettime"):
        delattr(time, name)
    def no_library(*_, **__):
        raise OSError("there is no such library")
    ctypes.CDLL.__init__ = no_library
"""


@pytest.mark.parametrize(
    ("pretend", "named"),
    [
        ('sys.platform = "darwin"', "Linux (this is darwin)"),
        ('sys.platform = "win32"' + textwrap.indent(WITHOUT_POSIX, ""), "Linux (this is win32)"),
        ('sys.implementation.name = "pypy"', "CPython (this is pypy)"),
        ('platform.machine = lambda: "riscv64"', "x86-64 or aarch64 (this is riscv64)"),
        ('platform.machine = lambda: ""', "x86-64 or aarch64"),
    ],
    ids=["macos", "windows", "pypy", "riscv", "unknown"],
)
def test_unsupported_platforms(pretend: str, named: str) -> None:
    """Importing works; making any object, new or not, raises UnsupportedPlatform that names what is missing."""
    program = textwrap.dedent(PROGRAM).format(pretend=textwrap.dedent("    " + pretend))
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert len(lines) == 7
    assert named in lines[0]
    for line in lines[1:]:
        assert line.startswith("shmlock needs ")
        assert named in line


@pytest.mark.parametrize(
    ("answer", "known_as"),
    [
        ("lambda _: 'glibc 2.36'", "glibc"),
        ("lambda _: None", "musl"),
        ("lambda _: (_ for _ in ()).throw(ValueError('unrecognized configuration name'))", "musl"),
    ],
)
def test_which_library(answer: str, known_as: str) -> None:
    """The C library is glibc where it says so itself, and else musl; both have a mutex size on both machines."""
    program = (
        f"import os, platform; os.confstr = {answer}\n"
        "from shmlock._kernel import libc\n"
        "print(libc.NAME, libc.MUTEX_SIZE, libc.missing())"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    name, size, lack = ran.stdout.split()
    assert name == known_as
    assert int(size) > 0
    assert lack == "None"


def test_supported_here() -> None:
    """On a platform that we support nothing is missing, and nothing is raised."""
    assert libc.missing() is None
    libc.require()


def test_mutex_size_is_right() -> None:
    """A mutex touches no byte beyond the size that we take it for, and that fits into the space set aside."""
    assert libc.MUTEX_SIZE <= robust.MUTEX_SPACE
    pattern = b"\xa5" * (2 * robust.MUTEX_SPACE)
    buffer = ctypes.create_string_buffer(pattern, len(pattern))
    address = ctypes.addressof(buffer)
    robust.initialise([address])
    assert robust.trylock(address) == 0
    assert robust.unlock(address) == 0
    assert buffer.raw[: libc.MUTEX_SIZE] != pattern[: libc.MUTEX_SIZE]
    assert buffer.raw[libc.MUTEX_SIZE :] == pattern[libc.MUTEX_SIZE :]


@pytest.mark.parametrize("library", [libc.holding_gil, libc.releasing_gil])
def test_absent_function(library: libc._Library) -> None:
    """A function that this C library lacks is no error until it is called; then it is named."""
    assert library.has("pthread_mutex_trylock")
    assert not library.has("no_such_function")
    absent = library.function("no_such_function", ctypes.c_int)
    with pytest.raises(UnsupportedPlatform, match="needs no_such_function"):
        absent(1)


def test_check_tells_the_errno() -> None:
    """-1 becomes the OSError that errno means, as a subclass where there is one; all else passes."""
    assert libc.check(0) == 0
    assert libc.check(7) == 7
    close = libc.holding_gil.function("close", ctypes.c_int)
    with pytest.raises(OSError, match="Bad file descriptor") as refusal:
        libc.check(close(-1))
    assert refusal.value.errno == errno.EBADF


@pytest.mark.parametrize(
    ("nanoseconds", "seconds", "rest"),
    [(0, 0, 0), (999_999_999, 0, 999_999_999), (1_000_000_000, 1, 0), (123_456_789_012, 123, 456_789_012)],
)
def test_timespec(nanoseconds: int, seconds: int, rest: int) -> None:
    """Nanoseconds are split into whole seconds and the rest."""
    time = libc.Timespec.from_ns(nanoseconds)
    assert (time.seconds, time.nanoseconds) == (seconds, rest)


def test_only_the_kernel_s_refusals_are_tolerated() -> None:
    """An OSError that a signal handler raised in the middle of a call goes on; one with an errno is an answer."""
    with Tolerated():
        Path("/there/is/no/such/file").stat()
    with pytest.raises(TimeoutError), Tolerated():
        raise TimeoutError("from a handler")
    with pytest.raises(ValueError, match="no OSError"), Tolerated():
        raise ValueError("no OSError")
    check_refusal(OSError(errno.EACCES, "refused"))
    with pytest.raises(InterruptedError):
        check_refusal(InterruptedError())
