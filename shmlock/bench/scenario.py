"""What a scenario is: a question, its knobs, what is measured, and for each side a way to measure it once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shmlock.bench.samples import Results

Knobs = dict[str, Any]


class WrongData(Exception):  # noqa: N818  it is a finding
    """What a side was to keep whole was not whole."""


@dataclass(frozen=True)
class Measure:
    """One quantity: of what unit, and which way is better."""

    what: str
    unit: str
    better: Literal["less", "more", ""] = "less"  # "": it is for information, and not compared
    columns: str = ""  # what its columns are, where they are not the scenario's


@dataclass(frozen=True)
class Knob:
    """A number that can be turned: as the seed has it, and for a quick look."""

    usual: Any
    quick: Any
    about: str


class Case(NamedTuple):
    """One side in one column of the table. `measure` does one round: values by the name of their measure.

    Of a measure that has columns of its own, values by column. It raises WrongData when what it kept was not whole, and
    returns `inf` for what never came.
    """

    side: str
    column: str
    measure: Callable[[], Mapping[str, float | Mapping[str, float]]]


@dataclass(frozen=True)
class Scenario:
    """A question that is answered by measuring."""

    name: str
    title: str
    question: str  # a paragraph: what it asks, and why
    measures: Mapping[str, Measure]
    knobs: Mapping[str, Knob]
    cases: Callable[[Knobs], Sequence[Case]]
    answer: Callable[[Results], str]  # in a sentence or two
    columns: str = ""  # what the columns are: "processes", say
    rounds: Knob = field(default=Knob(5, 2, "how often each side is measured"))
    notes: str = ""  # how something is computed, say
    missing: Callable[[], Mapping[str, str]] = dict  # sides that can't be measured here: why not
    close: Callable[[], None] = lambda: None  # called at the end, whatever happens

    def measurable(self, knobs: Knobs) -> tuple[list[Case], Mapping[str, str]]:
        """The cases of the sides that can be measured here; and those that can't, with the reason."""
        missing = self.missing()
        return [case for case in self.cases(knobs) if case.side not in missing], missing

    def turned(self, *, quick: bool, given: Mapping[str, Any] | None = None) -> Knobs:
        """The knobs for a run. Raises KeyError for a knob that there is not."""
        knobs = {name: knob.quick if quick else knob.usual for name, knob in self.knobs.items()}
        knobs["rounds"] = self.rounds.quick if quick else self.rounds.usual
        for name, value in (given or {}).items():
            if name not in knobs:
                raise KeyError(f"{self.name} has no knob {name!r}; it has {', '.join(sorted(knobs))}")
            knobs[name] = type(knobs[name])(value)
        return knobs
