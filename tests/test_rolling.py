"""The shards on plain words: exact sums, whatever is recorded, reset and read, in whatever order and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from shmlock._rolling import BASE, TRIES, Geometry, Shard, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = 3
SMALL = Geometry(buckets=3, tick_ms=1000, windows=2, ticks=2, highest=1, figures=1)


def table(geometry: Geometry = SMALL, shards: int = SHARDS) -> Table:
    """An empty one."""
    made = Table(memoryview(bytearray(geometry.payload_size(shards))), geometry)
    for number in range(shards):
        made.enlist(number)
    return made


class Machine(RuleBasedStateMachine):
    """Records at a time that only goes on, by owners that come and go."""

    kind: ClassVar[type[Shard]] = Shard

    @initialize()
    def begin(self) -> None:
        """Have three shards, and remember each record."""
        self.table = table()
        self.shards = [self.take(number) for number in range(SHARDS)]
        self.tick = 5
        self.seen: list[tuple[int, int, int]] = []
        self.totals: dict[int, int] = {}

    def take(self, number: int) -> Shard:
        """Own a shard, as somebody new."""
        shard = self.table.shard(number)
        shard.__class__ = self.kind
        return shard

    @rule(ticks=st.sampled_from([1, 1, 2, 3, 7]))
    def wait(self, ticks: int) -> None:
        """Let time go on."""
        self.tick += ticks

    @rule(number=st.integers(0, SHARDS - 1), code=st.sampled_from([100, 200, 599]), latency=st.integers(0, 1_000_000))
    def record(self, number: int, code: int, latency: int) -> None:
        """Count one."""
        self.shards[number].record(self.tick, code, latency)
        self.seen.append((self.tick, code, latency))
        self.totals[code] = self.totals.get(code, 0) + 1

    @rule(number=st.integers(0, SHARDS - 1))
    def replace(self, number: int) -> None:
        """The owner is killed, and another one has its slot."""
        self.shards[number] = self.take(number)

    @rule(number=st.integers(0, SHARDS - 1))
    def die_in_a_record(self, number: int) -> None:
        """The owner is killed before its first store, and another one has its slot."""
        self.table.words[self.shards[number].at] |= 1
        self.shards[number] = self.take(number)

    @rule()
    def reset(self) -> None:
        """Nothing that was recorded counts any more."""
        self.table.rebase(self.tick)
        self.seen.clear()

    @rule(number=st.integers(0, SHARDS - 1))
    def append(self, number: int) -> None:
        """Add what another table has counted now and two ticks ago."""
        other = table()
        for tick in (self.tick - 2, self.tick):
            other.shard(0).record(tick, 200, 77)
            self.seen.append((tick, 200, 77))
        self.totals[200] = self.totals.get(200, 0) + 2
        self.shards[number].add(other.tally(self.tick, latencies=True))

    @rule()
    def read(self) -> None:
        """All that is within the windows, and nothing else."""
        tally = self.table.tally(self.tick, latencies=True)
        codes: dict[int, int] = {}
        latencies: dict[int, int] = {}
        for tick, code, latency in self.seen:
            if tick > self.tick - SMALL.buckets:
                codes[code] = codes.get(code, 0) + 1
            if tick // SMALL.ticks > self.tick // SMALL.ticks - SMALL.windows:
                bucket = SMALL.scale.bucket(latency)
                latencies[bucket] = latencies.get(bucket, 0) + 1
        assert tally.codes() == codes
        assert tally.latencies() == latencies
        assert self.table.tally(self.tick, latencies=False).codes() == codes
        assert self.table.totals() == self.totals

    def teardown(self) -> None:
        """Read once more."""
        if hasattr(self, "table"):
            self.read()


SEARCH = settings(max_examples=60, stateful_step_count=30)
QUICK: dict[str, Any] = {"phases": [Phase.generate], "report_multiple_bugs": False, "print_blob": False}


def test_sums_are_exact() -> None:
    """Each record counts once, in its bucket and its window, until it is too old or was reset."""
    run_state_machine_as_test(Machine, settings=SEARCH)


class NeverClears(Shard):
    """Counts go on where those of an older tick stopped."""

    __slots__ = ()

    def _clear(self, kind: Any, time: int) -> None:
        self.words[self.at + kind.stamp(time)] = time + 1


class ForgetsTheOwner(Shard):
    """A new owner clears what the last one had counted in the same tick."""

    __slots__ = ()

    def _clear(self, kind: Any, time: int) -> None:
        self.words[self.at + kind.stamp(time)] = 0
        super()._clear(kind, time)


@pytest.mark.parametrize("kind", [NeverClears, ForgetsTheOwner])
def test_wrong_sums_are_found(kind: type[Shard]) -> None:
    """A shard with such a fault does not pass: a sum is wrong, or cannot be."""
    wrong = type("Wrong", (Machine,), {"kind": kind})
    with pytest.raises((AssertionError, OverflowError)):
        run_state_machine_as_test(wrong, settings=settings(SEARCH, max_examples=2000, **QUICK))


def test_the_present_is_what_the_fastest_has() -> None:
    """A bucket over which one shard has put the next tick already is past for all: no sum is a part of a sum."""
    both = table()
    first, second = both.shard(0), both.shard(1)
    for tick in (5, 6, 7):
        first.record(tick, 200, 1)
        second.record(tick, 200, 1)
    both.rebase(7)
    first.record(7, 200, 1)
    second.record(8, 200, 1)  # over its 5; who reads thinks that it is 7 still
    assert both.tally(7, latencies=True).codes() == {200: 1}
    assert both.tally(8, latencies=True).codes() == {200: 2}


class Interfering:
    """A payload whose copies of a shard are spoilt by a record, so many times."""

    def __init__(self, payload: memoryview, times: int) -> None:
        self._payload = payload
        self.times = times
        self.shard: Shard | None = None

    def cast(self, kind: str) -> Any:
        """As a memoryview's."""
        return self._payload.cast(kind)  # type: ignore[call-overload]

    def __getitem__(self, where: slice) -> memoryview:
        if self.shard is not None and self.times:
            self.times -= 1
            self.shard.record(5, 200, 1)
        return self._payload[where]


