"""What a process plays: a worker that does everything with the shared objects, or one that makes and removes others."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NoReturn

import shmlock
from shmlock._engine.modes import READ, SEEK, WRITE
from tests.ending import die_with
from tests.soak.board import COUNT, DOING, LEFT, LIVES, LOCKS, RIGHT, Board, Fields
from tests.soak.checks import Desk, Exclusion, Fairness, Publications, Timers, counted
from tests.soak.plan import dice_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

RW, SEEKABLE, MUTEX = range(3)
DESKS: Final = 3  # of one process: two threads, and a forked child
PARTICIPANTS: Final = 64
CHURNED: Final = 3  # names that are made and removed
_SHORT: Final = 0.003  # seconds: a time-out that often comes
_MODES: Final = {"read": READ, "seek": SEEK, "write": WRITE}
_WAYS_DOWN: Final = (
    ("seek", "read"),
    ("seek", "write", "read"),
    ("write", "seek"),
    ("write", "read"),
    ("write", "seek", "read"),
)


@dataclass
class Objects:
    """One process's handles on what all share."""

    rw: shmlock.RWLock
    seek: shmlock.SeekLock
    mutex: shmlock.Mutex
    config: shmlock.SharedConfig
    metrics: shmlock.RTMetrics
    timers: shmlock.TimerQueue

    def all(self) -> list[Any]:
        """Each of them."""
        return [self.rw, self.seek, self.mutex, self.config, self.metrics, self.timers]

    def counts(self, board: Board) -> dict[str, int]:
        """What each says that has been done."""
        said = {name: board.words[board.place(lock) + COUNT] for lock, name in enumerate(LOCKS)}
        return {**said, "publish": self.config.version, "record": sum(self.metrics.totals().values())}


def open_objects(name: str, on_owner_died: Any = "flag") -> Objects:
    """Create them, or attach."""
    policy: dict[str, Any] = {"max_participants": PARTICIPANTS, "on_owner_died": on_owner_died}
    return Objects(
        rw=shmlock.RWLock(f"{name}.rw", **policy),
        seek=shmlock.SeekLock(f"{name}.seek", **policy),
        mutex=shmlock.Mutex(f"{name}.mutex"),
        config=shmlock.SharedConfig(f"{name}.config", max_participants=PARTICIPANTS, capacity=1 << 16),
        metrics=shmlock.RTMetrics(f"{name}.metrics", max_participants=PARTICIPANTS),
        timers=shmlock.TimerQueue(f"{name}.timers", max_participants=PARTICIPANTS),
    )


@dataclass(frozen=True)
class Part:
    """What a process is told when it begins. `desk` and `life`: the first of those that it has."""

    board: Board
    name: str
    seed: int
    desk: int
    life: int
    threads: int
    steps: int
    opener: Callable[..., Objects] = open_objects
    lasts: bool = False  # to the end of the run, whatever its steps


class _Unmended(Exception):  # noqa: N818  not an error: a writer that leaves what it found as it is
    pass


