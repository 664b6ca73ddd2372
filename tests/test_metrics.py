"""RTMetrics as its users meet it: exact totals from many, windows that roll, resets, exports, and what is refused."""

from __future__ import annotations

import math
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shmlock
from tests.fakes import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Peer, Start


@pytest.fixture
def clock() -> Clock:
    """One that stands still."""
    return Clock()


@pytest.fixture
def metrics(name: str, clock: Clock) -> Iterator[shmlock.RTMetrics]:
    """Fresh ones, closed at the end."""
    with shmlock.RTMetrics(name, max_participants=16, clock=clock) as made:
        yield made


# --- what was recorded


def test_what_was_recorded_is_told(metrics: shmlock.RTMetrics) -> None:
    """Counts, ratios, quantiles and totals of a handful of records."""
    for code, seconds in ((200, 0.010), (200, 0.020), (404, 0.001), (502, 1.0), (504, 2.0)):
        metrics.record(code, seconds)
    assert metrics.total_count() == 5
    assert metrics.status_codes_counts() == {200: 2, 404: 1, 502: 1, 504: 1} == metrics.totals()
    assert metrics.network_error_count() == 2
    assert metrics.network_error_ratio() == pytest.approx(0.4)
    assert metrics.response_code_ratio(500, 600, 200, 300) == 1.0
    assert metrics.response_code_ratio(500, 504, 400, 500) == 1.0
    histogram = metrics.latency_histogram()
    assert histogram.total_count == 5
    assert histogram.latency_at_quantile(100) == pytest.approx(2.0, rel=0.01)
    assert histogram.latency_at_quantile(50) == pytest.approx(0.020, rel=0.01)
    assert histogram.mean() == pytest.approx(3.031 / 5, rel=0.01)
    assert metrics.latency_sum() == pytest.approx(3.031)
    assert metrics.counter_window_size() == 10.0
    assert "5 recorded" in repr(metrics)


def test_nothing_is_told_of_nothing(metrics: shmlock.RTMetrics) -> None:
    """Ratios and quantiles of empty metrics, or with nothing below the line, are 0."""
    assert metrics.total_count() == metrics.network_error_count() == 0
    assert metrics.network_error_ratio() == metrics.response_code_ratio(500, 600, 200, 300) == 0.0
    assert metrics.status_codes_counts() == metrics.totals() == {}
    assert metrics.latency_histogram().latency_at_quantile(99.0) == metrics.latency_histogram().mean() == 0.0
    metrics.record(503, 0.1)
    assert metrics.response_code_ratio(500, 600, 200, 300) == 0.0


@given(seconds=st.lists(st.floats(0, 3600), min_size=1, max_size=50), quantile=st.floats(0, 100))
def test_quantiles_are_right_to_the_histogram_s_error(seconds: list[float], quantile: float) -> None:
    """A quantile is the exact one, of whole microseconds, or at most 1 % above it."""
    name = f"test-quantiles-{threading.get_native_id()}"
    with shmlock.RTMetrics(name, max_participants=1) as metrics:
        try:
            for second in seconds:
                metrics.record(200, second)
            found = metrics.latency_histogram().latency_at_quantile(quantile) * 1e6
        finally:
            metrics.unlink()
    ordered = sorted(int(second * 1e6) for second in seconds)
    exact = ordered[max(math.ceil(len(ordered) * quantile / 100) - 1, 0)]
    assert exact - 1e-6 <= found <= exact * 1.01 + 1e-6


@pytest.mark.parametrize("quantile", [-1, 101, math.nan])
def test_a_quantile_is_a_percentage(metrics: shmlock.RTMetrics, quantile: float) -> None:
    """Anything else is an error."""
    with pytest.raises(ValueError, match="from 0 to 100"):
        metrics.latency_histogram().latency_at_quantile(quantile)


def test_a_histogram_goes_to_hdrhistogram(metrics: shmlock.RTMetrics) -> None:
    """Its quantiles and its total are the same there, and it can be merged with others."""
    for number in range(1, 1001):
        metrics.record(200, number / 1000)
    ours = metrics.latency_histogram()
    theirs = ours.to_hdr()
    assert theirs.get_total_count() == ours.total_count == 1000
    for quantile in (1, 50, 90, 99, 100):
        assert theirs.get_value_at_percentile(quantile) / 1e6 == pytest.approx(ours.latency_at_quantile(quantile))
    theirs.add(ours.to_hdr())
    assert theirs.get_total_count() == 2000
    assert sum(count for *_, count in ours) == 1000
    assert all(low < high for low, _, high, _ in ours)


# --- windows


