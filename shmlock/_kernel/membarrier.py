"""membarrier(2): the writer pays for the readers' memory fences.

A reader stores its own word and then loads the gate; a writer closes the gate and then loads the readers'
words. Unless both sides order store before load, both may see the old value, and both are in. The readers
do this millions of times, the writers rarely: so the writer asks the kernel to run a full fence on every
CPU that runs a process which has registered, and the readers need none (Corbet, "The membarrier() system
call", and liburcu's sys_membarrier flavour).

Three obligations, and each call says which of them it meets:

    after_closing   between closing the gate and looking at the readers' words (everywhere)
    before_writing  between the last reader's leaving and the first write    (not needed on x86-64,
    before_opening  between the last write and opening the gate               where only store-load is weak)
"""

from __future__ import annotations

import errno
from _thread import allocate_lock
from typing import TYPE_CHECKING, Final

from shmlock._kernel.libc import MACHINE, check, check_refusal, holding_gil

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER: Final = {"x86_64": 324, "aarch64": 283}.get(MACHINE, -1)
_QUERY: Final = 0
_GLOBAL_EXPEDITED: Final = 1 << 1
_REGISTER_GLOBAL_EXPEDITED: Final = 1 << 2

# Untyped saves half of the call (measured: 0.42 instead of 0.99 us on 3.11, 0.64 instead of 1.65 on 3.13). ctypes then
# passes ints of 32 bits, sign-extended: all that the number and the arguments of this system call need.
_syscall = holding_gil.untyped("syscall")


def _call(command: int) -> int:
    return check(_syscall(_NUMBER, command, 0, 0))


def register() -> None:
    """Have this process's CPUs fenced by every writer. Inherited by fork, lost by exec; idempotent.

    Raises OSError (ENOSYS, EPERM, EINVAL) where the kernel or a container's filter refuses.
    """
    if not _call(_QUERY) & _GLOBAL_EXPEDITED:
        raise OSError(errno.EINVAL, "membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) is not offered by this kernel")
    _call(_REGISTER_GLOBAL_EXPEDITED)


def fence() -> None:
    """A full fence on every CPU that runs a registered process. About 1 us; keeps the GIL."""
    if _syscall(_NUMBER, _GLOBAL_EXPEDITED, 0, 0):
        check(-1)


def fence_here() -> None:
    """A full fence of the calling thread alone.

    On x86-64 any locked instruction is one (Intel SDM, volume 3, "Loads and Stores Are Not Reordered with Locked
    Instructions"), and no lock can be taken without: a fresh one is the cheapest that Python has, 0.1 us.
    Elsewhere taking a lock only orders what follows.
    """
    if MACHINE == "x86_64":
        allocate_lock().acquire(False)
    else:
        fence()


def available() -> str | None:
    """None when a real registration and a real fence work, else the reason they don't."""
    try:
        register()
        fence()
    except OSError as error:
        check_refusal(error)
        return error.strerror or str(error)
    return None


class Fences:
    """The three obligations of a segment's writers, and the plain fence of one thread; None where none is needed."""

    __slots__ = ("after_closing", "before_opening", "before_writing", "here")

    def __init__(self, *, fast: bool) -> None:
        """`fast`: readers use the fast path, so writers must fence. Otherwise the guard orders everything."""
        weak = fast and MACHINE != "x86_64"
        self.after_closing: Callable[[], None] | None = fence if fast else None
        self.before_writing: Callable[[], None] | None = fence if weak else None
        self.before_opening: Callable[[], None] | None = fence if weak else None
        self.here: Callable[[], None] | None = fence_here if fast else None