class Worker:
    """One thread that does everything."""

    def __init__(self, part: Part, number: int, objects: Objects) -> None:
        """`number`: of the process's desks and lives, 0 for the main thread."""
        self._part = part
        self._board = board = part.board
        self._dice = dice_of(part.seed, part.life + number)
        self._desk = desk = Desk(board, part.desk + number, part.life + number)
        self._lives = LIVES - DESKS  # of children to come
        desk.sit()
        self._exclusion = [Exclusion(desk, lock) for lock in range(len(LOCKS))]
        self._publications = Publications(desk)
        self._take(objects)
        steps = STEPS if number == 0 else {name: weight for name, weight in STEPS.items() if name not in ALONE}
        self._names, self._weights = list(steps), list(steps.values())

    def _take(self, objects: Objects) -> None:
        self._objects = objects
        self._fairness = [Fairness(self._desk, RW, objects.rw), Fairness(self._desk, SEEKABLE, objects.seek)]
        self._timers = Timers(self._desk, objects.timers)

    # --- going on

    def run(self, going: Callable[[], bool]) -> None:
        """Take steps until they are done, or all are to end."""
        board, desk = self._board, self._desk
        left = self._part.steps
        look_at = 0.0
        while (left > 0 or self._part.lasts) and not board.ending and going():
            left -= 1
            name = self._dice.choices(self._names, self._weights)[0]
            desk.begins(name)
            with suppress(shmlock.LockTimeout):
                getattr(self, f"_{name}")()
            desk.add(Fields.STEPS)
            if self._part.lasts and board.warm and time.monotonic() > look_at:
                look_at = time.monotonic() + 1
                look_at_resources(board, desk.base)

    def leave(self) -> None:
        """Nobody sits here any more."""
        for fairness in self._fairness:
            fairness.leaves()
        self._desk.leave()

    def _pause(self) -> None:
        """What is done inside."""
        chance = self._dice.random()
        if chance > 0.97:
            time.sleep(self._dice.uniform(0, 0.005))
        elif chance > 0.8:
            time.sleep(self._dice.uniform(0, 0.0005))
        elif chance > 0.5:
            os.sched_yield()

    @contextmanager
    def _inside(self, lock: int, entry: AbstractContextManager[Any], mode: int) -> Iterator[Any]:
        """Hold the lock, noted at the board."""
        exclusion = self._exclusion[lock]
        fairness = self._fairness[lock] if lock != MUTEX else None
        asked_at = time.monotonic_ns()
        with ExitStack() as stack:
            if fairness is not None:
                fairness.asks()
            try:
                hold = stack.enter_context(entry)
            finally:
                if fairness is not None:
                    fairness.asked()
            exclusion.entered(mode, asked_at)
            try:
                if fairness is not None and mode == WRITE:
                    fairness.wrote()
                elif fairness is not None and mode == READ and lock == RW:
                    fairness.read()
                yield hold
            finally:
                exclusion.leaving()

    def _entry(self, lock: Any, mode: str) -> AbstractContextManager[Any]:
        """For ever, or with a time-out."""
        if self._dice.random() < 0.7:
            return getattr(lock, {"read": "reader", "write": "writer", "seek": "seeker"}[mode])  # type: ignore[no-any-return]
        timeout = self._dice.choice((0, self._dice.uniform(0, _SHORT), 1))
        return getattr(lock, f"{mode}_lock")(timeout)  # type: ignore[no-any-return]

    def _either(self) -> tuple[int, Any]:
        """One of the two locks that are read."""
        return self._dice.choice(((RW, self._objects.rw), (SEEKABLE, self._objects.seek)))

    # --- one mode

    def _read(self) -> None:
        lock, opened = self._either()
        with self._inside(lock, self._entry(opened, "read"), READ) as hold:
            self._exclusion[lock].look_at_data(hold.owner_died, self._pause)
            if self._dice.random() < 0.2:
                with opened.reader:  # never waits, whoever does
                    self._exclusion[lock].look_at_data(hold.owner_died, self._pause)

    def _write(self) -> None:
        lock, opened = self._either()
        with suppress(_Unmended), self._inside(lock, self._entry(opened, "write"), WRITE) as hold:
            self._leave_it_to_the_next(hold.owner_died)
            self._exclusion[lock].write(hold.owner_died, self._pause)

    def _leave_it_to_the_next(self, owner_died: bool) -> None:
        if owner_died and self._dice.random() < 0.2:
            raise _Unmended

    def _write_nowait(self) -> None:
        lock, opened = self._either()
        with ExitStack() as stack:
            if not opened.writer.acquire_nowait():
                return
            stack.callback(opened.writer.release)
            self._exclusion[lock].entered(WRITE, 0)
            try:
                self._fairness[lock].wrote()
                self._exclusion[lock].write(opened.writer.owner_died, self._pause)
            finally:
                self._exclusion[lock].leaving()

    def _write_and_read_on(self) -> None:
        """W to R, by nesting."""
        lock, opened = self._either()
        exclusion = self._exclusion[lock]
        asked_at = time.monotonic_ns()
        opened.writer.acquire()
        exclusion.entered(WRITE, asked_at)
        exclusion.write(opened.writer.owner_died, self._pause)
        with opened.reader:
            exclusion.turned(READ)
            opened.writer.release()
            exclusion.look_at_data(opened.reader.owner_died, self._pause)
            exclusion.leaving()

    def _look_beside(self) -> None:
        lock, opened = self._either()
        self._exclusion[lock].look_beside(opened, self._pause)

    def _read_consistently(self) -> None:
        lock, opened = self._either()
        place, words = self._board.place(lock), self._board.words

        def look() -> tuple[int, int, bool]:
            owner_died = opened.reader.owner_died
            return words[place], words[place + 1], owner_died

        left, right, owner_died = opened.read_consistent(look)
        if left != right and not owner_died:
            self._desk.fault("exclusion", f"{LOCKS[lock]}: read_consistent has seen {left} and {right}")

    def _lock_mutex(self) -> None:
        mutex = self._objects.mutex
        exclusion = self._exclusion[MUTEX]
        if self._dice.random() < 0.5:
            with self._inside(MUTEX, mutex, WRITE):
                exclusion.write(mutex.owner_died, self._pause)
        elif mutex.acquire(timeout=self._dice.choice((0, _SHORT, 1))):
            exclusion.entered(WRITE, 0)
            exclusion.write(mutex.owner_died, self._pause)
            exclusion.leaving()
            mutex.release()
        else:
            mutex.locked()

    # --- conversions

    def _seek(self) -> None:
        lock, exclusion = self._objects.seek, self._exclusion[SEEKABLE]
        with self._inside(SEEKABLE, self._entry(lock, "seek"), SEEK) as hold:
            exclusion.look_at_data(hold.owner_died, self._pause)

    def _upgrade(self) -> None:
        lock, exclusion = self._objects.seek, self._exclusion[SEEKABLE]
        with self._inside(SEEKABLE, self._entry(lock, "seek"), SEEK):
            for _ in range(self._dice.choice((1, 1, 3))):
                with suppress(_Unmended), lock.upgraded(self._dice.choice((None, 0, _SHORT))) as hold:
                    exclusion.turned(WRITE)
                    try:
                        self._fairness[SEEKABLE].wrote()
                        self._leave_it_to_the_next(hold.owner_died)
                        exclusion.write(hold.owner_died, self._pause)
                    finally:
                        exclusion.turned(SEEK)
                exclusion.look_at_data(lock.seeker.owner_died, self._pause)

    def _convert_down(self) -> None:
        """S or W to what is less, by each way."""
        lock, exclusion = self._objects.seek, self._exclusion[SEEKABLE]
        way = self._dice.choice(_WAYS_DOWN)
        with self._inside(SEEKABLE, self._entry(lock, way[0]), _MODES[way[0]]) as hold:
            if way[0] == "write":
                exclusion.write(hold.owner_died, self._pause)
            for before, after in pairwise(way):
                if after == "write":
                    if not lock.seek_to_write(self._dice.choice((None, _SHORT))):
                        return
                    exclusion.turned(WRITE)
                    self._fairness[SEEKABLE].wrote()
                    exclusion.write(lock.writer.owner_died, self._pause)
                else:
                    exclusion.turned(_MODES[after])
                    getattr(lock, f"{before}_to_{after}")()
                    exclusion.look_at_data(lock.reader.owner_died, self._pause)

    def _convert_up(self) -> None:
        """R to S or W, if it can be had at once."""
        lock, exclusion = self._objects.seek, self._exclusion[SEEKABLE]
        with self._inside(SEEKABLE, lock.reader, READ):
            if self._dice.random() < 0.5:
                if lock.read_to_seek():
                    exclusion.turned(SEEK)
                    exclusion.look_at_data(lock.seeker.owner_died, self._pause)
                    if self._dice.random() < 0.5:
                        exclusion.turned(READ)
                        lock.seek_to_read()
            elif lock.read_to_write():
                exclusion.turned(WRITE)
                self._fairness[SEEKABLE].wrote()
                exclusion.write(lock.writer.owner_died, self._pause)
                if self._dice.random() < 0.5:
                    exclusion.turned(READ)
                    lock.write_to_read()

    # --- what is built on locks

    def _publish(self) -> None:
        self._publications.publish(self._objects.config, int(self._dice.choice((1, 100, 20_000))))

    def _read_config(self) -> None:
        config, publications = self._objects.config, self._publications
        newest = publications.newest()
        config.get(default=None)
        if config.version:
            publications.check(config.snapshot(), newest)

    def _wait_for_config(self) -> None:
        config, publications = self._objects.config, self._publications
        newest = publications.newest()
        snapshot = config.wait(timeout=self._dice.uniform(0, _SHORT))
        if snapshot is not None:
            publications.check(snapshot, newest)

    def _record(self) -> None:
        for _ in range(self._dice.randrange(1, 20)):
            self._desk.meant("record")
            self._objects.metrics.record(self._dice.choice((200, 404, 504)), self._dice.expovariate(10))
            self._desk.done("record")

    def _count(self) -> None:
        """All that is counted, at any moment."""
        for wrong in counted(self._board, partial(self._objects.counts, self._board)):
            self._desk.fault("counts", wrong)

    def _set_timers(self) -> None:
        for _ in range(self._dice.randrange(1, 4)):
            self._timers.set(int(self._dice.choice((0, self._dice.expovariate(1e-7)))))

    def _move_timers(self) -> None:
        if self._timers.open:
            serial = self._dice.choice(self._timers.open)
            if self._dice.random() < 0.5:
                self._timers.postpone(serial, int(self._dice.expovariate(1e-7)))
            else:
                self._timers.cancel(serial)

    def _wake_timers(self) -> None:
        self._timers.collect(self._dice.choice((None, 1, 8)))
        self._objects.timers.next_expiry()

    # --- coming and going

    def _look_around(self) -> None:
        """What a supervisor does."""
        for opened in self._objects.all():
            assert repr(opened)
            opened.reap(timeout=1)
        str(self._objects.rw.statistics())

    def _reopen(self) -> None:
        """Give up the slots, and come back."""
        if self._part.threads > 1 or self._part.opener is not open_objects:
            return
        for fairness in self._fairness:
            fairness.leaves()
        close(self._objects)
        self._timers.seen()
        self._take(self._part.opener(self._part.name, _policy(self._part, self._dice)))

    def _fork(self) -> None:
        """A child that has none of our holds, and takes its own; often killed."""
        if not self._lives:
            return
        self._lives -= 1
        life = self._part.life + DESKS + self._lives
        lock, opened = self._either()
        inside = self._dice.random() < 0.5
        with ExitStack() as stack:
            if inside:
                stack.enter_context(self._inside(lock, opened.reader, READ))
            pid = forked(partial(self._be_forked, life, opened, inside=inside), self._board)
            end = time.monotonic() + self._dice.choice((self._dice.uniform(0, 0.005), 60))
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    self._board.note_kill(life)
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    break
                self._board.words[self._desk.base + Fields.BEAT] = time.monotonic_ns()
                time.sleep(0.0005)

    def _be_forked(self, life: int, opened: Any, *, inside: bool) -> None:
        if inside:
            try:
                opened.reader.release()
            except shmlock.NotHeld:
                pass
            else:
                self._desk.fault("exclusion", "a forked child could release its parent's hold")
        part = Part(
            self._part.board, self._part.name, self._part.seed,
            desk=self._part.desk + 2, life=life, threads=1, steps=0 if inside else 30, opener=self._part.opener,
        )  # fmt: skip
        child = Worker(part, 0, self._objects)
        child._lives = 0
        if inside:  # it must not wait for its parent, which waits for it
            if opened.writer.acquire(timeout=0):
                opened.writer.release()
                # What a killed process holds is free while its memory is being given back, and its children end after.
                assert self._board.was_killed(self._part.life), "the parent's hold is gone, and the parent is not"
            lock = RW if opened is self._objects.rw else SEEKABLE
            with suppress(shmlock.LockTimeout), child._inside(lock, opened.read_lock(_SHORT), READ):
                pass
        else:
            child._names = [name for name in child._names if name not in ALONE]
            child._weights = [STEPS[name] for name in child._names]
            child.run(lambda: True)
        child.leave()
        if self._dice.random() < 0.5:
            self._board.note_kill(life)
        else:
            close(self._objects)

    def _perhaps_hold(self) -> None:
        """Write, in one of two cases."""
        lock, opened = self._either()
        asked_at = time.monotonic_ns()
        if self._dice.random() < 0.5:
            opened.writer.acquire()
            self._exclusion[lock].entered(WRITE, asked_at)

    def _exec(self) -> None:
        """Be another program, perhaps with a hold: it is a death."""
        if self._part.lasts or not self._lives or self._part.opener is not open_objects:
            return
        self._lives = 0
        self._perhaps_hold()
        _note_death(self._part)
        self._board.words[self._desk.base + Fields.BEAT] = time.monotonic_ns()
        os.execv("/bin/sleep", ["sleep", str(self._dice.uniform(0, 0.05))])

    def _die(self) -> None:
        """End without a word, perhaps with a hold."""
        if self._part.lasts:
            return
        self._perhaps_hold()
        _note_death(self._part)
        os._exit(0)