def test_counts_leave_the_window(metrics: shmlock.RTMetrics, clock: Clock) -> None:
    """A record counts in the second in which it was made and the 9 after it; its latency for 50 to 60 s."""
    metrics.record(200, 0.5)
    clock.now += 9.999
    assert metrics.total_count() == 1
    metrics.record(404, 0.5)
    clock.now = 1010.0
    assert metrics.status_codes_counts() == {404: 1}
    clock.now = 1018.999
    assert metrics.total_count() == 1
    clock.now = 1019.0
    assert metrics.total_count() == 0
    assert metrics.latency_histogram().total_count == 2
    clock.now = 1059.999
    assert metrics.latency_histogram().total_count == 2
    clock.now = 1060.0
    assert metrics.latency_histogram().total_count == 0
    assert metrics.totals() == {200: 1, 404: 1}


def test_a_bucket_is_used_again(metrics: shmlock.RTMetrics, clock: Clock) -> None:
    """Once round and more: what is recorded counts with nothing that was there before."""
    for second in range(35):
        clock.now = 1000.0 + second
        for _ in range(second):
            metrics.record(200, 0.001)
        assert metrics.total_count() == sum(range(max(second - 9, 0), second + 1))


def test_reading_changes_nothing(metrics: shmlock.RTMetrics, clock: Clock) -> None:
    """No read stores a single byte, also when what it sees is long past."""
    metrics.record(200, 0.1)
    for later in (0.0, 5.0, 100.0):
        clock.now += later
        before = bytes(metrics._segment.words), bytes(metrics._segment.payload)
        metrics.export()
        metrics.total_count()
        metrics.latency_histogram()
        metrics.totals()
        assert (bytes(metrics._segment.words), bytes(metrics._segment.payload)) == before


def test_other_windows(name: str, clock: Clock) -> None:
    """Buckets, windows and range are the creator's; who attaches takes them as they are, or is told what differs."""
    mine = {"buckets": 5, "resolution": 0.5, "windows": 2, "window_seconds": 1.5, "highest": 10, "figures": 3}
    with shmlock.RTMetrics(name, max_participants=4, clock=clock, **mine) as metrics:  # type: ignore[arg-type]
        assert metrics.counter_window_size() == 2.5
        metrics.record(200, 3.14159)
        metrics.record(200, 3600)
        assert metrics.latency_histogram().latency_at_quantile(50) == pytest.approx(3.14159, rel=0.001)
        assert metrics.latency_histogram().latency_at_quantile(100) == pytest.approx(10, rel=0.001)
        clock.now += 2.5
        assert metrics.total_count() == 0
        with shmlock.RTMetrics(name, clock=clock) as other:
            assert other.counter_window_size() == 2.5
        for what, value in (("buckets", 10), ("resolution", 1.0), ("windows", 6), ("highest", 3600), ("figures", 2)):
            with pytest.raises(shmlock.LayoutMismatch, match=what):
                shmlock.RTMetrics(name, **{what: value})  # type: ignore[arg-type]


# --- many


def test_totals_of_many_processes_are_exact(name: str, start: Start, clock: Clock) -> None:
    """After 6 processes of 2 threads have recorded 500 times each, there are 6000, to the last one."""

    def work(peer: Peer) -> None:
        ours = shmlock.RTMetrics(name, clock=clock)

        def record() -> None:
            for number in range(500):
                ours.record(200 + number % 5, number / 1000)

        threads = [threading.Thread(target=record) for _ in range(2)]
        peer.hear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peer.say("done")

    with shmlock.RTMetrics(name, max_participants=16, clock=clock) as metrics:
        children = [start(work) for _ in range(6)]
        for child in children:
            child.say("go")
        last = 0
        while last < 6000:
            now = metrics.total_count()
            assert now >= last, "a sum never goes back within its window"
            last = now
        for child in children:
            assert child.hear() == "done"
            assert child.join() == 0
        assert metrics.status_codes_counts() == {200 + number: 1200 for number in range(5)} == metrics.totals()
        assert metrics.latency_histogram().total_count == 6000


def test_the_killed_lose_one_record_at_most(name: str, start: Start, clock: Clock) -> None:
    """Of processes that are killed while they record, all counts but the one in progress are there, once."""

    def work(peer: Peer) -> None:
        ours = shmlock.RTMetrics(name, clock=clock)
        ours.record(200, 0.001)
        peer.say("recording")
        while True:
            for _ in range(100):
                ours.record(200, 0.001)
            peer.say(100)

    with shmlock.RTMetrics(name, max_participants=4, clock=clock) as metrics:
        said = 0
        for _ in range(5):
            before = metrics.total_count()
            child = start(work)
            assert child.hear() == "recording"
            said = 1 + sum(child.hear() for _ in range(20))
            child.kill()
            metrics.reap()
            recorded = metrics.total_count() - before
            assert recorded >= said
            assert abs(metrics.latency_histogram().total_count - metrics.total_count()) <= 5
            assert metrics.total_count() - before == recorded, "and stays"


