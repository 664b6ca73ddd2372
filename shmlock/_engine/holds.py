"""What becomes of a hold: another one, or nothing.

Whatever is given up is in `Participant.asked` before; should an exception come then, `Membership._slowly` sees to it
that it is given up. A hold that is converted downwards has its R already when that begins, and one that is converted
upwards keeps its R until nothing can go wrong any more: so an exception leaves the one or the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmlock._engine import modes
from shmlock._engine.acquire import Acquisition
from shmlock._engine.modes import READ, SEEK, UPGRADE, WRITE
from shmlock._kernel.deadline import FOREVER, Deadline
from shmlock._segment.header import Kind
from shmlock._segment.layout import READS, SEEKER, WRITER
from shmlock.errors import LockTimeout, NotHeld, WouldDeadlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._engine.participant import Participant
    from shmlock._segment.segment import Segment


class Holds(Acquisition):
    """Converting and giving back."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment)
        self._converts = segment.header.kind == Kind.SeekLock

    # --- converting

    def read_to_seek(self) -> bool:
        """R to S, at once or not at all. False leaves R, and so does an exception."""
        return self._at_once(self._convert_read, SEEK, self.state.try_seek)

    def read_to_write(self) -> bool:
        """R to W, at once or not at all. False leaves R, and so does an exception."""
        return self._at_once(self._convert_read, WRITE, self.state.try_write)

    def _convert_read(self, me: Participant, mode: int, attempt: Callable[[int], bool]) -> bool:
        reads = me.base + READS
        if not self.words[reads]:
            raise self._not_held(READ)
        self._refuse(me, mode, reads=False)
        if not self._try(me, mode, attempt):
            return False
        me.account.unlocked(READ)
        self.words[reads] -= 1  # goes last, so that whoever is interrupted on the way has R, and nothing else
        return True

    def upgrade(self, deadline: Deadline) -> bool:
        """S to W: goes before all that waits, and waits for the other readers. False leaves S."""
        try:
            return self._slowly(self._upgrade, deadline, deadline=deadline)
        except LockTimeout:  # the last upgrade is not settled yet
            return False

    def _upgrade(self, me: Participant, deadline: Deadline) -> bool:
        if self.words[SEEKER] != me.number + 1:
            raise self._not_held(SEEK)
        if self.words[WRITER] == me.number + 1:
            raise WouldDeadlock(f"{self.segment.name}: {modes.conflict(WRITE, reads=False, seeks=True, writes=True)}")
        return self._acquire(me, UPGRADE, deadline)

    def write_to_seek(self, *, vouch: bool) -> None:
        """W to S, without waiting. Interrupted, a W that was an S before is that S again; another one is gone."""
        self._slowly(self._write_to_seek, vouch)

    def _write_to_seek(self, me: Participant, vouch: bool) -> None:
        upgraded = self._check_writes(me)
        me.asked = 1 << WRITE if upgraded else 1 << WRITE | 1 << SEEK
        self.guard.run(FOREVER, self.state.write_to_seek, me.number, vouch)
        me.account.unlocked(WRITE)
        if not upgraded:
            self._granted(me, SEEK)

    def write_to_read(self, *, vouch: bool) -> None:
        """W, and the S that it may come from, to R, without waiting. Interrupted, it is W still or R already."""
        self._slowly(self._write_to_read, vouch)

    def _write_to_read(self, me: Participant, vouch: bool) -> None:
        upgraded = self._check_writes(me)
        # R before the gate can open, and before anything is given up; together with what tells an interruption so.
        self.words[me.base + READS] += 1
        me.downgraded = True
        me.asked = 1 << WRITE | upgraded << SEEK
        self._end_write(me, upgraded, vouch)
        me.account.locked(READ)

    def seek_to_read(self) -> None:
        """S to R, without waiting. Interrupted, it is S still or R already."""
        self._slowly(self._seek_to_read)

    def _seek_to_read(self, me: Participant) -> None:
        self._check_seeks(me)
        self.words[me.base + READS] += 1
        me.downgraded = True
        me.asked = 1 << SEEK
        self._end_seek(me)
        me.account.locked(READ)

    # --- giving back

    def release_write(self, *, vouch: bool) -> None:
        """To S, if W was an S before. Raises NotHeld when this thread, in this process, does not write."""
        self._slowly(self._release_write, vouch)

    def _release_write(self, me: Participant, vouch: bool) -> None:
        self._check_writes(me)
        me.asked = 1 << WRITE
        self.guard.run(FOREVER, self.state.release_write, vouch)
        me.account.unlocked(WRITE)

    def release_seek(self) -> None:
        """Raises NotHeld when this thread, in this process, does not seek, or has upgraded."""
        self._slowly(self._release_seek)

    def _release_seek(self, me: Participant) -> None:
        self._check_seeks(me)
        self._end_seek(me)

    def end(self, mode: int, *, vouch: bool) -> None:
        """The end of a `with` that began with S or W, `mode`: give up what this thread holds, whatever that has become.

        Raises NotHeld if that is nothing; but not in place of an exception that is on its way (then `vouch` is False).
        """
        self._slowly(self._end, mode, vouch)

    def _end(self, me: Participant, mode: int, vouch: bool) -> None:
        words = self.words
        reads = me.base + READS
        if words[WRITER] == me.number + 1:
            self._end_write(me, words[SEEKER] == me.number + 1, vouch)
        elif words[SEEKER] == me.number + 1:
            self._end_seek(me)
        elif words[reads] and me.downgraded:
            words[reads] -= 1
            me.downgraded = False
            me.account.unlocked(READ)
            if not self._others_decide():
                self.guard.run(FOREVER, self.state.decide)
        elif vouch or not self._converts:
            raise self._not_held(mode)

    def give_read_back(self) -> None:
        """Of a handle that was closed while it was waited for."""
        self._slowly(self._give_read_back)

    def _give_read_back(self, me: Participant) -> None:
        me.asked = 1 << READ
        self.words[me.base + READS] = 0
        self.guard.run(FOREVER, self.state.decide)

    def end_read(self, *, vouch: bool) -> None:
        """The end of a `with` that began with R, and finds none: the same, if the lock is one that converts."""
        if not self._converts or self.me().number < 0:
            self._check_idle()
            raise self._not_held(READ)
        self.end(READ, vouch=vouch)

    def must_end(self) -> bool:
        """Whether there is something for `end` to give up."""
        return self.holds(WRITER) or self.holds(SEEKER) or self.me().downgraded

    def _end_write(self, me: Participant, upgraded: bool, vouch: bool) -> None:
        me.asked = 1 << WRITE | upgraded << SEEK
        self.guard.run(FOREVER, self.state.release_upgraded, me.number, vouch)
        me.account.unlocked(WRITE)
        if upgraded:
            me.account.unlocked(SEEK)

    def _end_seek(self, me: Participant) -> None:
        me.asked = 1 << SEEK
        self.guard.run(FOREVER, self.state.release_seek)
        me.account.unlocked(SEEK)

    def _check_writes(self, me: Participant) -> bool:
        """Whether W was an S before. Raises NotHeld when this thread does not write."""
        if self.words[WRITER] != me.number + 1:
            raise self._not_held(WRITE)
        return self.words[SEEKER] == me.number + 1

    def _check_seeks(self, me: Participant) -> None:
        if self.words[SEEKER] != me.number + 1:
            raise self._not_held(SEEK)
        if self.words[WRITER] == me.number + 1:
            raise NotHeld(f"{self.segment.name}: this thread has upgraded its seek to a write: write_to_seek() first")

    def check_reads(self) -> None:
        """Raises NotHeld when this thread, in this process, does not read."""
        self._check_idle()
        me = self.me()
        if me.number < 0 or not self.words[me.base + READS]:
            raise self._not_held(READ)
