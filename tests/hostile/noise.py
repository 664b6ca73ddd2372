"""Noise in shared memory: where it falls, what it is, and all that can be asked of an object afterwards."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import shmlock
from shmlock._kernel import shm
from shmlock._kernel.robust import MUTEX_SPACE
from shmlock._segment.layout import GUARD, LATCH, SEAT, SHARED_AT, SLOTS_AT, slot
from shmlock._segment.words import WORD
from shmlock.errors import ShmlockError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

MOMENT: Final = 0.01  # seconds that a use asks for
PATIENCE: Final = 0.2  # seconds until what asked for no time is interrupted
PARTICIPANTS: Final = 4


class Waits(BaseException):
    """What asked for no time was still waiting when it was interrupted."""


def made(kind: str, name: str, **arguments: Any) -> Any:
    """A small object of this kind."""
    sizes = {"SharedConfig": {"capacity": 500}, "TimerQueue": {"capacity": 20}}
    return getattr(shmlock, kind)(name, max_participants=PARTICIPANTS, **sizes.get(kind, {}), **arguments)


# --- where: (first byte, size)

Place: TypeAlias = tuple[int, int]


def places(made: Any) -> dict[str, Place]:
    """The parts of the object's segment."""
    payload = slot(PARTICIPANTS) * WORD
    parts = {
        "header": (0, SHARED_AT * WORD),
        "guard": (GUARD * WORD, MUTEX_SPACE),
        "guard's line": (GUARD * WORD, 2 * MUTEX_SPACE),
        "seat": (SEAT * WORD, MUTEX_SPACE),
        "shared words": (SEAT * WORD + 2 * MUTEX_SPACE, (SLOTS_AT - SEAT) * WORD - 2 * MUTEX_SPACE),
        "latch": ((slot(0) + LATCH) * WORD, MUTEX_SPACE),
        "latches": ((slot(0) + LATCH) * WORD, slot(PARTICIPANTS - 1) * WORD + MUTEX_SPACE - slot(0) * WORD),
        "slot": (slot(0) * WORD + MUTEX_SPACE, slot(1) * WORD - slot(0) * WORD - MUTEX_SPACE),
        "slots": (slot(0) * WORD, payload - slot(0) * WORD),
    }
    if made._segment.header.payload:
        parts["control"] = (payload, 384)
        parts["payload"] = (payload, made._segment.header.payload)
    return parts


# --- what


def _all_of(byte: int) -> Callable[[random.Random, bytes], bytes]:
    return lambda _dice, old: bytes([byte]) * len(old)


def _random(dice: random.Random, old: bytes) -> bytes:
    return dice.randbytes(len(old))


def _one_byte(dice: random.Random, old: bytes) -> bytes:
    new = bytearray(old)
    new[dice.randrange(len(new))] ^= dice.randrange(1, 256)
    return bytes(new)


