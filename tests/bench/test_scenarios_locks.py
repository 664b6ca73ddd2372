"""The scenarios of locks: the shape of what they find, and that they do find what is wrong."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from shmlock.bench.peers.files import Again
from shmlock.bench.peers.ours import ShmlockRWLock
from shmlock.bench.peers.prwlock_lock import RWLock
from shmlock.bench.peers.standard import Lock
from shmlock.bench.runner import run
from shmlock.bench.scenario import WrongData
from shmlock.bench.scenarios import fairness, mix, read, record, recovery, scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shmlock.bench.peers import Context, Peer
    from shmlock.bench.samples import Results

    Only = Callable[..., None]

TINY: dict[str, dict[str, Any]] = {
    "mix": {"workers": 4, "iterations": 4, "rounds": 1},
    "read": {"processes": (1, 2), "seconds": 0.03, "rounds": 1},
    "record": {"processes": (1, 2), "seconds": 0.03, "rounds": 1},
    "fairness": {"crowd": 2, "seconds": 0.05, "patience": 0.3, "rounds": 1},
    "recovery": {"kills": 1, "settle": 10, "patience": 0.3, "rounds": 1},
}


class NoLock(Lock):
    """Lets everybody in."""

    name: ClassVar = "no lock"

    def opened(self) -> tuple[Context, Context]:
        """Nothing at all."""
        return nullcontext(), nullcontext()


class LateLock(Lock):
    """Lets a writer in after half a second."""

    name: ClassVar = "late lock"

    def opened(self) -> tuple[Context, Context]:
        """Readers are never in anyone's way."""
        return nullcontext(), Again(_late)


@contextmanager
def _late() -> Iterator[None]:
    time.sleep(0.5)
    yield


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    """Have no other peers than these."""

    def set_peers(*kinds: type[Peer]) -> None:
        monkeypatch.setattr("shmlock.bench.peers.peers", lambda: list(kinds))

    return set_peers


def found(name: str, **knobs: Any) -> Results:
    """What a scenario finds in a tiny run."""
    chosen = scenario(name)
    return run(chosen, chosen.turned(quick=True, given=TINY[name] | knobs))


@pytest.mark.parametrize(
    ("name", "columns", "sides"),
    [
        ("mix", {"80/20", "20/80", "50/50"}, {"shmlock.RWLock", "multiprocessing.Lock"}),
        ("read", {"1", "2"}, {"shmlock.RWLock", "multiprocessing.Lock", read.OPTIMISTIC, read.VERSIONED}),
        ("record", {"1", "2"}, {record.BEFORE, record.AFTER, record.OURS}),
        ("fairness", {fairness.WRITER, fairness.READER}, {"shmlock.RWLock", "multiprocessing.Lock"}),
        ("recovery", {recovery.READER, recovery.WRITER}, {"shmlock.RWLock", "multiprocessing.Lock"}),
    ],
)
def test_the_shape_of_results(name: str, columns: set[str], sides: set[str], only: Only) -> None:
    """Each side has a positive value of each measure in each column, once a round; and all of it is valid JSON."""
    only(ShmlockRWLock, Lock)
    results = found(name)
    assert results.faults == []
    own = {name for name, measure in results.scenario.measures.items() if measure.columns}
    measures = set(results.scenario.measures) - own
    assert {key for key in results.samples if key[0] not in own} == {
        (each, column, side) for each in measures for column in columns for side in sides
    }
    assert {(name, side) for name, _, side in results.samples if name in own} == {
        (name, side) for name in own for side in sides
    }
    assert all(len(values) == 1 and values[0] >= 0 for values in results.samples.values())
    assert json.loads(json.dumps(results.as_json(), allow_nan=False))["answer"]
    assert "nan" not in results.scenario.answer(results)


def test_what_sleeps_make_unavoidable() -> None:
    """The writers' one after the other, and the readers', which are at the same time: as long as one's, at least."""
    assert mix.naps_together(0, 0.002) == 0
    together = mix.naps_together(3, 0.002, times=3)
    assert together >= 0.002
    assert mix.unavoidable(writers=2, iterations=5, alone=0.0021, together=together) == pytest.approx(
        0.021 + 5 * together
    )


