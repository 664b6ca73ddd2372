"""What is to happen, drawn from the seed: the same for the same seed, process by process. When it happens is not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["worker", "churner", "stranger"]
Suffering = Literal["kill", "stop", "terminate"]

_KINDS: Final[dict[Kind, int]] = {"worker": 65, "churner": 30, "stranger": 5}
_BLOWS: Final[dict[Suffering, int]] = {"kill": 80, "stop": 15, "terminate": 5}


@dataclass(frozen=True)
class Casting:
    """A process that is to begin. `infancy`: seconds after its start in which it is killed, if it is."""

    kind: Kind
    threads: int
    steps: int
    infancy: float | None


@dataclass(frozen=True)
class Blow:
    """What a process is to suffer, after so many seconds. `lasts`: how long it is stopped."""

    kind: Suffering
    after: float
    victim: float  # of all that are there, from 0 to 1
    lasts: float


class Plan:
    """The conductor's part."""

    def __init__(self, seed: int, blows: float) -> None:
        """`blows`: kills, stops and the like in a second."""
        self._dice = random.Random(f"{seed} conductor")
        self._blows = blows

    def casting(self) -> Casting:
        """Who comes next."""
        dice = self._dice
        kind = dice.choices(list(_KINDS), list(_KINDS.values()))[0]
        # A fork takes a process to its first step in about a millisecond or two; what it does then is as short.
        infancy = dice.choice((dice.uniform(0, 0.004), dice.uniform(0, 0.03))) if dice.random() < 0.3 else None
        return Casting(
            kind=kind,
            threads=dice.choice((1, 1, 2)),
            steps=int(dice.expovariate(1 / 1500)) + 1,
            infancy=None if kind == "stranger" else infancy,  # it would die in the interpreter's start
        )

    def blow(self) -> Blow:
        """What comes next."""
        dice = self._dice
        return Blow(
            kind=dice.choices(list(_BLOWS), list(_BLOWS.values()))[0],
            after=dice.expovariate(self._blows),
            victim=dice.random(),
            lasts=dice.choice((dice.uniform(0, 0.002), dice.uniform(0, 0.03), dice.uniform(0, 0.15))),
        )


def dice_of(seed: int, life: int) -> random.Random:
    """What one life throws."""
    return random.Random(f"{seed} life {life}")
