"""The last good body on disk."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from shmlock.updater import SourceError
from shmlock.updater.cache import Cache

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the cache's path."""
    return tmp_path / "cache.json"


@pytest.fixture
def cache(file: Path) -> Cache:
    """Return a cache."""
    return Cache(file, max_size=100)


def test_round_trip(cache: Cache) -> None:
    """What was stored last is loaded."""
    cache.store(b"old")
    cache.store(b"{}")
    assert cache.load() == b"{}"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_private(cache: Cache, file: Path, umask: int) -> None:
    """Only its user can read it, whatever the umask and the mode of the file that was there."""
    file.write_bytes(b"old")
    file.chmod(0o666)
    before = os.umask(umask)
    try:
        cache.store(b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_link_is_replaced(cache: Cache, file: Path) -> None:
    """A link in its place is replaced; what it leads to is left alone."""
    elsewhere = file.with_name("elsewhere")
    elsewhere.write_bytes(b"precious")
    file.symlink_to(elsewhere)
    cache.store(b"{}")
    assert not file.is_symlink()
    assert elsewhere.read_bytes() == b"precious"


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_failure_leaves_the_old_one(cache: Cache, file: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """When storing fails, the old body is still whole, and nothing else lies beside it."""
    cache.store(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(step, full)
    with pytest.raises(OSError, match="No space left"):
        cache.store(b"{}")
    assert cache.load() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_synced_before_it_is_visible(cache: Cache, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are on the disk before the name leads to them, or a power cut could leave it empty."""
    cache.store(b"old")
    seen = []

    def look(descriptor: int) -> None:
        seen.append((os.fstat(descriptor).st_size, file.read_bytes()))

    monkeypatch.setattr(os, "fsync", look)
    cache.store(b"new one")
    assert seen == [(7, b"old")]
    assert file.read_bytes() == b"new one"


def test_not_usable(cache: Cache, file: Path) -> None:
    """A cache that isn't there, or is too large, is an error that names it."""
    with pytest.raises(SourceError, match=r"cache\.json: No such file"):
        cache.load()
    file.write_bytes(b"x" * 101)
    with pytest.raises(SourceError, match=r"cache\.json: larger than 100 bytes"):
        cache.load()
