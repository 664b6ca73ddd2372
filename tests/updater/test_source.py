"""Which source serves which URL, and what is said of URLs that none serves."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shmlock.errors import ShmlockError
from shmlock.updater import SourceError, open_source
from shmlock.updater.from_file import FileSource
from shmlock.updater.from_http import HttpSource
from shmlock.updater.source import shown


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("file:///etc/site.json", FileSource),
        ("file://localhost/etc/site.json", FileSource),
        ("FILE:/etc/site.json", FileSource),
        ("http://config.example/site.json", HttpSource),
        ("HTTPS://config.example:8443/site.json", HttpSource),
        ("http://[::1]:80/", HttpSource),
    ],
)
def test_scheme_decides(url: str, kind: type) -> None:
    """The scheme, in any case, says which source serves a URL."""
    assert type(open_source(url, timeout=1, max_size=1)) is kind


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "write file:///PATH or https://HOST/PATH"),
        ("/etc/site.json", "write file:///PATH"),
        ("site.json", "write file:///PATH"),
        ("ftp://config.example/site.json", "can't fetch from ftp: URLs; use file, http or https"),
        ("http:///site.json", "names no host"),
        ("https:site.json", "names no host"),
        ("http://[::1/", "not a URL"),
        ("http://config.example:http/", "not a URL"),
        ("http://config.example:99999/", "not a URL"),
        ("http://config.example/two words", "percent-encode"),
        ("file:///etc/site.json\n", "percent-encode"),
        ("file://config.example/etc/site.json", "takes no host; write file:///PATH"),
        ("file:site.json", "not an absolute path; write file:///PATH"),
        ("file:///etc/site.json?x", "write ? as %3F"),
        ("file:///etc/site.json#x", "# as %23"),
        ("file:///etc/%00", "not an absolute path"),
    ],
)
def test_bad_urls(url: str, said: str) -> None:
    """A URL that can't be served is refused at once, in one line that repeats it and says what to write."""
    with pytest.raises(SourceError) as refusal:
        open_source(url, timeout=1, max_size=1)
    assert said in str(refusal.value)
    assert url.strip() in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("url", ["https://me:secret@config.example:x/", "ftp://me:secret@config.example/"])
def test_passwords_are_not_told(url: str) -> None:
    """An error shows the URL without its user and password."""
    with pytest.raises(SourceError) as refusal:
        open_source(url, timeout=1, max_size=1)
    assert "secret" not in str(refusal.value)
    assert "//config.example" in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "fit_for_a_log"),
    [
        ("http://me:secret@host/x", "http://host/x"),
        ("http://me@host", "http://host"),
        ("http://host/a@b", "http://host/a@b"),
        ("http://host?a@b", "http://host?a@b"),
        ("http://a@b@host/", "http://host/"),
        ("file:///a@b", "file:///a@b"),
    ],
)
def test_shown(url: str, fit_for_a_log: str) -> None:
    """Only user and password are left out of a URL, not what looks like them elsewhere."""
    assert shown(url) == fit_for_a_log


@given(st.text())
def test_errors_are_one_printable_line(message: str) -> None:
    """Whatever a server says, an error about it is one line without control characters."""
    assert str(SourceError(message)).isprintable()


def test_errors_pickle_and_have_the_common_base() -> None:
    """A `SourceError` is one of the package's errors, and comes out of pickling as it went in."""
    error = pickle.loads(pickle.dumps(SourceError("http://host/: no")))
    assert isinstance(error, ShmlockError)
    assert str(error) == "http://host/: no"


def test_without_urllib3_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without urllib3 an http URL is refused with the command that installs it, and file URLs are served."""
    monkeypatch.delitem(sys.modules, "shmlock.updater.from_http", raising=False)
    for module in [name for name in sys.modules if name.partition(".")[0] == "urllib3"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(SourceError, match=r'pip install "shmlock-rw\[http\]"'):
        open_source("http://config.example/", timeout=1, max_size=1)
    open_source("file:///etc/site.json", timeout=1, max_size=1)


def test_extras_are_loaded_when_needed() -> None:
    """Importing the updater, and its command line, loads neither urllib3 nor jsonschema."""
    code = (
        "import sys, shmlock.updater.__main__ as cli\n"
        "from shmlock.updater import open_source\n"
        "open_source('file:///x', timeout=1, max_size=1)\n"
        "assert not {'urllib3', 'jsonschema', 'shmlock.updater.from_http'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
