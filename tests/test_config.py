"""SharedConfig: publish, read, wait; what is published while publishers die, stop and disagree."""

from __future__ import annotations

import copy
import json
import math
import os
import pickle
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import shmlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Peer, Start


@pytest.fixture
def config(name: str) -> Iterator[shmlock.SharedConfig]:
    """A fresh configuration for up to 10,000 bytes of JSON."""
    with shmlock.SharedConfig(name, capacity=10_000, max_participants=32) as made:
        yield made


def test_what_is_published_is_read_everywhere(config: shmlock.SharedConfig, start: Start) -> None:
    """Versions count from 1; a snapshot tells all of one version; every process sees the same."""
    assert config.version == 0
    before = time.time()
    assert config.publish({"flags": {"new": True}, "list": [1, None, "ü"]}) == 1
    seen = config.snapshot()
    assert seen.version == config.version == 1
    assert seen.value == {"flags": {"new": True}, "list": [1, None, "ü"]}
    assert before - 1 <= seen.published_at <= time.time() + 1
    assert seen.publisher_pid == os.getpid()
    assert seen.size == len('{"flags":{"new":true},"list":[1,null,"ü"]}'.encode())
    assert config.encoded() == b'{"flags":{"new":true},"list":[1,null,"\xc3\xbc"]}'
    child = start(lambda peer: peer.say(shmlock.SharedConfig(config.name, create=False).snapshot()))
    assert child.hear() == seen


def test_before_the_first_publish(config: shmlock.SharedConfig) -> None:
    """There is nothing to get but the default; None is a default like any; the errors say what to do."""
    with pytest.raises(shmlock.NotPublished, match=config.name):
        config.get()
    with pytest.raises(LookupError):
        config.snapshot()
    assert config.get(None) is None
    assert config.get(default=3) == 3
    assert config.encoded() is None
    assert config.age == math.inf
    assert "nothing published" in repr(config)
    config.publish(None)
    assert config.get() is None
    assert config.get(default=3) is None


def test_the_same_object_until_the_version_changes(config: shmlock.SharedConfig) -> None:
    """get() decodes once per version, also when many threads ask first at the same time."""
    config.publish({"a": 1})
    seen: list[Any] = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        seen.append(config.get())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(value) for value in seen}) == 1
    assert config.get() is seen[0]
    config.publish({"a": 1})
    assert config.get() is not seen[0]