def test_a_hundred_restarts_of_a_worker(name: str, start: Start, clock: Clock) -> None:
    """Each is counted, they need two slots, and nothing of them ever counts twice."""

    def work(_: Peer) -> None:
        with shmlock.RTMetrics(name, clock=clock) as ours:
            ours.record(200, 0.001)

    with shmlock.RTMetrics(name, max_participants=2, clock=clock) as metrics:
        for turn in range(100):
            child = start(work)
            assert child.join() == 0
            if turn % 10 == 0:
                assert metrics.total_count() == turn + 1
        assert metrics.totals() == {200: 100}


def test_a_forked_child_records_for_itself(metrics: shmlock.RTMetrics, start: Start) -> None:
    """It has a shard of its own, also when its parent has one, and both count."""
    metrics.record(200, 0.001)

    def work(peer: Peer) -> None:
        metrics.record(404, 0.001)
        peer.say(metrics._engine.me().number)
        peer.hear()

    child = start(work)
    assert child.hear() != metrics._engine.me().number
    metrics.record(200, 0.001)
    assert metrics.status_codes_counts() == {200: 2, 404: 1}


# --- reset, append, export


def test_a_reset_forgets_the_windows_alone(metrics: shmlock.RTMetrics, clock: Clock, start: Start) -> None:
    """What was recorded counts no more, by whomever; what is recorded from then on does; totals go on."""

    def work(peer: Peer) -> None:
        while peer.hear():
            metrics.record(200, 0.5)
            peer.say("recorded")

    child = start(work)
    for turn in range(4):
        child.say("record")
        assert child.hear() == "recorded"
        metrics.record(404, 0.5)
        assert metrics.status_codes_counts() == {200: 1, 404: 1}
        assert metrics.latency_histogram().total_count == 2
        metrics.reset()
        assert metrics.total_count() == metrics.latency_histogram().total_count == 0
        clock.now += turn
    assert metrics.totals() == {200: 4, 404: 4}
    assert metrics.latency_sum() == pytest.approx(4.0)


def test_resets_beside_records_lose_nothing(name: str, start: Start, clock: Clock) -> None:
    """Each record counts before a reset or after it, and none is left when the last one came after all of them."""

    def work(peer: Peer) -> None:
        ours = shmlock.RTMetrics(name, clock=clock)
        peer.say("ready")
        peer.hear()
        for _ in range(3000):
            ours.record(200, 0.001)
        peer.say("done")
        peer.hear()

    with shmlock.RTMetrics(name, max_participants=8, clock=clock) as metrics:
        children = [start(work) for _ in range(3)]
        for child in children:
            assert child.hear() == "ready"
            child.say("go")
        while metrics.totals().get(200, 0) < 9000:
            before = metrics.totals().get(200, 0)
            metrics.reset()
            # A record that is under way counts in the total first.
            assert metrics.total_count() <= 9000 - before + len(children)
        for child in children:
            assert child.hear() == "done"
        metrics.reset()
        metrics.record(200, 0.001)
        assert metrics.status_codes_counts() == {200: 1}
        assert metrics.totals() == {200: 9001}


def test_append_adds_another_s(metrics: shmlock.RTMetrics, name: str, clock: Clock) -> None:
    """Each at its own time, also from an export, also one that was pickled; the other keeps what it has."""
    with shmlock.RTMetrics(f"{name}.other", max_participants=4, clock=clock) as other:
        other.record(200, 0.5)
        clock.now += 5
        other.record(404, 1.5)
        metrics.record(200, 2.5)
        exported = other.export()
        metrics.append(other)
        assert metrics.status_codes_counts() == {200: 2, 404: 1}
        assert metrics.latency_histogram().total_count == 3
        assert metrics.totals() == {200: 2, 404: 1}
        assert metrics.latency_sum() == pytest.approx(4.5, rel=0.01)
        metrics.append(pickle.loads(pickle.dumps(exported)))
        assert metrics.status_codes_counts() == {200: 3, 404: 2}
        assert other.status_codes_counts() == exported.status_codes_counts() == {200: 1, 404: 1}
        clock.now += 5
        assert metrics.status_codes_counts() == {200: 1, 404: 2}, "what was recorded 10 s ago has gone"
        other.unlink()


