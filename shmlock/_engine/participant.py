"""What a thread keeps of itself in one segment."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from shmlock._engine.stats import Account
from shmlock._segment.layout import ACCOUNT_AT, slot

if TYPE_CHECKING:
    from shmlock._engine.state import Words
    from shmlock._kernel.parker import Napper, Parker


class Participant:
    """One thread in one segment; changed by that thread only, but for `present`."""

    __slots__ = (
        "account",
        "asked",
        "base",
        "busy",
        "claiming",
        "downgraded",
        "here",
        "home",
        "looking",
        "number",
        "parker",
        "pid",
        "present",
        "tid",
    )

    account: Account

    def __init__(self, home: int) -> None:
        self.home = home  # the id of the `Here` that it is in
        self.number = -1  # no slot yet
        self.base = 0
        self.claiming = -1  # the slot that a claim under way has tried last
        self.pid = os.getpid()
        self.tid = threading.get_native_id()
        self.busy = False  # on a slow path
        self.asked = 0  # the modes (1 << mode) that the slow path under way asks for or gives back
        self.looking = False  # reads, to an end that it comes to by itself
        self.downgraded = False  # one R was an S or W, whose `with` has not ended yet
        self.present = True  # False when it was given up
        self.here: object = None  # the one that this thread's end is heard of by, when another thread has closed
        self.parker: Parker | Napper | None = None

    def trying(self, number: int) -> None:
        """A claim is about to touch this slot."""
        self.claiming = number

    def claimed(self, number: int, words: Words) -> None:
        """The slot is ours."""
        self.base = slot(number)
        self.account = Account(words, self.base + ACCOUNT_AT)
        self.number = number
        self.claiming = -1

    def is_caller(self) -> bool:
        """Whether the calling thread is the one; not so in a forked child, or at the end of another thread."""
        return self.pid == os.getpid() and self.tid == threading.get_native_id()
