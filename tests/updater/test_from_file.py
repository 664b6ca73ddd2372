"""A configuration in a file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from shmlock.updater import SourceError, from_file, open_source
from shmlock.updater.from_file import FileSource, path_of

AGES = 10**18
"""Nanoseconds: longer than any file exists."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a path that doesn't exist yet, and needs care in a URL."""
    return tmp_path / "site config #1?.json"


@pytest.fixture
def source(file: Path) -> FileSource:
    """Return its source."""
    return FileSource(file, max_size=10)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every change of a file be old enough to trust its stamp."""
    monkeypatch.setattr(from_file, "_TICK_NS", 0)


def test_content(file: Path, source: FileSource) -> None:
    """A fetch returns the bytes of the file."""
    file.write_bytes(b"\x00{}\xff")
    fetched = source.fetch()
    assert fetched is not None
    assert fetched.body == b"\x00{}\xff"
    assert source.read().body == fetched.body


def test_url_and_path(file: Path, source: FileSource) -> None:
    """A source's URL leads to the file again, whatever is in its name."""
    file.write_bytes(b"{}")
    assert path_of(source.url) == file
    fetched = open_source(source.url, timeout=1, max_size=10).fetch()
    assert fetched is not None
    assert fetched.body == b"{}"


def test_name_that_is_not_utf8(tmp_path: Path) -> None:
    """A file name is bytes; a URL can name any."""
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).write_bytes(b"{}")
    assert open_source(f"{tmp_path.as_uri()}/%FF", timeout=1, max_size=10).fetch() is not None


@pytest.mark.usefixtures("settled")
def test_not_modified(file: Path, source: FileSource) -> None:
    """A file that wasn't touched since the last fetch is not modified, and once more."""
    file.write_bytes(b"{}")
    last = source.fetch()
    assert last is not None
    assert source.fetch(last) is None
    assert source.fetch(last) is None


@pytest.mark.usefixtures("settled")
def test_replaced(file: Path, source: FileSource) -> None:
    """A file renamed over the old one is modified, even with equal size and time."""
    file.write_bytes(b"old")
    last = source.fetch()
    times = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"new")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(file)
    fetched = source.fetch(last)
    assert fetched is not None
    assert fetched.body == b"new"


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("body", [b"older", b"ol", b""])
def test_rewritten(file: Path, source: FileSource, body: bytes) -> None:
    """A file that was rewritten in place with another size is modified."""
    file.write_bytes(b"old")
    last = source.fetch()
    file.write_bytes(body)
    fetched = source.fetch(last)
    assert fetched is not None
    assert fetched.body == body


def test_young_stamps_are_not_trusted(file: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file changed within the clock tick of its last change, to the same size, is still seen to change."""
    monkeypatch.setattr(from_file, "_TICK_NS", AGES)
    monkeypatch.setattr(from_file, "_stamp", lambda _: ("as before",))
    file.write_bytes(b"old")
    last = source.fetch()
    file.write_bytes(b"new")
    fetched = source.fetch(last)
    assert fetched is not None
    assert fetched.body == b"new"


@pytest.mark.parametrize(("size", "fits"), [(0, True), (9, True), (10, True), (11, False), (1 << 20, False)])
def test_size_limit(file: Path, source: FileSource, size: int, fits: bool) -> None:
    """A file up to the limit is read, and a larger one is refused with the limit."""
    file.write_bytes(b"x" * size)
    if fits:
        assert len(source.read().body) == size
    else:
        with pytest.raises(SourceError, match="larger than 10 bytes; raise the size limit"):
            source.fetch()


def test_endless_file() -> None:
    """No more is read than one byte beyond the limit, even of a file that doesn't know its size."""
    # A file of /proc: regular, of size 0 in stat(2), and longer than that.
    with pytest.raises(SourceError, match="larger than 10 bytes"):
        FileSource(Path("/proc/self/maps"), max_size=10).fetch()


def test_reads_no_further(file: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is too large, one byte more than the limit is read, which shows that it is."""
    file.write_bytes(b"x" * 100)
    read = os.read
    asked = []

    def counted(descriptor: int, size: int) -> bytes:
        asked.append(size)
        return read(descriptor, size)

    monkeypatch.setattr(os, "read", counted)
    with pytest.raises(SourceError):
        source.fetch()
    assert sum(asked) == 11


def test_torn(file: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that changes between the first byte and the last is not returned half old and half new."""
    file.write_bytes(b"old")
    read = os.read

    def meddled(descriptor: int, size: int) -> bytes:
        chunk = read(descriptor, size)
        file.write_bytes(b"newer")
        return chunk

    monkeypatch.setattr(os, "read", meddled)
    with pytest.raises(SourceError, match="changed while it was read; write another file and rename it"):
        source.fetch()


def test_missing(source: FileSource) -> None:
    """A file that isn't there is an error with its URL and the way out."""
    with pytest.raises(SourceError, match="No such file or directory; write the file or correct the URL") as it:
        source.fetch()
    assert source.url in str(it.value)


def test_directory(file: Path, source: FileSource) -> None:
    """A directory is no configuration."""
    file.mkdir()
    with pytest.raises(SourceError, match="not a regular file"):
        source.fetch()


def test_fifo_does_not_block(file: Path, source: FileSource) -> None:
    """A FIFO is refused at once, with no writer at its other end."""
    os.mkfifo(file)
    with pytest.raises(SourceError, match="not a regular file"):
        source.fetch()


def test_socket(source: FileSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket can't be opened, which is told as an error, too."""
    monkeypatch.chdir(tmp_path)  # its whole path may be too long for an address
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("site config #1?.json")
        with pytest.raises(SourceError, match="see that the file can be read"):
            source.fetch()


def test_link_is_followed(file: Path, source: FileSource) -> None:
    """A symbolic link leads to its file, and its change is a change."""
    targets = [file.with_name("one"), file.with_name("two")]
    for target in targets:
        target.write_text(target.name)
    file.symlink_to(targets[0])
    last = source.fetch()
    file.unlink()
    file.symlink_to(targets[1])
    fetched = source.fetch(last)
    assert fetched is not None
    assert fetched.body == b"two"


def test_no_permission(file: Path, source: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that this user can't read is an error that says so."""
    file.write_bytes(b"{}")

    def refused(*_: object) -> int:  # as root, nothing is refused
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(SourceError, match="Permission denied; let this user read it"):
        source.fetch()


def open_descriptors() -> int:
    """Count them; the one that lists them is counted each time."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_are_closed(file: Path, source: FileSource) -> None:
    """No fetch, good or bad, leaves a descriptor open."""
    before = open_descriptors()
    file.write_bytes(b"x")
    source.fetch()
    file.write_bytes(b"x" * 100)
    with pytest.raises(SourceError):
        source.fetch()
    file.unlink()
    file.mkdir()
    with pytest.raises(SourceError):
        source.fetch()
    assert open_descriptors() == before