def test_steady_reads_store_nothing(config: shmlock.SharedConfig) -> None:
    """get() and snapshot() change no byte of the segment, neither the first time nor later."""
    config.publish({"a": 1})
    with shmlock.SharedConfig(config.name) as reader:
        before = bytes(reader._segment.words), bytes(reader._segment.payload)
        for _ in range(3):
            reader.get()
            reader.snapshot()
        assert (bytes(reader._segment.words), bytes(reader._segment.payload)) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(a=1),
        lambda value: value.__setitem__("a", 1),
        lambda value: value.pop("list"),
        lambda value: value.clear(),
        lambda value: value.setdefault("b", 1),
        lambda value: value["list"].append(1),
        lambda value: value["list"].sort(),
        lambda value: value["list"].__setitem__(0, 1),
        lambda value: value["list"].__iadd__([1]),
        lambda value: value["list"][1].__delitem__("deep"),
        lambda value: value.__ior__({"a": 1}),
    ],
)
def test_values_are_read_only(config: shmlock.SharedConfig, change: Callable[[Any], None]) -> None:
    """Dicts and lists at any depth refuse to be changed, and say how to get a copy that can be."""
    config.publish({"list": [1, {"deep": 2}]})
    value = config.get()
    with pytest.raises(TypeError, match="deepcopy"):
        change(value)
    assert value == {"list": [1, {"deep": 2}]}
    assert json.dumps(value) == '{"list": [1, {"deep": 2}]}'
    for own in (copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        own["list"][1]["deep"] = 3
        assert own == {"list": [1, {"deep": 3}]}
    assert config.get() is value


@pytest.mark.parametrize("wrong", [{1, 2}, float("nan"), object(), b"bytes", "\ud800"])
def test_what_does_not_encode_changes_nothing(config: shmlock.SharedConfig, wrong: object) -> None:
    """A value that the codec does not take is an error, and the old one stays."""
    config.publish("old")
    with pytest.raises((TypeError, ValueError)):
        config.publish(wrong)
    assert config.snapshot().value == "old"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        config.publish(deep)
    while deep:  # or its collection would recurse as deeply
        deep = deep.pop()
    assert config.version == 1


def test_too_large_is_an_error_with_the_sizes(config: shmlock.SharedConfig) -> None:
    """What does not fit is refused naming both sizes; what just fits is taken."""
    config.publish("old")
    with pytest.raises(shmlock.PayloadTooLarge, match=r"10001 bytes .* 10000"):
        config.publish("x" * 9_999)
    assert config.get() == "old"
    assert config.publish("x" * 9_998) == 2
    assert config.get() == "x" * 9_998


def test_bytes_and_other_codecs(name: str) -> None:
    """codec="bytes" takes bytes alone; an object with encode and decode is used; another codec is refused."""
    with shmlock.SharedConfig(name, codec="bytes") as config:
        config.publish(bytearray(b"\0\1"))
        assert config.get() == b"\0\1"
        with pytest.raises(TypeError, match="str"):
            config.publish("text")
        with pytest.raises(shmlock.LayoutMismatch, match="codec is 'bytes' in the segment and 'json'"):
            shmlock.SharedConfig(name)
        config.unlink()

    class Reversed:
        def encode(self, value: str) -> bytes:
            return value[::-1].encode()

        def decode(self, data: bytes) -> str:
            return data.decode()[::-1]

    with shmlock.SharedConfig(name, codec=Reversed()) as config:
        config.publish("abc")
        assert config.get() == "abc"
        assert config.encoded() == b"cba"
    wrongs: list[Any] = ["xml", object()]
    for wrong in wrongs:
        with pytest.raises((ValueError, TypeError), match="codec"):
            shmlock.SharedConfig(name, codec=wrong)


def test_bytes_that_do_not_decode_are_an_error_that_names_them(config: shmlock.SharedConfig) -> None:
    """What another program published in another form is SegmentCorrupt, not a random error of the decoder."""

    class Careless:
        def encode(self, value: bytes) -> bytes:
            return value

        def decode(self, data: bytes) -> bytes:
            return data

    config.codec = Careless()
    config.publish(b"{half")
    with (
        shmlock.SharedConfig(config.name) as reader,
        pytest.raises(shmlock.SegmentCorrupt, match=r"version 1 does not decode"),
    ):
        reader.get()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "large", 1 << 50])
def test_bad_capacities_create_nothing(name: str, wrong: Any) -> None:
    """A capacity that is no sensible number of bytes is an error, and no segment is left behind."""
    with pytest.raises(ValueError, match="capacity"):
        shmlock.SharedConfig(name, capacity=wrong)
    with pytest.raises(shmlock.SegmentNotFound):
        shmlock.SharedConfig(name, create=False)


def test_another_capacity_is_refused_and_none_attaches(config: shmlock.SharedConfig) -> None:
    """The capacity was fixed at creation: asking for another says so; asking for none takes it as it is."""
    with pytest.raises(shmlock.LayoutMismatch, match="capacity is 10000 in the segment and 20000"):
        shmlock.SharedConfig(config.name, capacity=20_000)
    shmlock.SharedConfig(config.name).close()


def test_wait_sleeps_until_a_new_version(config: shmlock.SharedConfig, start: Start) -> None:
    """All waiting processes wake with the new version; a version that is there already is returned at once."""

    def wait(peer: Peer) -> None:
        ours = shmlock.SharedConfig(config.name)
        peer.say("ready")
        peer.say(ours.wait(after=1, timeout=30))

    config.publish("one")
    children = [start(wait) for _ in range(4)]
    for child in children:
        child.hear()
    config.publish("two")
    assert {child.hear().value for child in children} == {"two"}
    seen = config.wait(after=1, timeout=0)
    assert seen is not None
    assert seen.version == 2


def test_wait_ends_in_time(config: shmlock.SharedConfig) -> None:
    """Without news wait() returns None, neither before its time nor with an error; the default is "from now"."""
    config.publish("one")
    began = time.monotonic()
    assert config.wait(timeout=0.1) is None
    assert time.monotonic() - began >= 0.1
    assert config.wait(after=1, timeout=0) is None
    with pytest.raises(ValueError, match="timeout"):
        config.wait(timeout=-1)


