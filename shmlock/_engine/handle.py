"""A process's handle on a shared object: what all kinds have in common."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from shmlock._kernel.deadline import Deadline
from shmlock._kernel.interrupts import begins_at_once
from shmlock._segment.header import Kind, Plan
from shmlock._segment.layout import MOST_PARTICIPANTS
from shmlock._segment.segment import check_name, open_segment, opening
from shmlock.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shmlock._segment.segment import Segment

DEFAULT_PARTICIPANTS = 256


class Closed:
    """Stands in for whatever a closed handle used: every use of it raises ClosedError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise ClosedError(f"{self._name}: this handle was closed")

    def __getitem__(self, index: object) -> NoReturn:
        raise ClosedError(f"{self._name}: this handle was closed")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise ClosedError(f"{self._name}: this handle was closed")


class Handle:
    """Open, close, unlink, pickle by name. Subclasses say what a segment of their kind is."""

    _kind: ClassVar[Kind]
    _engine: Any  # Engine or MutualExclusion: leave() and reap() are what it is asked for here

    def __init__(
        self,
        name: str,
        *,
        create: bool,
        mode: int,
        owner: tuple[int, int] | None,
        max_participants: int | None,
        capacity: int | None = None,
        option: int | None = None,
        option_name: str = "option",
        option_values: tuple[str, ...] = (),
        defaults: tuple[int, int] = (0, 0),
        payload_size: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self._name = check_name(name)
        self._owner = _check_owner(owner)
        self._segment: Segment = open_segment(
            name,
            Plan(
                self._kind,
                _check_participants(max_participants),
                capacity,
                option,
                option_name,
                option_values,
            ),
            create=create,
            mode=_check_mode(mode),
            owner=owner,
            defaults=(DEFAULT_PARTICIPANTS, *defaults),
            payload_size=payload_size,
        )
        handles = self._segment.handles
        with opening():
            handles.add(weakref.ref(self, handles.discard))

    @property
    def name(self) -> str:
        """The name it was opened with."""
        return self._name

    def close(self) -> None:
        """Give up, with this process's last open handle, all that its threads hold here, and their slots.

        Every later use raises ClosedError, and so does one by another thread that is under way, or waits: it has
        nothing then. Closing again does nothing. The memory stays mapped until the process ends.
        """
        if isinstance(self._segment, Closed):
            return
        self._close_surely(self._segment.handles, self._leaving())

    @begins_at_once
    def _close_surely(self, handles: set[weakref.ref[Any]], leave: Callable[[], None]) -> None:
        """Also when it is interrupted: nobody could give up afterwards what is left."""
        try:
            self._part(handles, leave)
        except BaseException:
            self._part(handles, leave)  # what has been shut, or given up, is no matter
            raise

    def _part(self, handles: set[weakref.ref[Any]], leave: Callable[[], None]) -> None:
        # Shut first: what another thread gets by it meanwhile is given up either with the rest, or by that thread,
        # which looks then whether it was shut.
        self._shut(Closed(self._name))
        handles.discard(weakref.ref(self))
        leave()

    def _leaving(self) -> Callable[[], None]:
        """What gives up all that the process holds, unless others have it open."""
        leave: Callable[[], None] = self._engine.leave
        return leave

    def _shut(self, closed: Any) -> None:
        """Make every later use raise."""
        self._segment = self._engine = closed

    def reap(self, timeout: float | None = None) -> int:
        """Evict participants that have died, now instead of when somebody waits for them: how many.

        Nobody needs to call it; a supervisor that hears of a death does well to. With a `timeout` in seconds it
        raises LockTimeout when a process that was stopped in the middle of a change keeps it waiting that long.
        """
        return len(self._engine.reap(Deadline.after(timeout)))

    def unlink(self) -> None:
        """Remove the segment's name and its semaphores' names, if they still mean this segment.

        Those that have it open go on among themselves; a new object of this name is another one.
        """
        self._segment.unlink()

    def is_stale(self) -> bool:
        """Whether the name is gone, or means another segment by now."""
        return self._segment.is_stale()

    def __enter__(self) -> Self:
        self._segment.is_stale  # noqa: B018  raises ClosedError after close()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _arguments(self) -> dict[str, Any]:
        """Keyword arguments with which an unpickled handle attaches."""
        return {"create": False, "owner": self._owner}

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        self._segment.is_stale  # noqa: B018  raises ClosedError after close()
        return functools.partial(type(self), self._name, **self._arguments()), ()

    def _describe(self) -> str:
        """What `repr` tells beside the name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        if isinstance(self._segment, Closed):
            state = "closed"
        else:
            state = self._describe() + (", its name is gone" if self.is_stale() else "")
        return f"<shmlock.{type(self).__name__} {self._name!r}: {state}>"


def _check_owner(owner: tuple[int, int] | None) -> tuple[int, int] | None:
    if owner is None or (
        isinstance(owner, tuple) and len(owner) == 2 and all(isinstance(part, int) and part >= 0 for part in owner)
    ):
        return owner
    raise ValueError(f"owner must be (uid, gid), not {owner!r}")


def _check_mode(mode: int) -> int:
    if isinstance(mode, int) and 0 <= mode <= 0o777:
        return mode
    raise ValueError(f"mode must be permission bits like 0o600, not {mode!r}")


def _check_participants(participants: int | None) -> int | None:
    if participants is None or (isinstance(participants, int) and 1 <= participants <= MOST_PARTICIPANTS):
        return participants
    raise ValueError(f"max_participants must be from 1 to {MOST_PARTICIPANTS}, not {participants!r}")