@pytest.mark.parametrize("times", [0, 3, 1000])
def test_a_shard_that_is_stored_to_is_read_again(times: int) -> None:
    """But not for ever: it is not waited for an owner that never stops, or was stopped."""
    payload = Interfering(memoryview(bytearray(SMALL.payload_size(1))), times)
    made = Table(payload, SMALL)
    made.enlist(0)
    payload.shard = made.shard(0)
    payload.shard.record(5, 200, 1)
    codes = made.tally(5, latencies=True).codes()
    assert codes[200] >= 1 + min(times, 3)
    assert payload.times == max(times - TRIES, 0)


def test_each_copy_is_between_two_fences() -> None:
    """Where there is need of a fence: one after the first look at the sequences, one before the second."""
    raw = memoryview(bytearray(SMALL.payload_size(2)))
    steps: list[str] = []

    class Copied:
        def cast(self, kind: str) -> Any:
            return raw.cast(kind)  # type: ignore[call-overload]

        def __getitem__(self, where: slice) -> memoryview:
            steps.append("copy")
            return raw[where]

    made = Table(Copied(), SMALL, lambda: steps.append("fence"))
    made.enlist(1)
    made.tally(5, latencies=True)
    assert steps == ["fence", "copy", "copy", "fence"]


def test_a_baseline_that_is_made_anew_meanwhile_is_read_again() -> None:
    """Two resets while one is copied: the copy may be torn."""
    made = table()
    shard = made.shard(0)
    shard.record(5, 200, 1)
    made.rebase(5)
    raw = made._payload
    resets = iter(range(2))

    class Resetting:
        def __getitem__(self, where: slice) -> memoryview:
            for _ in resets:
                made._payload = raw
                made.rebase(5)
                made._payload = self
            return raw[where]  # type: ignore[no-any-return]

    made._payload = Resetting()
    assert made.tally(5, latencies=True).codes() == {}
    made._payload = raw
    assert made.words[BASE] >> 1 == 3


def geometries() -> Iterator[tuple[Geometry, bool]]:
    """Some that can be, and some that can't."""
    usual = {"buckets": 10, "tick_ms": 1000, "windows": 6, "ticks": 10, "highest": 3600, "figures": 2}
    yield Geometry(**usual), True
    for name, good, bad in (
        ("buckets", (1, 511), (0, 512)),
        ("tick_ms", (1, 262_143), (0, 262_144)),
        ("windows", (1, 127), (0, 128, -1)),
        ("ticks", (1, 4095), (0, 4096)),
        ("highest", (1, 32_767), (0, 32_768)),
        ("figures", (1, 3), (0, 4)),
    ):
        for value in good:
            yield Geometry(**usual | {name: value}), True
        for value in bad:
            yield Geometry(**usual | {name: value}), False


@pytest.mark.parametrize(("geometry", "good"), list(geometries()))
def test_a_geometry_is_one_number(geometry: Geometry, good: bool) -> None:
    """It comes back out of it as it was; one with a part out of its range is an error that names the part."""
    if good:
        assert Geometry.unpacked(geometry.packed()) == geometry
        assert 0 < geometry.packed() < 1 << 64
    else:
        with pytest.raises(ValueError, match="must be from 1 to"):
            geometry.packed()
