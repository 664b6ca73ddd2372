"""Store buffering: a reader and a writer both store, then load the other one's word, and never both are in.

    reader, in Python                  writer, in C (as fast as a Python one never is: it meets the reader more often)
    reads[me] = 1                      gate = closed
    load gate                          [a fence: of all CPUs, or of this one alone]
                                       load reads[me]

Both in is the double entry that `shmlock/_engine/bias.py` proves impossible with membarrier. The words are a segment's,
the fence is the one that the library asks the kernel for. The control, the same writer with a fence of its own alone,
shows that the reader needs one: where it shows nothing (one CPU, or none seen), the test says so and is skipped.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import shmlock
from shmlock._kernel import membarrier
from shmlock._segment.layout import GATE, READS, slot
from shmlock._segment.words import WORD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import Peer, Start

SECONDS = 3  # of rounds with the barrier
CONTROL = 15  # seconds at most of rounds without, until they show something
COMPILER = shutil.which("cc")

# Three more words of the segment serve as turnstile: the round that the writer has begun, that the reader has ended,
# and what the reader loaded in it.
BEGUN, ENDED, SEEN = slot(1), slot(2), slot(3)

WRITER = r"""
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

typedef volatile uint64_t word;

/* Rounds for so many seconds, or until both have loaded 0 if it is to stop then; how often they did goes to `both`.
   call: the number of membarrier(2), made with this command; or 0, and this CPU alone is fenced. -1: it failed. */
long writer(word *gate, word *reads, word *begun, word *ended, word *seen,
            long seconds, int stop, long call, int command, long *both)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t end = now.tv_sec + seconds;
    long round = 0;
    *both = 0;
    while (now.tv_sec < end && !(stop && *both)) {
        round++;
        *gate = 0;
        *reads = 0;
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        *begun = round;
        /* The reader takes a while to see it, and not always the same. */
        for (volatile long wait = round % 192; wait > 0; wait--) ;
        *gate = 1;
        if (!call) __atomic_thread_fence(__ATOMIC_SEQ_CST);
        else if (syscall(call, command, 0, 0)) return -1;
        uint64_t reads_seen = *reads;
        for (long spins = 0; *ended != (uint64_t)round; spins++)
            if (spins > 2000) sched_yield();  /* it was preempted */
        *both += !reads_seen && !*seen;
        if (round % 256 == 0) clock_gettime(CLOCK_MONOTONIC, &now);
    }
    *begun = UINT64_MAX;
    return round;
}
"""

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="on one CPU nothing is ever seen out of order"),
    pytest.mark.skipif(COMPILER is None, reason="there is no cc to make the writer with"),
    pytest.mark.skipif(membarrier.available() is not None, reason=f"no membarrier: {membarrier.available()}"),
]


@pytest.fixture
def run(name: str, start: Start, tmp_path: Path) -> Callable[..., tuple[int, int]]:
    """`run(seconds, barrier=..., stop=...)`: (rounds, double entries) of a writer here and a reader elsewhere."""
    source, library = tmp_path / "writer.c", tmp_path / "writer.so"
    source.write_text(WRITER, encoding="ascii")
    assert COMPILER is not None
    subprocess.run([COMPILER, "-O2", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    writer = ctypes.CDLL(str(library)).writer
    writer.restype = ctypes.c_long
    lock = shmlock.RWLock(name, max_participants=4)
    one, other = sorted(os.sched_getaffinity(0))[:2]

    def read(peer: Peer) -> None:
        os.sched_setaffinity(0, {other})
        words = shmlock.RWLock(name, create=False)._words
        at = slot(0) + READS
        peer.say("ready")
        for _ in iter(peer.hear, "stop"):
            turn = 1
            while (begun := words[BEGUN]) <= turn:
                if begun == turn:
                    words[at] = 1
                    seen = words[GATE]
                    words[SEEN] = seen
                    words[ENDED] = turn
                    turn += 1
            words[BEGUN] = words[ENDED] = 0
            peer.say("done")

    child = start(read)
    child.hear()

    def run(seconds: int, *, barrier: bool, stop: bool) -> tuple[int, int]:
        def address(word: int) -> ctypes.c_void_p:
            return ctypes.c_void_p(lock._segment.address + word * WORD)

        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {one})
        try:
            child.say("go")
            words = (address(word) for word in (GATE, slot(0) + READS, BEGUN, ENDED, SEEN))
            call = membarrier._NUMBER if barrier else 0
            both = ctypes.c_long()
            rounds = writer(
                *words,
                ctypes.c_long(seconds),
                stop,
                ctypes.c_long(call),
                membarrier._GLOBAL_EXPEDITED,
                ctypes.byref(both),
            )
            assert child.hear() == "done"
        finally:
            os.sched_setaffinity(0, before)
        assert rounds > 0, "membarrier failed"
        return int(rounds), both.value

    return run


def test_never_both(run: Callable[..., tuple[int, int]]) -> None:
    """With membarrier in the writer there is not one double entry."""
    rounds, both = run(SECONDS, barrier=True, stop=False)
    print(f"with membarrier: {both} double entries in {rounds} rounds")  # noqa: T201  for -s and -rP
    assert both == 0


def test_both_without(run: Callable[..., tuple[int, int]]) -> None:
    """The control: when the writer fences its own CPU alone, there are double entries."""
    rounds, both = run(CONTROL, barrier=False, stop=True)
    if not both:
        pytest.skip(f"no double entry in {rounds} rounds without membarrier: this machine, now, can't show its need")
    print(f"without: {both} double entry in {rounds} rounds")  # noqa: T201  as above