def test_what_can_not_be_appended(metrics: shmlock.RTMetrics, name: str, clock: Clock) -> None:
    """Oneself, by whatever handle or export, and what is counted in another way; then nothing is changed."""
    metrics.record(200, 0.1)
    with shmlock.RTMetrics(metrics.name, clock=clock) as same:
        for itself in (metrics, same, metrics.export()):
            with pytest.raises(ValueError, match="themselves"):
                metrics.append(itself)
    with shmlock.RTMetrics(f"{name}.other", max_participants=4, buckets=5, clock=clock) as other:
        with pytest.raises(ValueError, match="other buckets"):
            metrics.append(other)
        other.unlink()
    assert metrics.status_codes_counts() == {200: 1}


def test_an_export_is_one_truth(metrics: shmlock.RTMetrics, clock: Clock) -> None:
    """It has all that counted at its moment, and does not change by time, records or resets."""
    metrics.record(200, 0.1)
    metrics.record(502, 0.1)
    exported = metrics.export()
    metrics.record(200, 0.1)
    metrics.reset()
    clock.now += 1000
    copy = pickle.loads(pickle.dumps(exported))
    for one in (exported, copy):
        assert one.total_count() == 2
        assert one.network_error_ratio() == 0.5
        assert one.response_code_ratio(500, 600, 200, 300) == 1.0
        assert one.latency_histogram().total_count == 2
        assert metrics.name in repr(one)


# --- what is refused


@pytest.mark.parametrize(
    ("code", "seconds", "error"),
    [
        *((code, 0.1, ValueError) for code in (99, 600, 0, -1, 10**9)),
        *((200, seconds, ValueError) for seconds in (-0.001, math.nan, -math.inf)),
        *((code, seconds, TypeError) for code, seconds in (("200", 0.1), (None, 0.1), (200, "0.1"), (200, None))),
    ],
)
def test_what_is_no_response_is_refused(
    metrics: shmlock.RTMetrics, code: Any, seconds: Any, error: type[Exception]
) -> None:
    """Codes outside 100 to 599, times below 0 or that are none: an error, and nothing is counted."""
    metrics.record(200, 0.1)
    with pytest.raises(error):
        metrics.record(code, seconds)
    assert metrics.totals() == {200: 1}
    assert metrics.latency_histogram().total_count == 1


@pytest.mark.parametrize("seconds", [3600.0, 3600.5, 1e300, math.inf])
def test_what_takes_too_long_counts_as_the_longest(metrics: shmlock.RTMetrics, seconds: float) -> None:
    """An hour, at most 1 % more by the histogram's error."""
    metrics.record(200, seconds)
    assert metrics.latency_histogram().latency_at_quantile(50) == pytest.approx(3600, rel=0.01)
    assert metrics.latency_sum() == 3600


@pytest.mark.parametrize(
    "wrong",
    [
        {"buckets": 0}, {"windows": -1}, {"figures": 4}, {"highest": 0}, {"resolution": 0.0001},
        {"window_seconds": 1.5}, {"buckets": 10_000}, {"resolution": 0}, {"resolution": -1.0}, {"resolution": math.nan},
        {"resolution": math.inf}, {"resolution": 0.0}, {"window_seconds": 0}, {"window_seconds": -10.0},
        {"window_seconds": math.nan},
    ],
)  # fmt: skip
def test_bad_windows_create_nothing(name: str, wrong: dict[str, Any]) -> None:
    """The error says what they may be."""
    with pytest.raises(ValueError, match="must be"):
        shmlock.RTMetrics(name, **wrong)
    with pytest.raises(shmlock.SegmentNotFound):
        shmlock.RTMetrics(name, create=False)


def test_handles(metrics: shmlock.RTMetrics, clock: Clock) -> None:
    """A pickle attaches by name; another kind does not; after close() every use is an error."""
    plain = shmlock.RTMetrics(metrics.name)
    with pickle.loads(pickle.dumps(plain)) as copy:
        assert copy.name == metrics.name
    plain.close()
    with pytest.raises(shmlock.LayoutMismatch, match="RTMetrics"):
        shmlock.RWLock(metrics.name)
    other = shmlock.RTMetrics(metrics.name, clock=clock)
    metrics.record(200, 0.1)
    metrics.close()
    for use in (lambda: metrics.record(200, 0.1), metrics.total_count, metrics.export, metrics.reset, metrics.totals):
        with pytest.raises(shmlock.ClosedError):
            use()
    assert other.total_count() == 1
    other.record(404, 0.1)
    assert other.total_count() == 2
    assert other.statistics().write.locks == 0
    other.close()