STEPS: Final = {
    "read": 25,
    "write": 15,
    "write_nowait": 3,
    "write_and_read_on": 3,
    "look_beside": 5,
    "read_consistently": 3,
    "lock_mutex": 8,
    "seek": 8,
    "upgrade": 8,
    "convert_down": 6,
    "convert_up": 6,
    "publish": 6,
    "read_config": 8,
    "wait_for_config": 2,
    "record": 6,
    "count": 1,
    "set_timers": 6,
    "move_timers": 2,
    "wake_timers": 6,
    "look_around": 0.3,
    "reopen": 0.3,
    "fork": 0.5,
    "exec": 0.1,
    "die": 0.1,
}
ALONE: Final = {"reopen", "fork", "exec", "die"}  # of the main thread
DOING.extend([*STEPS, "churn"])


# --- processes


_OURS: Final = (signal.SIGINT, signal.SIGTERM)


def forked(play: Callable[[], None], board: Board) -> int:
    """Play in a forked child, which ends with this process, and tells of whatever goes wrong: its process id."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal for the child that comes before it is ready must not run its parent's handlers, in its parent's place.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)
    try:
        with warnings.catch_warnings():
            # From 3.12 on fork warns of the parent's other threads. What they do to a child is what we test.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            _be(play, board, parent)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be(play: Callable[[], None], board: Board, parent: int) -> NoReturn:
    code = 1
    try:
        die_with(parent)
        for number in _OURS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OURS)
        prepare(board)
        play()
        code = 0
    except BaseException:  # noqa: BLE001  the conductor is told, whatever it was
        board.fault("error", traceback.format_exc())
    finally:
        os._exit(code)


def prepare(board: Board) -> None:
    """What each process does at first: tell on SIGUSR1 where all of its threads are, and of no death that was meant."""
    os.dup2(board.files[2], 2)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    logging.getLogger("shmlock").setLevel(logging.ERROR)


def _policy(part: Part, dice: random.Random) -> Any:
    """What a process does about a writer's death: it looks itself, or has its handles mend."""
    if dice.random() < 0.7:
        return "flag"
    words = part.board.words

    def mend(lock: shmlock.RWLock) -> None:
        place = part.board.place(SEEKABLE if isinstance(lock, shmlock.SeekLock) else RW)
        words[place + RIGHT] = words[place + LEFT]

    return mend