def _one_word(dice: random.Random, old: bytes) -> bytes:
    at = dice.randrange(len(old) // WORD) * WORD
    return old[:at] + dice.randbytes(WORD) + old[at + WORD :]


def _small_words(dice: random.Random, old: bytes) -> bytes:
    """Each could be a number of something."""
    return b"".join(dice.randrange(2 * PARTICIPANTS).to_bytes(WORD, "little") for _ in range(len(old) // WORD))


def _one_small_word(dice: random.Random, old: bytes) -> bytes:
    at = dice.randrange(len(old) // WORD) * WORD
    return old[:at] + dice.randrange(64).to_bytes(WORD, "little") + old[at + WORD :]


def _shuffled(dice: random.Random, old: bytes) -> bytes:
    """Words that have been there, elsewhere."""
    words = [old[at : at + WORD] for at in range(0, len(old), WORD)]
    dice.shuffle(words)
    return b"".join(words)


NOISES: Final[dict[str, Callable[[random.Random, bytes], bytes]]] = {
    "zeros": _all_of(0),
    "ones": _all_of(0xFF),
    "random": _random,
    "one byte": _one_byte,
    "one word": _one_word,
    "small words": _small_words,
    "one small word": _one_small_word,
    "shuffled": _shuffled,
}


def overwrite(name: str, place: Place, noise: str, dice: random.Random) -> None:
    """As a program would that has the segment open and writes into it what it should not."""
    start, size = place
    descriptor = os.open(Path(shm.path(f"shmlock.{name}")), os.O_RDWR)
    try:
        old = os.pread(descriptor, size, start)
        os.pwrite(descriptor, NOISES[noise](dice, old), start)
    finally:
        os.close(descriptor)


# --- what is asked


@dataclass(frozen=True)
class Use:
    """Something to ask of an object. `timed`: it says for how long it is ready to wait, or waits for nobody."""

    call: Callable[[], object]
    timed: bool = False


def _acquire(face: Any) -> list[Use]:
    return [Use(lambda: face.acquire(timeout=MOMENT), timed=True), Use(face.release)]


def _with(face: Any) -> Use:
    def use() -> None:
        with face:
            pass

    return Use(use)


def _of_lock(lock: Any) -> list[Use]:
    return [
        _with(lock.reader),
        *_acquire(lock.reader),
        *_acquire(lock.writer),
        Use(lock.writer.acquire_nowait, timed=True),
        Use(lock.writer.release),
        Use(lambda: lock.validate(lock.optimistic_stamp()), timed=True),
        Use(lambda: lock.read_consistent(lambda: 1)),
        Use(lock.mark_consistent),
    ]


def _of_seek_lock(lock: Any) -> list[Use]:
    def convert() -> None:
        with lock.seek_lock(MOMENT):
            if lock.seek_to_write(MOMENT):
                lock.write_to_seek()
            lock.seek_to_read()
            if lock.read_to_write():
                lock.write_to_read()
            if lock.read_to_seek():
                with lock.upgraded(MOMENT):
                    pass

    return [*_of_lock(lock), *_acquire(lock.seeker), Use(convert)]


def _of_mutex(mutex: Any) -> list[Use]:
    return [*_acquire(mutex), Use(mutex.locked, timed=True), *_acquire(mutex), _with(mutex)]


def _of_config(config: Any) -> list[Use]:
    return [
        Use(lambda: config.get(default=None)),
        Use(config.snapshot),
        Use(config.encoded),
        Use(lambda: config.wait(timeout=MOMENT), timed=True),
        Use(lambda: config.take_seat(timeout=MOMENT), timed=True),
        Use(config.updater_alive, timed=True),
        Use(lambda: config.publish([3])),
        Use(lambda: config.get(default=None)),
        Use(config.confirm, timed=True),
        Use(lambda: (config.age, config.version), timed=True),
        Use(config.leave_seat, timed=True),
    ]


def _of_metrics(metrics: Any) -> list[Use]:
    return [
        Use(lambda: metrics.record(200, 0.01)),
        Use(lambda: metrics.record(504, 2.0)),
        Use(metrics.total_count, timed=True),
        Use(metrics.network_error_ratio, timed=True),
        Use(lambda: metrics.latency_histogram().latency_at_quantile(50), timed=True),
        Use(lambda: metrics.latency_histogram().mean(), timed=True),
        Use(metrics.totals, timed=True),
        Use(metrics.latency_sum, timed=True),
        Use(metrics.export, timed=True),
        Use(metrics.reset),
        Use(lambda: metrics.record(200, 0.01)),
    ]


def _of_timers(timers: Any) -> list[Use]:
    def collect() -> None:
        for _ in range(4):
            timers.wake_expired()

    return [
        Use(timers.next_expiry),
        Use(lambda: len(timers)),
        Use(lambda: 3 in timers),
        Use(lambda: timers.expiry(3)),
        Use(lambda: timers.postpone(3, time.monotonic_ns())),
        Use(collect),
        Use(lambda: [timers.schedule(ident, 0) for ident in (3, 30, 31)]),
        Use(lambda: timers.cancel(4)),
        Use(collect),
        Use(lambda: [timers.schedule(ident, 0) for ident in range(40)]),
        Use(collect),
        Use(lambda: len(timers)),
    ]


_USES: Final[dict[str, Callable[[Any], list[Use]]]] = {
    "RWLock": _of_lock,
    "SeekLock": _of_seek_lock,
    "Mutex": _of_mutex,
    "SharedConfig": _of_config,
    "RTMetrics": _of_metrics,
    "TimerQueue": _of_timers,
}
KINDS: Final = list(_USES)

# Ways to hold it, by the attribute that is held; "" is not at all.
HOLDS: Final = {"RWLock": ["", "reader", "writer"], "SeekLock": ["", "reader", "seeker", "writer"]}


def uses(kind: str, made: Any) -> list[Use]:
    """Everything that can be asked of it."""
    return [
        *_USES[kind](made),
        Use(made.statistics, timed=True),
        Use(lambda: repr(made)),
        Use(lambda: made.reap(MOMENT), timed=True),
        Use(made.is_stale, timed=True),
    ]


def attempt(use: Use) -> bool:
    """Whether it came back by itself, with a result or one of our errors. What else it raises is raised.

    One that asks for no time is interrupted after a while, and may be; one that does is not.
    """
    with suppress(ShmlockError, OSError):
        try:
            with nullcontext() if use.timed else interrupted_after(PATIENCE):
                use.call()
        except Waits:
            return False
    return True


def fill(made: Any) -> None:
    """Have something in it."""
    if isinstance(made, shmlock.SharedConfig):
        made.publish([1])
        made.publish([2])
        made.get()
    elif isinstance(made, shmlock.RTMetrics):
        made.record(200, 0.01)
        made.record(404, 0.02)
        made.reset()
        made.record(404, 0.02)
    elif isinstance(made, shmlock.TimerQueue):
        for ident in range(12):
            made.schedule(ident, time.monotonic_ns() + ident % 2 * 3_600_000_000_000)
        made.wake_expired(limit=3)


def _raise(*_: object) -> None:
    raise Waits


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A signal comes, whose handler raises `Waits`, and comes again."""
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def held(made: Any, holding: str) -> Any:
    """Take hold of it in this way: what is to be released."""
    if not holding:
        return None
    face = getattr(made, holding)
    face.acquire()
    return face