def test_a_lock_that_does_not_lock_is_found_out_by_mix(only: Only) -> None:
    """Readers that see a write half done are wrong data, and its side is measured no more."""
    only(NoLock)
    results = found("mix", iterations=500)  # so long that on a busy machine, too, all are at it together
    assert results.samples == {}
    assert len(results.faults) == 1
    assert results.faults[0].startswith("no lock, 80/20: ")


def test_a_lock_that_does_not_lock_is_found_out_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that got lost are wrong data; the other sides are measured on."""
    monkeypatch.setitem(record.LOCKED, record.AFTER, (NoLock,))
    results = found("record", processes=(4,), seconds=0.3)
    assert [fault.partition(":")[0] for fault in results.faults] == [f"{record.AFTER}, 4"]
    assert set(results.sides) == {record.BEFORE, record.OURS}
    answer = results.scenario.answer(results)
    assert "no figure" in answer
    assert "nan" not in answer


def test_a_lock_that_does_not_lock_is_found_out_by_recovery(only: Only) -> None:
    """A writer that is in beside the holder is wrong data, and no recovery."""
    only(NoLock)
    results = found("recovery")
    assert results.samples == {}
    assert "beside the holder" in results.faults[0]


@pytest.mark.parametrize("column", [fairness.WRITER, fairness.READER])
def test_a_lock_that_does_not_lock_is_found_out_by_fairness(column: str) -> None:
    """Who is in together with one that must be alone is wrong data, whoever waits."""
    chosen = scenario("fairness")
    knobs = chosen.turned(quick=True, given=TINY["fairness"] | {"seconds": 10.0})
    with pytest.raises(WrongData, match="was in together with"):
        fairness.crowd(NoLock, column, knobs)


def test_the_histogram_of_waits_adds_up(only: Only) -> None:
    """The share of those that are over grows with time, up to all of them where none takes longer."""
    only(Lock)
    results = found("fairness", patience=30.0)
    for name in fairness.WITHIN.values():
        shares = [results.samples[name, str(edge), Lock.name][0] for edge in fairness.EDGES]
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] <= 100
        assert any(shares)


def test_a_lock_that_never_recovers_is_said_never(only: Only) -> None:
    """multiprocessing.Lock stays taken when its holder is killed: infinite, "never" in the file and in the answer."""
    only(ShmlockRWLock, Lock)
    results = found("recovery", patience=0.6)
    assert math.isinf(results.median("longest", recovery.WRITER, "multiprocessing.Lock"))
    assert not math.isinf(results.median("longest", recovery.WRITER, "shmlock.RWLock"))
    told = results.as_json()
    assert {"never"} == {
        value for each in told["samples"] if each["side"] == "multiprocessing.Lock" for value in each["values"]
    }
    assert told["answer"].count("never with multiprocessing.Lock") == 2


def test_a_writer_that_starves_is_said_never_to_have_come(only: Only) -> None:
    """A wait that is longer than the patience is infinite, and ends the round for all."""
    only(ShmlockRWLock, LateLock)
    results = found("fairness", patience=0.2)
    assert math.isinf(results.median("longest", fairness.WRITER, "late lock"))
    assert "It never came with late lock." in results.scenario.answer(results)


@pytest.mark.parametrize("name", ["mix", "read", "fairness", "recovery"])
def test_what_is_not_installed_is_skipped_with_a_reason(name: str, only: Only, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured, and the results say why one is not."""
    absent: Any = None  # what makes `import` fail
    monkeypatch.setitem(sys.modules, "prwlock", absent)
    only(ShmlockRWLock, RWLock)
    results = found(name)
    assert results.skipped == {"prwlock": "prwlock is not installed (pip install prwlock)"}
    assert "prwlock" not in results.sides
    assert "shmlock.RWLock" in results.sides
