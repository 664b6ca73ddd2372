"""Pictures of the samples, each wide enough to be read on a phone."""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from shmlock.bench.report import heading, number, present, reference, scale

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from shmlock.bench.samples import Results, Summary

# Okabe and Ito's, "Color Universal Design", 2008: told apart also by those who don't see red or green. Ours is blue.
_COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999")
_HATCHES: Final = ("", "///", "...", "\\\\\\", "xxx", "---", "ooo", "+++", "|||", "***", "//..")
_MARKERS: Final = "os^DvP*Xdph"
_STYLES: Final = ("-", "--", "-.", ":")
_WIDTH: Final = 5.0  # inches: at a phone's 400 pixels, 9 points are read without glasses
_DPI: Final = 200
_LOG: Final = 30  # times that the largest is the smallest


def picture(results: Results, name: str) -> bytes:
    """A PNG of one measure."""
    return _Picture(results, name).png()


def pictures(results: Results) -> Mapping[str, bytes]:
    """By measure, those that there are samples of."""
    measured = {name for name, _, _ in results.samples}
    return {name: picture(results, name) for name in results.scenario.measures if name in measured}


class _Picture:
    def __init__(self, results: Results, name: str) -> None:
        self.results, self.name = results, name
        self.measure = results.scenario.measures[name]
        self.sides, self.columns = present(results, name)
        medians = [results.median(name, column, side) for side in self.sides for column in self.columns]
        self.factor, self.unit = scale(self.measure.unit, medians)
        real = [value * self.factor for value in medians if math.isfinite(value)]
        above = [value for value in real if value > 0]
        self.log = len(above) > 0 and min(real) >= 0 and max(above) > _LOG * min(above)
        highs = [found.high * self.factor for found in self._summaries() if math.isfinite(found.high)]
        most = max([*highs, *real], default=0)
        if self.log:
            self.bottom, self.top = min(above) / 2, most * 2
        else:
            self.bottom, self.top = min(0, *real, 0), (most or 1) * 1.1
        # Ours has the same colour in all pictures, and no side has another's in two pictures of a scenario.
        first = reference(results)
        ordered = [*([first] if first else []), *(side for side in results.sides if side != first)]
        self.styles = {side: index for index, side in enumerate(ordered)}

    def _summaries(self) -> list[Summary]:
        found = (self.results.summary(self.name, column, side) for side in self.sides for column in self.columns)
        return [each for each in found if each is not None]

    def png(self) -> bytes:
        rows = math.ceil(len(self.sides) / 2)
        figure = Figure(figsize=(_WIDTH, 3.4 + 0.2 * rows), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        if self.log:
            axes.set_yscale("log")
        axes.set_ylim(self.bottom, self.top)
        counts = _counts(self.columns)
        handles = self._lines(axes, counts) if counts else self._bars(axes)
        better = {"less": " (less is better)", "more": " (more is better)", "": ""}[self.measure.better]
        title = heading(self.measure.what, "") + better
        axes.set_title("\n".join(textwrap.wrap(title, 52)), fontsize=10, fontweight="bold", loc="left")
        unit = {"x": "times", "": "number"}.get(self.unit, self.unit)
        axes.set_ylabel(unit + (", each step 10 times the last" if self.log else ""), fontsize=9)
        axes.set_xlabel(self.results.scenario.columns, fontsize=9)
        if self.log:
            axes.yaxis.set_major_locator(LogLocator(numticks=12))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
        figure.legend(
            handles, self.sides, loc="outside lower left", ncols=min(2, len(handles)), fontsize=8.5, frameon=False
        )
        out = io.BytesIO()
        figure.savefig(out, format="png", facecolor="white")
        return out.getvalue()

    def _found(self, side: str, column: str) -> tuple[float, float, float] | None:
        """Median, and how far the middle half reaches below and above it."""
        found = self.results.summary(self.name, column, side)
        if found is None:
            return None
        median, low, high = (each * self.factor for each in (found.median, found.low, found.high))
        if math.isinf(median):
            return median, 0, 0
        return median, max(median - low, 0), min(max(high - median, 0), self.top - median)

    def _bars(self, axes: Axes) -> list[Any]:
        width = 0.84 / len(self.sides)
        handles = []
        for index, side in enumerate(self.sides):
            style = self.styles[side]
            colour, hatch = _COLOURS[style % len(_COLOURS)], _HATCHES[style % len(_HATCHES)]
            look: dict[str, Any] = {"facecolor": colour, "edgecolor": "#222222", "linewidth": 0.6, "hatch": hatch}
            handles.append(axes.bar([0], [math.nan], width, **look))
            for place, column in enumerate(self.columns):
                found = self._found(side, column)
                if found is None:
                    continue
                x = place - 0.42 + width * (index + 0.5)
                median, below, above = found
                if math.isinf(median):
                    axes.bar([x], [self.top], width, facecolor="white", edgecolor=colour, linewidth=1, hatch="////")
                    self._say(axes, x, "never")
                elif median == 0:
                    axes.annotate("0", (x, 0), (0, 3), xycoords=("data", "axes fraction"), textcoords="offset points",
                                  ha="center", fontsize=7)  # fmt: skip
                else:
                    axes.bar([x], [median], width, **look)
                    if below or above:
                        bars = [[below], [above]]
                        axes.errorbar([x], [median], bars, fmt="none", ecolor="black", elinewidth=1, capsize=2)
        axes.set_xticks(range(len(self.columns)), self.columns)
        axes.set_xlim(-0.55, len(self.columns) - 0.45)
        return handles

    def _say(self, axes: Axes, x: float, word: str) -> None:
        axes.annotate(word, (x, 0.5), xycoords=("data", "axes fraction"), rotation=90, ha="center", va="center",
                      fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip

    def _lines(self, axes: Axes, counts: list[int]) -> list[Any]:
        handles = []
        wide = max(counts) > 8 * max(min(counts), 1) and min(counts) > 0
        if wide:
            axes.set_xscale("log", base=2)
        for side in self.sides:
            style = self.styles[side]
            look: dict[str, Any] = {
                "color": _COLOURS[style % len(_COLOURS)],
                "marker": _MARKERS[style % len(_MARKERS)],
                "linestyle": _STYLES[style // len(_COLOURS) % len(_STYLES)],
                "markeredgecolor": "#222222",
                "markeredgewidth": 0.5,
                "markersize": 6,
            }
            points = [(count, self._found(side, column)) for count, column in zip(counts, self.columns, strict=True)]
            real = [(x, *found) for x, found in points if found and math.isfinite(found[0])]
            x, y = [each[0] for each in real], [each[1] for each in real]
            bars = [[each[2] for each in real], [each[3] for each in real]]
            handles.append(axes.errorbar(x, y, bars, elinewidth=1, capsize=2, **look))
            for count, found in points:
                if found and math.isinf(found[0]):
                    axes.plot([count], [self.top], **{**look, "linestyle": ""}, clip_on=False)
                    axes.annotate("never", (count, self.top), (0, -6), textcoords="offset points", fontsize=8,
                                  ha="center", va="top", color="#222222")  # fmt: skip
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        return handles


def _counts(columns: list[str]) -> list[int] | None:
    """Numbers, at least three and growing; else None: bars show it better."""
    found = [re.fullmatch(r"(\d+)( [a-z]+)?", column) for column in columns]
    counts = [int(each[1]) for each in found if each]
    growing = all(before < after for before, after in itertools.pairwise(counts))
    return counts if len(counts) == len(columns) >= 3 and growing else None


def _tick(value: float) -> str:
    return number(value, 0) if value == 0 or abs(value) >= 10 else f"{value:.3g}"
