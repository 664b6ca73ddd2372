"""Segments that are overwritten with noise while they are in use: an error or right behaviour, no hang, no crash.

What is asserted of each noise: every use comes back, with a result or with one of our errors, and within the time that
it asked for; a use that asked for none may wait, as it would behind a process that is stopped, and a signal ends that;
and the process lives to say so. What can't be told from the truth is believed, so of values nothing is said here.
"""

from __future__ import annotations

import faulthandler
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import shmlock
from shmlock.errors import QueueFull
from tests.conftest import HANG, Child
from tests.hostile import noise

if TYPE_CHECKING:
    from tests.conftest import Peer, Start

EACH = 50  # noises of each kind of object
ROUNDS = 8  # of a crowd


@pytest.mark.parametrize("kind", noise.KINDS)
def test_noise_between_two_uses(name: str, kind: str) -> None:
    """Wherever it falls, whatever it is, and whatever is held: all uses come back, twice, and so does close."""
    for seed in range(EACH):
        dice = random.Random(f"{kind} {seed}")

        def suffer(_: Peer, dice: random.Random = dice, seed: int = seed) -> None:
            faulthandler.dump_traceback_later(HANG, exit=True)
            made = noise.made(kind, name)
            noise.fill(made)
            held = noise.held(made, dice.choice(noise.HOLDS.get(kind, [""])))
            parts = noise.places(made)
            where, what = dice.choice(list(parts)), dice.choice(list(noise.NOISES))
            print(f"{kind} {seed}: {what} in {where}")  # noqa: T201  shown when it fails
            noise.overwrite(name, parts[where], what, dice)
            asked = noise.uses(kind, made)
            for use in [*asked, *([noise.Use(held.release)] if held else []), *asked, noise.Use(made.close)]:
                if not noise.attempt(use):
                    return  # the guard is held by nobody that there is: all that comes would wait as well

        child = Child(suffer)
        try:
            assert child.join(2 * HANG) == 0
        finally:
            child.end()
            shmlock.unlink(name)


@pytest.mark.parametrize("kind", noise.KINDS)
def test_noise_while_many_use_it(name: str, start: Start, kind: str) -> None:
    """The same when three processes are in the middle of anything, the guard included, and it does not stop."""
    for seed in range(ROUNDS):
        dice = random.Random(f"crowd {kind} {seed}")
        made = noise.made(kind, name)  # not used here: a mutex of this process's in noise would outlast the test

        def suffer(peer: Peer, seed: int = seed) -> None:
            faulthandler.dump_traceback_later(HANG, exit=True)
            dice = random.Random(f"{kind} {seed}")
            made = noise.made(kind, name, create=False)
            with suppress(QueueFull):  # by what the others, who have begun, do to it
                noise.fill(made)
            asked = noise.uses(kind, made)
            peer.say("ready")
            while not peer.told():
                noise.attempt(dice.choice(asked))

        crowd = [start(suffer) for _ in range(3)]
        for child in crowd:
            child.hear()
        parts = noise.places(made)
        where, what = dice.choice(list(parts)), dice.choice(list(noise.NOISES))
        for _ in range(200):
            noise.overwrite(name, parts[where], what, dice)
        for child in crowd:
            child.say("stop")
        assert [child.join(2 * HANG) for child in crowd] == [0, 0, 0], f"{what} in {where}"
        shmlock.unlink(name)


@pytest.mark.parametrize("kind", noise.KINDS)
def test_a_newcomer_meets_noise(name: str, start: Start, kind: str) -> None:
    """A process that attaches to a segment that is full of noise is told so, or can use it in the same sense."""

    def attach(_: Peer) -> None:
        faulthandler.dump_traceback_later(HANG, exit=True)
        found: list[Any] = []
        assert noise.attempt(noise.Use(lambda: found.append(noise.made(kind, name, create=False)), timed=True))
        for made in found:
            if not all(noise.attempt(use) for use in noise.uses(kind, made)):
                return

    for seed in range(ROUNDS):
        dice = random.Random(f"newcomer {kind} {seed}")
        made = noise.made(kind, name)
        assert start(lambda _: noise.fill(noise.made(kind, name, create=False))).join() == 0
        parts = noise.places(made)
        what = dice.choice(list(noise.NOISES))
        noise.overwrite(name, parts[list(parts)[seed % len(parts)]], what, dice)
        assert start(attach).join(2 * HANG) == 0
        shmlock.unlink(name)
