"""2000 timers that 8 processes collect and re-arm: the fourth seed's load, with the seek lock and as it was before."""

from __future__ import annotations

import functools
import os
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import shmlock
from shmlock.bench.crowd import Start, context, gather
from shmlock.bench.scenario import Case, Knob, Knobs, Measure, Scenario, WrongData
from shmlock.bench.scenarios._said import compared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shmlock.bench.samples import Results

    Collect = Callable[[], list[int]]

SEEK: Final = "seek lock"
ONE_BY_ONE: Final = "a write lock for each"

_AHEAD: Final = 200_000_000  # ns from setting the timers to the first of them: the processes are ready by then
_NOBODY_S: Final = 2  # a tag of a batch that never counted
_IN_HANDS: Final = 0  # in place of a timer's time

_turn = count()
_tables: dict[str, str] = {}  # the lock's statistics of the last round, by side


class Served(NamedTuple):
    """What one process did."""

    collected: int
    cpu: float  # seconds
    late: float  # ms, the median of what it collected


def together(timers: shmlock.TimerQueue) -> Collect:
    """Who comes first seeks and collects; the others see that, and leave."""
    return timers.wake_expired


def one_by_one(timers: shmlock.TimerQueue) -> Collect:
    """The pattern that the seek lock replaced: W for each timer that is due, whoever else is doing the same."""
    table, engine, read = timers._table, timers._engine, timers._read  # noqa: SLF001  it is not public any more

    def collect() -> list[int]:
        moment = time.monotonic_ns() + (1 << 63)
        found: list[int] = []

        def take_out() -> bool:
            for entry in table.coming_up(moment, 1):
                taken = table.hand_out(entry, moment, _NOBODY_S)
                if taken is not None:
                    found.append(taken[1])
                return True
            return False

        if read(table.comes_up, moment):
            while engine.change(functools.partial(table.change, take_out)):
                pass
        return found

    return collect


PATTERNS: Final[dict[str, Callable[[shmlock.TimerQueue], Collect]]] = {SEEK: together, ONE_BY_ONE: one_by_one}


def _serve(name: str, pattern: Callable[[shmlock.TimerQueue], Collect], interval: int, times: Any, start: Start) -> Any:
    """Collect and re-arm until the time is over. `times`: when each is due, kept by whoever has it in its hands."""
    timers = shmlock.TimerQueue(name)
    collect = pattern(timers)
    collected, late = 0, []
    start.wait()
    cpu = time.process_time()
    while not start.stopped:
        ids = collect()
        moment = time.monotonic_ns()
        for ident in ids:
            due = times[ident]
            if due == _IN_HANDS:
                raise WrongData(f"timer {ident} was handed out twice")
            if due > moment:
                raise WrongData(f"timer {ident} came {(due - moment) / 1e6:.3f} ms early")
            late.append(moment - due)
            times[ident] = _IN_HANDS
        for ident in ids:
            times[ident] = moment + interval
            timers.schedule(ident, moment + interval)
        collected += len(ids)
        if ids:
            continue
        first = timers.next_expiry()
        time.sleep(0.0005 if first is None else min(max(first - moment, 100_000), 1_000_000) / 1e9)
    cpu = time.process_time() - cpu
    timers.close()  # which says that it has seen the last ones
    return Served(collected, cpu, statistics.median(late) / 1e6 if late else 0.0)


def load(
    side: str,
    pattern: Callable[[shmlock.TimerQueue], Collect],
    number: int,
    interval: int,
    processes: int,
    seconds: float,
) -> Mapping[str, float]:
    """One round. Raises WrongData."""
    timers = shmlock.TimerQueue(f"bench-{os.getpid()}-timers{next(_turn)}", capacity=2 * number)
    try:
        times = context.RawArray("q", number)
        first = time.monotonic_ns() + _AHEAD
        for ident in range(number):
            times[ident] = first + ident * interval // number
            timers.schedule(ident, times[ident])
        before = timers.statistics()
        found = gather([functools.partial(_serve, timers.name, pattern, interval, times)] * processes, seconds)
        after = timers.statistics()
        _check(timers, number)
    finally:
        timers.unlink()
        timers.close()
    _tables[side] = str(after)
    waited = sum(getattr(after, mode).wait_ns - getattr(before, mode).wait_ns for mode in ("write", "seek", "read"))
    collected = sum(served.collected for served in found.results)
    if not collected:
        raise WrongData("no timer came at all")
    return {
        "rate": collected / found.wall,
        "cpu": sum(served.cpu for served in found.results) / collected * 1e6,
        "waiting": waited / 1e9 / found.wall / processes * 100,
        "late": statistics.median(served.late for served in found.results),
    }


def _check(timers: shmlock.TimerQueue, number: int) -> None:
    """All are there to come again."""
    left = timers.wake_expired(now_ns=(1 << 63) - 1)
    lost = set(range(number)) - set(left)
    if lost:
        raise WrongData(f"{len(lost)} of {number} timers were lost, {min(lost)} for one")
    if len(left) != number:
        raise WrongData(f"{len(left)} timers are left of {number}")


def cases(knobs: Knobs) -> list[Case]:
    """Both patterns."""
    _tables.clear()
    interval = int(knobs["milliseconds"] * 1e6)
    return [
        Case(
            side,
            f"{knobs['processes']} processes",
            functools.partial(load, side, pattern, knobs["timers"], interval, knobs["processes"], knobs["seconds"]),
        )
        for side, pattern in PATTERNS.items()
    ]


def answer(results: Results) -> str:
    """What the seek lock changes, and the statistics of both."""
    column = next(iter(results.columns), "")
    share = {side: results.median("waiting", column, side) for side in PATTERNS}
    said = (
        f"With the seek lock the processes spend {share[SEEK]:.2g} % of their time waiting for the lock, and "
        f"{share[ONE_BY_ONE]:.2g} % with a write lock for each element. The seek lock's rate is "
        f"{compared(results, 'rate', column, SEEK, ONE_BY_ONE)}, its CPU for each timer "
        f"{compared(results, 'cpu', column, SEEK, ONE_BY_ONE)}."
    )
    return "\n\n".join([said, *(f"{side}:\n{_tables[side]}" for side in results.sides if side in _tables)])


SCENARIO = Scenario(
    name="timers",
    title="Two thousand timers, collected by eight processes",
    question=(
        "2000 timers each come again 300 ms after they came, and 8 processes all look for those that are due. HAProxy "
        "took a write lock for each element, and spent 5 % of its run time waiting for it; since it takes a seek lock, "
        "who looks while another collects leaves at once. Does that hold here: less waiting, less CPU for each timer, "
        "and no fewer of them?"
    ),
    measures={
        "rate": Measure("timers collected and re-armed", "/s", "more"),
        "cpu": Measure("CPU for each timer", "us"),
        "waiting": Measure("share of the processes' time spent waiting for the lock", "%"),
        "late": Measure("how long after its time a timer is collected", "ms"),
    },
    knobs={
        "timers": Knob(2000, 2000, "timers"),
        "milliseconds": Knob(300.0, 300.0, "until each comes again; the seed has 10, on 8 cores, in C"),
        "processes": Knob(8, 8, "that look"),
        "seconds": Knob(5.0, 1.0, "that a round takes"),
    },
    cases=cases,
    answer=answer,
    rounds=Knob(3, 2, "how often each side is measured"),
    notes=(
        "300 ms instead of the seed's 10 ms is about as much as the old pattern can do on two cores in Python. Of each "
        "timer it is checked that it comes once, not before its time, and is still to come at the end. The tables are "
        "the lock's own statistics of the last round, in the form in which the seed has them."
    ),
)