def test_several_publishers_exclude_each_other(config: shmlock.SharedConfig, start: Start) -> None:
    """Versions of many publishers neither repeat nor skip, and readers meet no torn or backward value."""

    def publish(peer: Peer) -> None:
        peer.hear()
        ours = shmlock.SharedConfig(config.name)
        peer.say([ours.publish({"pid": os.getpid(), "text": str(os.getpid()) * 500}) for _ in range(50)])

    def read(peer: Peer) -> None:
        ours = shmlock.SharedConfig(config.name)
        peer.say("ready")
        last = 0
        while not peer._pipe.poll():
            seen = ours.snapshot() if ours.version else None
            if seen is not None:
                assert seen.version >= last
                assert seen.value["text"] == str(seen.value["pid"]) * 500
                assert seen.value["pid"] == seen.publisher_pid
                last = seen.version
        peer.say(ours.snapshot().version)

    reader = start(read)
    reader.hear()
    publishers = [start(publish) for _ in range(3)]
    for child in publishers:
        child.say("go")
    versions = [version for child in publishers for version in child.hear()]
    assert sorted(versions) == list(range(1, 151))
    reader.say("enough")
    assert reader.hear() == 150


def test_a_publisher_killed_or_stopped_in_the_middle(config: shmlock.SharedConfig, start: Start) -> None:
    """While a publisher is stopped half way nobody's reads wait; killed there, the last good version stays."""

    def publish_slowly(peer: Peer) -> None:
        ours = shmlock.SharedConfig(config.name)
        write = ours._write

        def half(version: int, data: bytes) -> None:
            write(version, data[: len(data) // 2])
            peer.say("half")
            peer.hear()

        ours._write = half  # type: ignore[method-assign]
        ours.publish("new" * 100)

    config.publish("old")
    child = start(publish_slowly)
    child.hear()
    child.stop()
    with shmlock.SharedConfig(config.name) as fresh:
        assert fresh.get() == "old"
        assert fresh.snapshot().version == 1
        assert fresh.encoded() == b'"old"'
    child.kill()
    assert config.publish("newer") == 2
    assert config.get() == "newer"


def test_age_and_confirm(config: shmlock.SharedConfig) -> None:
    """Age counts from the publish, or from the last time that the updater found the value current."""
    config.confirm()
    assert config.age == math.inf
    config.publish("x")
    first = config.age
    assert 0 <= first < 30
    until = time.monotonic() + 30
    while config.age < first + 0.01:
        assert time.monotonic() < until
    older = config.age
    config.confirm()
    assert config.age < older
    assert config.version == 1


def test_one_updater_at_a_time(config: shmlock.SharedConfig, start: Start) -> None:
    """The seat is taken until its thread leaves it, ends or is killed; then the one that waits has it."""
    assert not config.updater_alive()

    def sit(peer: Peer) -> None:
        ours = shmlock.SharedConfig(config.name)
        peer.say(ours.take_seat())
        peer.hear()
        ours.leave_seat()
        peer.say(ours.updater_alive())
        ours.take_seat()
        peer.say("again")
        peer.hear()

    child = start(sit)
    assert child.hear() is True
    assert config.updater_alive()
    assert not config.take_seat()
    assert not config.take_seat(timeout=0.05)
    child.say("leave")
    assert child.hear() is False
    assert child.hear() == "again"
    child.stop()
    assert config.updater_alive()
    child.kill(reap=False)
    assert config.take_seat(timeout=30)
    assert config.take_seat()
    assert config.updater_alive()
    config.leave_seat()
    config.leave_seat()
    assert not config.updater_alive()
    thread = threading.Thread(target=config.take_seat)
    thread.start()
    thread.join()
    until = time.monotonic() + 30  # the kernel is a moment behind: it frees what a thread held when that is quite gone
    while config.updater_alive():
        assert time.monotonic() < until


def test_versions_grow_across_restarts(name: str, start: Start) -> None:
    """A publisher that starts anew goes on counting where the last one was, however it ended."""
    for expected in (1, 2, 3):
        child = start(lambda peer: peer.say(shmlock.SharedConfig(name).publish("x")))
        assert child.hear() == expected
        child.kill()


def test_close_and_pickle(config: shmlock.SharedConfig) -> None:
    """A pickle attaches by name with its codec; after close() every use is an error."""
    config.publish([1])
    with pickle.loads(pickle.dumps(config)) as twin:
        assert twin.get() == [1]
    config.close()
    for use in (
        config.get,
        config.snapshot,
        config.encoded,
        config.wait,
        config.confirm,
        config.take_seat,
        config.leave_seat,
        config.updater_alive,
        config.statistics,
        config.reap,
        lambda: config.publish(1),
        lambda: config.version,
        lambda: config.age,
        lambda: pickle.dumps(config),
    ):
        with pytest.raises(shmlock.ClosedError, match=config.name):
            use()
