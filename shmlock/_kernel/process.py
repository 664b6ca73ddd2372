"""Who a participant is, for people: pid, tid, start time, pid namespace. Nothing here decides anything.

Pids are reused, mean nothing in another namespace, start times tick every 10 ms, and `kill(pid, 0)` says
that a zombie lives: whether a participant is dead is asked of its latch alone.
"""

from __future__ import annotations

import functools
import os
import threading

import psutil

from shmlock._kernel.forks import in_child
from shmlock._kernel.libc import check_refusal


@functools.cache
def pid_namespace() -> int:
    """The inode of this process's pid namespace (namespaces(7)); 0 where /proc does not tell."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError as error:
        check_refusal(error)
        return 0


@functools.cache
def started_at() -> int:
    """When this process started, in clock ticks (10 ms) since boot; 0 where /proc does not tell.

    Field 22 of proc_pid_stat(5). psutil tells it as a time of day, for which it reads much more (1.5 ms in a
    worker's first use of a lock).
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # The second field, the program's name in brackets, may itself have blanks and brackets in it.
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError as error:
        check_refusal(error)
        return 0
    except (ValueError, IndexError):
        return 0


def identity() -> tuple[int, int, int, int]:
    """(pid, tid, start time, pid namespace) of the calling thread. The first call of a process reads /proc."""
    return os.getpid(), threading.get_native_id(), started_at(), pid_namespace()


@functools.cache
def boot_id() -> bytes:
    """16 bytes that change with every boot; zeros where /proc does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except OSError as error:
        check_refusal(error)
        return bytes(16)
    except ValueError:
        return bytes(16)


def name_of(pid: int) -> str:
    """The process's name in this namespace, or "?"."""
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "?"


@in_child
def _forget() -> None:
    started_at.cache_clear()
    pid_namespace.cache_clear()