def work(part: Part) -> None:
    """A process with one worker or two."""
    dice = dice_of(part.seed, part.life + 2)
    objects = part.opener(part.name, _policy(part, dice))
    main = Worker(part, 0, objects)
    ended = threading.Event()

    def second() -> None:
        try:
            other = Worker(part, 1, objects)
            other.run(lambda: not ended.is_set())
            other.leave()
        except BaseException:  # noqa: BLE001  the conductor is told, whatever it was
            part.board.fault("error", traceback.format_exc())
            _note_death(part)
            os._exit(1)

    thread = threading.Thread(target=second)
    if part.threads > 1:
        thread.start()
    try:
        main.run(lambda: True)
        ended.set()
        if part.threads > 1:
            thread.join()
        main.leave()
    except BaseException:  # a fault of its own, and not everybody else's, too
        _note_death(part)
        raise
    if dice.random() < 0.3 and not part.lasts:  # its slots are left to the others
        _note_death(part)
    else:
        close(main._objects)  # which may have been opened anew


inherited: Final[list[Objects]] = []
"""The parent's handles, which a forked child has as well, and which would keep its slots when it closes its own."""


def close(objects: Objects) -> None:
    """Give up all handles."""
    for handles in (objects, *inherited):
        for opened in handles.all():
            opened.close()


