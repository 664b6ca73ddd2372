"""What a test has a child live in: a file system of its own, a pid namespace, a filter of system calls.

Skipped, with the reason, where they can't be made.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import TYPE_CHECKING

import pytest

from shmlock._kernel import membarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Child, Peer, Start

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do that")

# --- a file system

_CLONE_NEWNS, _MS_REC_PRIVATE = 0x0002_0000, 1 << 14 | 1 << 18


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Do as the system call does, or raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    encoded = (source.encode(), target.encode(), kind and kind.encode())
    if libc.mount(*encoded, ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {target}: {os.strerror(ctypes.get_errno())}")


def with_private_mount(start: Start, target: str, options: str, function: Callable[[Peer], None]) -> Child:
    """Run the function in a child that alone sees an empty file system at `target`; skip where that can't be."""

    def run(peer: Peer) -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
                raise OSError(ctypes.get_errno(), "unshare")
            mount("none", "/", None, _MS_REC_PRIVATE)
            mount("tmpfs", target, "tmpfs", 0, options)
        except OSError as error:
            peer.say(str(error))
            return
        peer.say(None)
        function(peer)

    child = start(run)
    refusal = child.hear()
    if refusal is not None:
        pytest.skip(f"no mount namespace of our own is to be had: {refusal}")
    return child


# --- a pid namespace

CLONE_NEWPID = 0x2000_0000


def in_namespace(start: Start, function: Callable[[Peer], None]) -> tuple[Child, int]:
    """Run the function in the first process, and so thread 1, of a new pid namespace; skip where there is none.

    The child that it is a child of, and its pid here.
    """

    def unshare(peer: Peer) -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWPID):
            peer.say(os.strerror(ctypes.get_errno()))
            return
        told, tell = os.pipe()
        pid = os.fork()
        if not pid:
            os.read(told, 1)  # what it says comes after its pid
            function(peer)
            return
        peer.say(pid)
        os.write(tell, b"x")
        os.waitpid(pid, 0)
        peer.say("it has ended")

    if os.geteuid() != 0:
        pytest.skip("only root can make a pid namespace")
    child = start(unshare)
    refusal = child.hear()
    if isinstance(refusal, str):
        pytest.skip(f"no pid namespace is to be had: {refusal}")
    return child, refusal


# --- a filter: seccomp(2)

_ERRNO, _ALLOW = 0x0005_0000, 0x7FFF_0000  # SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_membarrier(code: int) -> None:
    """Have membarrier(2) fail with this errno from now on, here and in all children: seccomp(2)."""
    number = membarrier._NUMBER
    steps = [
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, number),  # if it is membarrier's
        (0x06, 0, 0, _ERRNO | code),
        (0x06, 0, 0, _ALLOW),
    ]
    packed = b"".join(struct.pack("HBBI", *step) for step in steps)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 4]
    if prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(
        _PR_SET_SECCOMP, _FILTER, ctypes.addressof(_Program(len(steps), packed)), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "no filter can be set here")
