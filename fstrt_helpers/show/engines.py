"""Pictures of engines: which sizes they accept, what they compute in, what they cost; and a bar while one is built."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..engines.profile import Profile
from ..engines.report import BuildReport
from ..graphs.capacity import free_dimensions
from ..graphs.view import GraphView
from .plots import BLUE, GREEN, GREY, ORANGE, PURPLE, _figure, _plain

if TYPE_CHECKING:
    from types import TracebackType

    from matplotlib.figure import Figure

__all__ = ["BuildProgress", "named_sizes", "plot_builds", "plot_precision", "plot_profiles"]

_COLOURS = {"float32": ORANGE, "float16": BLUE, "bfloat16": GREEN, "int8": PURPLE, "int8 weights": "#e3bcd3"}
_GRAPHS = (PURPLE, BLUE, ORANGE, GREEN)
_MEANING = {
    "B": "rows of a batch",
    "S": "columns of the prompt",
    "C": "columns of the KV cache",
    "T": "frames of 46.4 ms",
}

Graph = str | os.PathLike[str]


def named_sizes(graph: Graph, profile: Profile) -> dict[str, tuple[int, int, int]]:
    """Least, likeliest and most of every named dimension of a graph.

    Args:
        graph: The ``.onnx`` file.
        profile: Made for it.

    Returns:
        Sizes by name, such as ``{"B": (1, 1, 8), "C": (512, 512, 512)}``; a multiple such as ``4*T`` counts as ``T``.
    """
    found: dict[str, tuple[int, int, int]] = {}
    for name, axes in free_dimensions(GraphView(graph).model).items():
        for axis, dim in axes.items():
            low, likely, high = (shape[axis] for shape in profile.inputs[name])
            factor, _, letter = dim.rpartition("*")
            by = int(factor) if factor.strip().isdigit() else 1
            found.setdefault(letter.strip() if by > 1 else dim, (low // by, likely // by, high // by))
    return found


def plot_profiles(profiles: Mapping[Graph, Profile]) -> Figure:
    """The sizes that engines accept: a line from the least to the most, a diamond at the likeliest.

    Args:
        profiles: Profile by ``.onnx`` file.
    """
    rows = [
        (profile.graph, letter, sizes, colour)
        for (graph, profile), colour in zip(profiles.items(), _GRAPHS * len(profiles), strict=False)
        for letter, sizes in named_sizes(graph, profile).items()
    ]
    figure = _figure(
        f"{len(rows)} free dimensions of {len(profiles)} graphs and their ranges", 9, 0.7 + 0.32 * len(rows)
    )
    axes = figure.subplots()
    for y, (_, _, (low, likely, high), colour) in enumerate(rows):
        axes.plot([low, high], [y, y], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot(likely, y, marker="D", color=colour, markersize=6)
        if low == high:
            axes.annotate(f"always {low:,}", (low, y), (9, 0), textcoords="offset points", va="center", fontsize=8)
            continue
        for value, side, place in ((low, -9, "right"), (high, 9, "left")):
            at = {"textcoords": "offset points", "va": "center", "ha": place, "fontsize": 8}
            axes.annotate(f"{value:,}", (value, y), (side, 0), **at)
        if likely not in (low, high):
            at = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(f"{likely:,}", (likely, y), (0, 6), **at)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.5, 2 * max(high for _, _, (_, _, high), _ in rows))
    ticks = [2**k for k in range(0, int(np.log2(axes.get_xlim()[1])) + 1, 2)]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_yticks(range(len(rows)), [f"{graph}   {letter}, {_MEANING.get(letter, '')}" for graph, letter, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.7)
    _plain(axes, "Sizes an engine accepts: from min to max, tuned for the diamond", "size (logarithmic)")
    return figure


def plot_precision(reports: Sequence[BuildReport]) -> Figure:
    """What the layers of engines compute in, products apart from all layers.

    Args:
        reports: One bar each.

    Returns:
        Two panels of stacked bars. Layers of integers and booleans only, such as those that compute shapes, are grey.
    """
    figure = _figure(f"share of layers by precision in {len(reports)} engines", 10, 0.9 + 0.26 * len(reports))
    panels = figure.subplots(1, 2, sharey=True)
    used: dict[str, str] = {}
    for axes, title, heavy in zip(
        panels, ("Products (most of the arithmetic)", "All layers"), (True, False), strict=True
    ):
        for y, report in enumerate(reports):
            counts: dict[str, int] = {}
            for share in report.layers:
                if share.heavy or not heavy:
                    counts[share.precision] = counts.get(share.precision, 0) + share.count
            left, total = 0.0, sum(counts.values())
            for precision, count in sorted(counts.items(), key=lambda item: _rank(item[0])):
                colour = used.setdefault(precision, _COLOURS.get(precision, GREY))
                axes.barh(y, count / total, left=left, color=colour, height=0.75)
                left += count / total
            axes.text(1.01, y, f"{total:,}", va="center", fontsize=8)
        axes.set_xlim(0, 1.1)
        axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        _plain(axes, title)
    panels[0].set_yticks(range(len(reports)), [f"{r.graph}  {r.precision}" for r in reports])
    panels[0].invert_yaxis()
    from matplotlib.patches import Patch

    names = sorted(used, key=_rank)
    handles = [Patch(color=used[name], label="integers, booleans" if name == "index" else name) for name in names]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=8, frameon=False)
    return figure


def _rank(precision: str) -> int:
    known = list(_COLOURS)
    return known.index(precision) if precision in known else len(known)


def plot_builds(sets: Mapping[str, Sequence[Mapping[str, Any]]], *, seconds: str = "seconds") -> Figure:
    """Size of engines and the time their builds took, by graph and precision.

    Args:
        sets: By title, such as a checkpoint and where it was measured: rows with ``graph``, ``precision``, ``MB`` and
            a time. A value of None is left out: nothing is drawn for it.
        seconds: Key of the time, which also names the axis: ``seconds`` or ``cpu_seconds``.
    """
    from matplotlib.patches import Patch

    figure = _figure("size and build time of engines: " + "; ".join(sets), 10, 2.3 * len(sets) + 0.3)
    panels = figure.subplots(len(sets), 2, squeeze=False)
    units = ("engine, MB (10⁶ bytes)", f"build, {seconds.replace('cpu_', 'CPU ')}")
    shown: list[str] = []
    for (title, rows), pair in zip(sets.items(), panels, strict=True):
        graphs = list(dict.fromkeys(row["graph"] for row in rows))
        kinds = sorted({row["precision"] for row in rows}, key=_rank)
        shown += [kind for kind in kinds if kind not in shown]
        width = 0.84 / len(kinds)
        for axes, key, unit in zip(pair, ("MB", seconds), units, strict=True):
            for row in rows:
                if (value := row[key]) is None:
                    continue
                x = graphs.index(row["graph"]) + (kinds.index(row["precision"]) - (len(kinds) - 1) / 2) * width
                axes.bar(x, value, width * 0.92, color=_COLOURS[row["precision"]])
                label = f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
                axes.annotate(label, (x, value), (0, 2), textcoords="offset points", ha="center", fontsize=7)
            axes.set_xticks(range(len(graphs)), graphs)
            axes.margins(y=0.15)
            _plain(axes, title, "", unit)
    handles = [Patch(color=_COLOURS[kind], label=kind) for kind in sorted(shown, key=_rank)]
    figure.legend(handles=handles, loc="outside lower right", ncols=len(handles), fontsize=8, frameon=False)
    return figure


class BuildProgress:
    """A bar while an engine is built, and a line of text that stays. Also keeps where the time went.

        with BuildProgress("frame, float16") as shown:
            cached_engine(..., progress=shown)

    In a notebook it shows a widget, which the line replaces when the build is over. Elsewhere there is the line alone,
    in :attr:`line`. There is no stop button, since a kernel that runs a cell does not hear it (ipykernel 7 sends the
    messages of a widget to the shell that made it); interrupting the kernel does stop a build.

    Args:
        name: What is built.

    Attributes:
        seconds: Time by phase of the builder, inner phases not counted again in outer ones.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self._open: dict[str, tuple[int, int]] = {}
        self._phase, self._since, self._began, self._ended = "", 0.0, 0.0, 0.0
        self._failure = ""
        self._box: Any = None
        self._handle: Any = None

    def __enter__(self) -> BuildProgress:
        self._began = self._since = time.perf_counter()
        if _in_notebook():
            import ipywidgets as w
            from IPython.display import display

            self._bar = w.IntProgress(value=0, max=1, layout=w.Layout(width="18em"))
            self._text = w.HTML(escape(self.name))
            self._box = w.HBox([self._bar, self._text])
            self._handle = display(self, display_id=True)
        return self

    def __call__(self, phase: str, step: int, total: int) -> None:
        """Takes what a build reports; give the object itself as ``progress=``."""
        self._account()
        if step < total:
            self._open[phase] = (step, total)
            self._phase = phase
        else:
            self._open.pop(phase, None)
            self._phase = next(reversed(self._open), "")
        if self._box is not None and self._open:
            (done, steps), inner = next(iter(self._open.values())), self._open.get(self._phase, (0, 0))
            self._bar.max, self._bar.value = steps, done
            self._text.value = escape(f"{self.name}: {self._phase} {inner[0]}/{inner[1]}")

    def __exit__(self, kind: type[BaseException] | None, _: object, trace: TracebackType | None) -> None:
        self._account()
        self._ended, self._failure = time.perf_counter(), kind.__name__ if kind else ""
        if self._handle is not None:
            self._handle.update({"text/plain": self.line}, raw=True)
            self._box.close()
            self._box = None

    @property
    def line(self) -> str:
        """What happened, in one line."""
        spent = (self._ended or time.perf_counter()) - self._began
        if self._failure:
            where = f" in phase {self._phase!r}" if self._phase else ""
            return f"{self.name}: ended by {self._failure}{where} after {spent:.1f} s"
        if not self.seconds:
            return f"{self.name}: nothing to build, {spent:.2f} s"
        longest = max(self.seconds, key=self.seconds.__getitem__)
        return f"{self.name}: {spent:.1f} s, of which {self.seconds[longest]:.1f} s in phase {longest!r}"

    def rows(self) -> list[dict[str, Any]]:
        """A row per phase, the longest first."""
        found = sorted(self.seconds.items(), key=lambda item: -item[1])
        return [{"phase": phase, "seconds": round(seconds, 2)} for phase, seconds in found]

    def _account(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._since = now

    def __repr__(self) -> str:
        return self.line

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        widget = self._box._repr_mimebundle_(**kwargs) if self._box is not None else None
        return {**(widget or {}), "text/plain": self.line}


def _in_notebook() -> bool:
    """Whether a kernel, and so a frontend with widgets, runs this."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None