def _note_death(part: Part) -> None:
    """This process is about to end without having left."""
    for life in range(DESKS):
        part.board.note_kill(part.life + life)


_CHURNED: Final[tuple[Callable[..., Any], ...]] = (
    partial(shmlock.RWLock, max_participants=8),
    partial(shmlock.SharedConfig, max_participants=8, capacity=1000),
    partial(shmlock.TimerQueue, max_participants=8, capacity=8),
)


def churn(part: Part) -> None:
    """Create, attach to, use, reap and unlink what others do the same with."""
    dice, board = dice_of(part.seed, part.life), part.board
    desk = Desk(board, part.desk, part.life)
    desk.sit()
    for _ in range(min(part.steps, 100)):
        if board.ending:
            break
        desk.begins("churn")
        with suppress(shmlock.LockTimeout, shmlock.SegmentNotFound):
            _churn(f"{part.name}.churn", dice)
        desk.add(Fields.STEPS)
    desk.leave()


def _churn(name: str, dice: random.Random) -> None:
    number = dice.randrange(len(_CHURNED))
    name = f"{name}{number}"
    opened = _CHURNED[number](name, create=dice.random() < 0.7)
    if isinstance(opened, shmlock.RWLock):
        with opened.write_lock(1), suppress(shmlock.WouldDeadlock):
            pass
        with opened.read_lock(1):
            pass
    elif isinstance(opened, shmlock.SharedConfig):
        version = opened.publish(dice.random())
        assert opened.version >= version
        assert isinstance(opened.get(), float)
    else:
        with suppress(shmlock.QueueFull):
            opened.schedule(dice.randrange(8), time.monotonic_ns())
        opened.wake_expired()
    assert repr(opened)
    chance = dice.random()
    if chance < 0.2:
        opened.unlink()
    elif chance < 0.3:
        shmlock.unlink(name)
    elif chance < 0.5:
        opened.reap(timeout=1)
    if dice.random() < 0.7:
        opened.close()


def stranger(part: Part) -> NoReturn:
    """In a forked child: a worker in an interpreter of its own."""
    board = part.board
    for descriptor in board.files:
        os.set_inheritable(descriptor, True)
    numbers = (*board.files, board.desks, part.seed, part.desk, part.life, part.threads, part.steps, os.getppid())
    os.execv(sys.executable, [sys.executable, "-m", "tests.soak.stranger", part.name, *map(str, numbers)])


def look_at_resources(board: Board, desk: int) -> None:
    """Descriptors and private memory of this process, at the first look and now."""
    words = board.words
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123  a file of the kernel's
        private = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  a folder of the kernel's
    first = 0 if not words[desk + Fields.FILES] else 1
    words[desk + Fields.FILES + first] = files
    words[desk + Fields.MEMORY + first] = private
