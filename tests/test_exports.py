"""What a user can name, and what is promised of it."""

from __future__ import annotations

import importlib
import inspect
import pickle
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock import errors

if TYPE_CHECKING:
    from collections.abc import Callable

# docs and api: beside ShmlockError, what else each error is.
BASES: dict[str, type[BaseException] | None] = {
    "ShmlockError": Exception,
    "LockTimeout": TimeoutError,
    "NotHeld": RuntimeError,
    "WouldDeadlock": RuntimeError,
    "SegmentNotFound": FileNotFoundError,
    "LayoutMismatch": None,
    "ForeignSegment": PermissionError,
    "SegmentCorrupt": None,
    "ParticipantsExhausted": None,
    "PayloadTooLarge": ValueError,
    "QueueFull": None,
    "NotPublished": LookupError,
    "OwnerDied": None,
    "ClosedError": None,
    "UnsupportedPlatform": OSError,
}


def test_all_is_sorted() -> None:
    """`__all__` is sorted, and names nothing twice."""
    assert shmlock.__all__ == sorted(set(shmlock.__all__))


def test_all_is_all() -> None:
    """`__all__` is what can be named without an underscore, other than modules; and all of it is there."""
    public = {
        name
        for name, value in vars(shmlock).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert public == set(shmlock.__all__)


@pytest.mark.parametrize("name", shmlock.__all__)
def test_comes_from_here(name: str) -> None:
    """Everything public is this package's own, a class or a function."""
    thing = getattr(shmlock, name)
    assert inspect.isclass(thing) or inspect.isfunction(thing)
    assert thing.__module__.split(".")[0] == "shmlock"


def public_classes() -> list[type]:
    """The classes that a user meets, those behind `reader` and `writer` included."""
    named = [getattr(shmlock, name) for name in shmlock.__all__]
    faces = [getattr(importlib.import_module(f"shmlock.{room}"), name) for room, name in FACES]
    return [thing for thing in [*named, *faces] if inspect.isclass(thing)]


FACES = [("_engine.bias", "Reader"), ("locks", "Writer")]


@pytest.mark.parametrize("thing", [getattr(shmlock, name) for name in shmlock.__all__], ids=shmlock.__all__)
def test_says_what_it_is(thing: Any) -> None:
    """Every public class and function has a docstring of its own, that begins with a sentence on one line."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert text
    assert text.splitlines()[0].rstrip().endswith((".", ":"))


@pytest.mark.parametrize("thing", public_classes(), ids=lambda thing: thing.__name__)
def test_members_say_what_they_do(thing: type) -> None:
    """Every public method and property of a public class has a docstring, its own or that of the method it replaces."""
    for name, member in inspect.getmembers(thing):
        if name.startswith("_") or getattr(member, "__module__", "shmlock").split(".")[0] != "shmlock":
            continue
        if inspect.isfunction(member) or isinstance(inspect.getattr_static(thing, name), property):
            assert inspect.getdoc(member), f"{thing.__name__}.{name} has no docstring"


def test_every_error_is_promised() -> None:
    """All errors, and no others, are those of the table above; all are re-exported."""
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(BASES)
    assert all(getattr(shmlock, name) is getattr(errors, name) for name in defined)


@pytest.mark.parametrize("name", BASES)
def test_bases(name: str) -> None:
    """Every error is a ShmlockError, and also what the standard library calls it, and nothing else of it."""
    kind = getattr(errors, name)
    assert issubclass(kind, errors.ShmlockError)
    base = BASES[name]
    assert base is None or issubclass(kind, base)
    for other in (OSError, ValueError, LookupError, RuntimeError):
        assert issubclass(kind, other) == (base is not None and issubclass(base, other))


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("arguments", [(), ("what happened",), (13, "what happened")], ids=len)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_pickle(name: str, arguments: tuple[Any, ...], protocol: int) -> None:
    """An error that is sent to another process says there what it said here."""
    error = getattr(errors, name)(*arguments)
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert getattr(copy, "errno", None) == getattr(error, "errno", None)


def raised(attempt: Callable[..., object], *arguments: Any, **options: Any) -> shmlock.ShmlockError:
    """The error that this raises."""
    with pytest.raises(shmlock.ShmlockError) as caught:
        attempt(*arguments, **options)
    return caught.value


def test_raised_errors_pickle(name: str) -> None:
    """Those that are raised in earnest do, too, with errno and words; all of them name the object."""
    caught = [raised(shmlock.RWLock, name, create=False)]
    lock = shmlock.RWLock(name)
    caught += [raised(shmlock.Mutex, name), raised(lock.reader.release), raised(lock.writer.release)]
    with lock.reader:
        caught.append(raised(lock.writer.acquire))
    with lock.writer:
        caught.append(raised(lock.writer.acquire, timeout=1))
    with shmlock.RWLock(name) as closed:
        pass
    caught.append(raised(closed.reader.acquire))
    config = shmlock.SharedConfig(f"{name}.c", capacity=50)
    caught += [raised(config.get), raised(config.publish, "x" * 100)]
    config.unlink()
    timers = shmlock.TimerQueue(f"{name}.t", capacity=1)
    timers.schedule(1, 0)
    caught.append(raised(timers.schedule, 2, 0))
    timers.unlink()
    assert [type(error).__name__ for error in caught] == [
        "SegmentNotFound",
        "LayoutMismatch",
        "NotHeld",
        "NotHeld",
        "WouldDeadlock",
        "WouldDeadlock",
        "ClosedError",
        "NotPublished",
        "PayloadTooLarge",
        "QueueFull",
    ]
    for error in caught:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.args) == (type(error), str(error), error.args)
        assert name in str(copy)
