"""One lock in one process: what the public rooms use. Whole sections under it, waiting for a change, the registry."""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

from shmlock._engine.acquire import LONGEST_SLICE
from shmlock._engine.holds import Holds
from shmlock._engine.modes import MODE_MASK, QUEUES, SEEK, UPGRADE, WRITE
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._kernel.forks import in_child
from shmlock._segment.layout import PID, READS, SEEKER, WANT, WRITER, slot
from shmlock._segment.noise import Sound
from shmlock.errors import LockTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.participant import Participant
    from shmlock._kernel.parker import Napper, Parker
    from shmlock._segment.segment import Segment

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Engine(Holds):
    """One segment's lock in this process, shared by all handles and threads."""

    # --- sections: interrupted anywhere, the thread holds nothing of them afterwards

    def update(self, prepare: Callable[[], None], commit: Callable[[], None]) -> None:
        """Run `prepare` as a seeker, beside the readers; then `commit` as a writer, alone; then leave.

        Interrupted anywhere, also by an exception of theirs, this thread holds nothing afterwards.
        """
        self._slowly(self._update, prepare, commit)

    def _update(self, me: Participant, prepare: Callable[[], None], commit: Callable[[], None]) -> None:
        self._acquire_exclusive(me, SEEK, FOREVER)
        prepare()
        self._acquire(me, UPGRADE, FOREVER)
        commit()
        self._end_write(me, True, True)

    def change(self, commit: Callable[[], T]) -> T:
        """Run `commit` as a writer, alone. Interrupted anywhere, this thread holds nothing afterwards."""
        return self._slowly(self._change, commit)

    def _change(self, me: Participant, commit: Callable[[], T]) -> T:
        self._acquire_exclusive(me, WRITE, FOREVER)
        result = commit()
        self._end_write(me, False, True)
        return result

    def seek(self, walk: Callable[[], bool], commit: Callable[[], None]) -> None:
        """R to S; then, as long as `walk` finds something, as a seeker, `commit` it as a writer, alone; then leave.

        If somebody else seeks, or is in the queue for it, do nothing and keep the R: seekers never wait for each
        other. If only writers are in the queue, wait for our turn, or nobody would get to seek while they come and
        come; and those that have come meanwhile have theirs after each commit.
        Interrupted anywhere, this thread seeks and writes no more, and may have the R or not.
        """
        self._slowly(self._seek, walk, commit)

    def _seek(self, me: Participant, walk: Callable[[], bool], commit: Callable[[], None]) -> None:
        me.asked = 1 << SEEK
        if not self.guard.run(FOREVER, self._turn_to_seek, me.number):
            return
        if self.words[me.base + WANT]:
            self._wait(me, SEEK, FOREVER)
        self._granted(me, SEEK)
        while walk():
            self._acquire(me, UPGRADE, FOREVER)
            commit()
            self.guard.run(FOREVER, self.state.write_to_seek, me.number, True)
            me.account.unlocked(WRITE)
            if any(want & QUEUES for want in self.state.column(WANT)):
                self._end_seek(me)
                self._acquire(me, SEEK, FOREVER)
        self._end_seek(me)

    def _turn_to_seek(self, number: int) -> bool:
        """Under the guard: R to S, at once or by a want that writers are ahead of; False when others seek.

        Also when this thread reads outside: in a signal handler that it runs, what it looks at must not change.
        """
        words, state = self.words, self.state
        reads = slot(number) + READS
        if words[reads] != 1:  # 0: another thread has closed the last handle
            return False
        if state.try_seek(number):
            words[reads] -= 1
            return True
        if words[SEEKER] or any(want & MODE_MASK == SEEK for want in state.column(WANT)):
            return False
        words[reads] -= 1
        state.ask(number, SEEK)
        return True

    def under_guard(self, action: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run an action of a few stores, which nobody who takes the guard may see half done."""
        return self._aside(self.here, action, *args)

    def vouch(self) -> None:
        """The data are whole, whatever a writer's death left behind."""
        self.under_guard(self.state.vouch)

    def describe(self) -> str:
        """Who holds it, as far as loads without the guard can tell."""
        words = self.words
        parts = []
        for word, doing in ((WRITER, "written"), (SEEKER, "sought in")):
            number = words[word]
            if number:
                with Sound(self.segment.name):
                    parts.append(f"{doing} by process {words[slot(number - 1) + PID]}")
        readers = sum(reads > 0 for reads in self.state.column(READS))
        waiters = sum(want > 0 for want in self.state.column(WANT))
        parts += [f"{readers} reading"] if readers else []
        parts += [f"{waiters} waiting"] if waiters else []
        return ", ".join(parts) or "free"

    # --- waiting for a change

    def watch(self, changed: Callable[[], bool], deadline: Deadline) -> bool:
        """Sleep until `changed()`, woken by `wake_watchers`; False when the deadline came first."""
        try:
            return self._slowly(self._watch, changed, deadline, deadline=deadline)
        except LockTimeout:
            return changed()

    def _watch(self, me: Participant, changed: Callable[[], bool], deadline: Deadline) -> bool:
        bed = self._bed(me)
        try:
            self.guard.run(deadline, self.state.watch, me.number)
            return _slept_until(changed, bed, deadline)
        finally:
            self.state.unwatch(me.number)

    def wake_watchers(self) -> None:
        """Have all that `watch` look again."""
        self.under_guard(self.state.wake_watchers)


def _slept_until(changed: Callable[[], bool], bed: Parker | Napper, deadline: Deadline) -> bool:
    """False when the deadline came first. A function of its own, since `try` does not hold a loop (see guard)."""
    while not changed():
        left = deadline.left()
        if not left:
            return False
        bed.wait(min(left, LONGEST_SLICE))
    return True


_engines: dict[tuple[int, int], Engine] = {}


def engine_of(segment: Segment) -> Engine:
    """The one engine of a segment in this process."""
    return _engines.get(segment.identity) or _engines.setdefault(segment.identity, Engine(segment))


@in_child
def _forget_parent() -> None:
    for engine in list(_engines.values()):
        engine.forget()


@atexit.register
def _leave_quietly() -> None:
    """Spare the others the search for this thread's slots."""
    for engine in list(_engines.values()):
        with suppress(Exception):
            engine.here.__dict__.clear()
