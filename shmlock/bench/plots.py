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
from matplotlib.transforms import offset_copy
from PIL import Image

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
_WIDTH: Final = 4.4  # inches: on a phone, 370 pixels or so, and 9 points are 10 of them
_DPI: Final = 225
_SHADES: Final = 96  # of all colours, with those along the edges of letters and lines
_BAND: Final = 13  # points, a row of what never came
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
        self.log = self.unit != "%" and len(above) > 0 and min(real) >= 0 and max(above) > _LOG * min(above)
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
        self.counts = _counts(self.columns)

    def _summaries(self) -> list[Summary]:
        found = (self.results.summary(self.name, column, side) for side in self.sides for column in self.columns)
        return [each for each in found if each is not None]

    def png(self) -> bytes:
        half = math.ceil(len(self.sides) / 2)
        longest = [max(map(len, sides), default=0) for sides in (self.sides[:half], self.sides[half:])]
        across = 1 if len(self.sides) < 3 or sum(longest) > 60 else 2
        rows = half if across == 2 else len(self.sides)
        figure = Figure(figsize=(_WIDTH, 3.1 + 0.19 * rows), dpi=_DPI, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        if self.log:
            axes.set_yscale("log")
        axes.set_ylim(self.bottom, self.top)
        handles = self._lines(axes, self.counts) if self.counts else self._bars(axes)
        title = "\n".join(textwrap.wrap(heading(self.measure.what, ""), 40))
        axes.set_title(title, fontsize=10, fontweight="bold", loc="left", pad=8 + _BAND * len(self._never()))
        unit = {"x": "times", "": "number", "/s": "per second"}.get(self.unit, self.unit)
        better = f"; {self.measure.better} is better" if self.measure.better else ""
        axes.set_ylabel(unit + (", logarithmic" if self.log else "") + better, fontsize=9)
        axes.set_xlabel(self.measure.columns or self.results.scenario.columns, fontsize=9)
        if self.log:
            subs = (1.0, 2.0, 5.0) if self.top < 1000 * self.bottom else (1.0,)
            axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
        figure.legend(handles, self.sides, loc="outside lower left", ncols=across, fontsize=8, frameon=False)
        return _png(figure)

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
            colour, hatch = _colour(style), _HATCHES[style % len(_HATCHES)]
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
        axes.annotate(word, (x, 0.98), xycoords=("data", "axes fraction"), rotation=90, ha="center", va="top",
                      fontsize=7.5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})  # fmt: skip

    def _never(self) -> list[str]:
        """The sides that have a row above the axes: as lines, a bar can't say it."""
        if not self.counts:
            return []
        found = {side: [self._found(side, column) for column in self.columns] for side in self.sides}
        return [side for side, each in found.items() if any(one and math.isinf(one[0]) for one in each)]

    def _lines(self, axes: Axes, counts: list[int]) -> list[Any]:
        handles = []
        wide = max(counts) > 8 * max(min(counts), 1) and min(counts) > 0
        if wide:
            axes.set_xscale("log", base=2)
        for side in self.sides:
            style = self.styles[side]
            look: dict[str, Any] = {
                "color": _colour(style),
                "linewidth": 1.4 if style else 2.4,
                "marker": _MARKERS[style % len(_MARKERS)],
                "linestyle": _STYLES[max(style - 1, 0) // (len(_COLOURS) - 1) % len(_STYLES)],
                "markeredgecolor": "#222222",
                "markeredgewidth": 0.5,
                "markersize": 6,
            }
            points = [(count, self._found(side, column)) for count, column in zip(counts, self.columns, strict=True)]
            real = [(x, *found) for x, found in points if found and math.isfinite(found[0])]
            x, y = [each[0] for each in real], [each[1] for each in real]
            bars = [[each[2] for each in real], [each[3] for each in real]]
            handles.append(axes.errorbar(x, y, bars, elinewidth=1, capsize=2, **look))
            never = [count for count, found in points if found and math.isinf(found[0])]
            if never:  # in a row of its own above the axes
                row = self._never().index(side)
                above = offset_copy(
                    axes.get_xaxis_transform(), axes.get_figure(root=True), 0, _BAND * (row + 0.7), "points"
                )
                axes.plot(never, [1] * len(never), **{**look, "linestyle": ""}, transform=above, clip_on=False)
                axes.annotate("never", (0, 1), (-7, _BAND * (row + 0.7)), xycoords="axes fraction", fontsize=9,
                              textcoords="offset points", ha="right", va="center")  # fmt: skip
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        return handles


def _png(figure: Figure) -> bytes:
    """With a palette: a third of the size, and a page has thirty of them."""
    drawn, out = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", facecolor="white")
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(_SHADES, dither=Image.Dither.NONE).save(out, format="png", optimize=True)
    return out.getvalue()


def _colour(style: int) -> str:
    """The first is nobody else's."""
    return _COLOURS[1 + (style - 1) % (len(_COLOURS) - 1)] if style else _COLOURS[0]


def _counts(columns: list[str]) -> list[int] | None:
    """Numbers, at least three and growing; else None: bars show it better."""
    found = [re.fullmatch(r"(\d+)( [a-z]+)?", column) for column in columns]
    counts = [int(each[1]) for each in found if each]
    growing = all(before < after for before, after in itertools.pairwise(counts))
    return counts if len(counts) == len(columns) >= 3 and growing else None


def _tick(value: float) -> str:
    return number(value, 0) if value == 0 or abs(value) >= 10 else f"{value:.3g}"
