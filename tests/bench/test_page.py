"""The page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from shmlock.bench.page import page
from shmlock.bench.samples import stamp

if TYPE_CHECKING:
    from shmlock.bench.samples import Results

_VOID = {"meta", "link", "img", "wbr"}


class Elements(HTMLParser):
    """All elements, with what they refer to; those that are opened are closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep it."""
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        self.ids |= {value or "" for name, value in attrs if name == "id"}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Of the last one that is open."""
        assert self.open.pop() == tag


@pytest.fixture
def told(some: Results) -> str:
    """Return a page with all in it."""
    some.knobs["workers"] = 8
    pictures = {("mix", "wall"): b"\x89PNG"}
    return page(stamp({"filelock": "3.1"}), [some], pictures, {"web": "<gunicorn> is not installed"})


def test_it_is_self_contained(told: str) -> None:
    """Nothing is fetched and nothing runs: all references are into the page, or data."""
    elements = Elements(told)
    assert not {"script", "iframe", "object", "form"} & set(elements.tags)
    assert all(reference.startswith("data:") or reference[1:] in elements.ids for reference in elements.references)
    assert not re.search(r"https?://|url\(|@import", told)
    assert "data:image/png;base64,iVBORw==" in told


def test_text_is_escaped(told: str) -> None:
    """What a fault or a name says is no HTML."""
    assert not re.search("<(asked|done|s|wrong|missing|gunicorn)>", told)
    for part in ("What is &lt;asked&gt;?", "It takes 0.01 &lt;s&gt;.", "A title &amp; more", "&lt;wrong&gt; data"):
        assert part in told


def test_it_has_everything(told: str) -> None:
    """Stamp, what was turned, numbers, what is not significant, what never came, what is wrong, how to redo it."""
    for part in (
        "filelock 3.1", "workers 8 instead of 100", '<span class="best">* 11.0 ± 0.4</span>', "2.86x",
        "x, not significant</span>", '<span class="wrong">never</span>', '<p class="wrong">Wrong: other, 2',
        "python -m shmlock.bench mix --set mix.workers=8", "pip install &lt;missing&gt;",
        "&lt;gunicorn&gt; is not installed", "1 fault was found",
    ):  # fmt: skip
        assert part in told


def test_it_reads_well_everywhere(told: str) -> None:
    """On a phone, in the dark and on paper; tables that are too wide scroll, also by the keyboard."""
    for part in ("width=device-width", "prefers-color-scheme: dark", "@media print", '<html lang="en">'):
        assert part in told
    assert told.count("<table>") == told.count('tabindex="0"')


def test_pictures_are_not_needed(some: Results) -> None:
    """Without matplotlib, the page has no picture, and is whole."""
    told = page(stamp({}), [some], {}, {})
    assert "img" not in Elements(told).tags
    assert "Not run" not in told
