"""Benchmark records as pictures. Every function takes records by name and draws only what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..measure.parts import FRAME_SECONDS
from ..measure.recommend import base_rows
from ..measure.verdicts import Verdict, find_verdict
from .benchmark_tables import panel_title
from .plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, _figure, _plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "candidate_colour",
    "plain_ticks",
    "plot_growth",
    "plot_memory",
    "plot_quality",
    "plot_spoken",
    "plot_speed",
    "plot_throughput",
]

_FRAME_MS = 1e3 * FRAME_SECONDS
_COLOURS = {"upstream-eager": "#999999", "upstream-compile": "#555555", "torch": BLUE, "torch-cudagraph": "#56b4e9",
            "ort-cpu": ORANGE, "ort-cuda": "#e69f00", "ort-cuda-graph": "#8c5a00", "tensorrt": GREEN,
            "tensorrt-rtx": "#00604a"}  # fmt: skip
_SHADES = {"float32": 1.0, "bfloat16": 0.85, "float16": 0.8, "int8": 0.6, "int4": 0.4}
_MARKERS = {"float32": "o", "float16": "s", "bfloat16": "^", "int8": "D", "int4": "v"}

Record = Mapping[str, Any]
Records = Mapping[str, Record]
Key = tuple[str, str, str]


def candidate_colour(candidate: str, precision: str) -> tuple[float, float, float]:
    """A colour per candidate, paler with fewer bits."""
    from matplotlib.colors import to_rgb

    shade = _SHADES[precision]
    red, green, blue = (1 - shade * (1 - part) for part in to_rgb(_COLOURS[candidate]))
    return red, green, blue


def plain_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis as plain numbers: 1, 2, 5, 10."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if axis.get_view_interval().max() < 1e3 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def _name(key: Key) -> str:
    return f"{key[0]} {key[1]}"


def _panels(records: Records, what: str, height: float, width: float = 10.0) -> tuple[Figure, list[Axes]]:
    """A figure with a panel per record, or one that says there is none."""
    figure = _figure(f"{what}, {len(records)} records", width, height)
    count = max(1, len(records))
    columns = min(2, count)
    axes = figure.subplots(math.ceil(count / columns), columns, squeeze=False).ravel().tolist()
    for empty in axes[len(records) :]:
        empty.set_axis_off()
    if not records:
        axes[0].text(0.5, 0.5, "no record holds this yet", ha="center", va="center", fontsize=10)
    return figure, axes[: len(records)]


def _with(records: Records, graph: str) -> Records:
    return {name: record for name, record in records.items() if base_rows(record["rows"], graph)}


def plot_speed(records: Records) -> Figure:
    """Milliseconds per frame at the base point: a bar per candidate, its whisker up to the 95th percentile.

    The dotted line is real time; hollow diamonds are the floor, the bytes a frame must read at the speed of a copy.
    """
    records = _with(records, "frame")
    most = max((len(base_rows(record["rows"])) for record in records.values()), default=1)
    figure, panels = _panels(records, "milliseconds per frame by candidate", (0.9 + 0.3 * most) * _lines(records))
    for axes, (source, record) in zip(panels, records.items(), strict=True):
        rows = base_rows(record["rows"])
        for place, (key, row) in enumerate(rows.items()):
            ms, late = row["ms_median"], row["ms_p95"] - row["ms_median"]
            axes.barh(
                place, ms, color=candidate_colour(*key[:2]), xerr=[[0], [late]], error_kw={"lw": 0.8, "ecolor": INK}
            )
            axes.text(row["ms_p95"] * 1.08, place, f"{ms:.3g}", va="center", fontsize=7)
            if row["floor_ms"]:
                axes.plot(row["floor_ms"], place, "d", mfc="none", mec=INK, ms=5)
        axes.axvline(_FRAME_MS, color=INK, linestyle=":", linewidth=1)
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [_name(key) for key in rows])
        axes.set_xlim(right=2.5 * max([_FRAME_MS, *(row["ms_p95"] for row in rows.values())]))
        axes.invert_yaxis()
        plain_ticks(axes.xaxis)
        _plain(axes, panel_title(source, record), "ms per frame of 46.4 ms, logarithmic")
    return figure


def _lines(records: Records) -> int:
    return max(1, math.ceil(len(records) / 2))


def plot_spoken(records: Records) -> Figure:
    """Where the time of a spoken sentence goes, per second of audio, stage by stage; diamonds are the first audio."""
    records = _with(records, "pipeline")
    stages = {"text": INK, "prefill": PURPLE, "frames": BLUE, "codec": ORANGE, "rest": GREY}
    most = max((len(base_rows(record["rows"], "pipeline")) for record in records.values()), default=1)
    figure, panels = _panels(records, "time by stage", (1.1 + 0.3 * most) * _lines(records))
    for axes, (source, record) in zip(panels, records.items(), strict=True):
        rows = base_rows(record["rows"], "pipeline")
        for place, row in enumerate(rows.values()):
            spans = {name: row["stages"].get(name) or 0.0 for name in stages}
            spans["rest"] = max(0.0, row["ms_median"] - sum(spans.values()))
            scale = (row["rtf"] or 0.0) / sum(spans.values())  # from milliseconds of a sentence to the real-time factor
            left = 0.0
            for name, ms in spans.items():
                label = name if place == 0 and axes is panels[0] else None
                axes.barh(place, ms * scale, left=left, color=stages[name], label=label)
                left += ms * scale
            axes.text(left, place, f" first audio {row['ttfa_ms']:,.0f} ms", va="center", fontsize=7)
        axes.axvline(1.0, color=INK, linestyle=":", linewidth=1)
        axes.set_xlim(right=1.5 * max([0.7, *(row["rtf"] or 0.0 for row in rows.values())]))
        axes.set_yticks(range(len(rows)), [_name(key) for key in rows])
        axes.invert_yaxis()
        _plain(axes, panel_title(source, record), "seconds of work per second of audio")
    if records:
        figure.legend(loc="outside upper right", ncols=5, fontsize=8, frameon=False)
    return figure


def plot_memory(records: Records) -> Figure:
    """Memory of the frame loop, stacked: the loaded model, what running adds to stay, what it adds at its peak."""
    records = _with(records, "frame")
    parts = {"loaded": BLUE, "added by running": ORANGE, "peak above that": GREY}
    most = max((len(base_rows(record["rows"])) for record in records.values()), default=1)
    figure, panels = _panels(records, "memory by candidate", (1.1 + 0.3 * most) * _lines(records))
    for axes, (source, record) in zip(panels, records.items(), strict=True):
        rows = base_rows(record["rows"])
        for place, (key, row) in enumerate(rows.items()):
            witness = "driver_mb" if key[2] == "cuda" else "host_mb"
            loaded, steady, peak = (row["memory"].get(s, {}).get(witness) or 0 for s in ("weights", "steady", "peak"))
            sizes = (min(loaded, steady) or loaded, max(0, steady - loaded), max(0, peak - max(steady, loaded)))
            left = 0.0
            for (name, colour), size in zip(parts.items(), sizes, strict=True):
                label = name if place == 0 and axes is panels[0] else None
                axes.barh(place, size, left=left, color=colour, label=label)
                left += size
            axes.text(left, place, f" {left:,.0f}", va="center", fontsize=7)
        axes.set_xlim(right=1.15 * max(axes.get_xlim()))
        axes.set_yticks(range(len(rows)), [_name(key) for key in rows])
        axes.invert_yaxis()
        witness = "by the GPU's driver" if record["machine"]["gpu"] else "resident, beyond Python's own"
        _plain(axes, panel_title(source, record), f"MB, {witness}")
    if records:
        figure.legend(loc="outside upper right", ncols=3, fontsize=8, frameon=False)
    return figure


def plot_quality(records: Records, verdicts: Sequence[Verdict]) -> Figure:
    """Speed against quality: share of draws that are those of float32, against milliseconds per frame.

    Filled marks passed the gate, hollow ones did not. Candidates whose precision was not judged are left out here; the
    table of recommendations names them.
    """
    records = _with(records, "frame")
    figure, panels = _panels(records, "speed against quality", 2.6 * _lines(records))
    for axes, (source, record) in zip(panels, records.items(), strict=True):
        shown = []
        for key, row in base_rows(record["rows"]).items():
            agreement = _agreement(verdicts, key)
            if agreement is None:
                continue
            passed = find_verdict(verdicts, *key[:2])[0]
            colour = candidate_colour(*key[:2])
            axes.plot(row["ms_median"], 100 * (1 - agreement) + 0.01, _MARKERS[key[1]], color=colour,
                      mfc=colour if passed else "none", ms=7)  # fmt: skip
            shown.append((row["ms_median"], 100 * (1 - agreement) + 0.01, _name(key)))
        for ms, other, name in shown:
            axes.annotate(name, (ms, other), (5, 4), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(60, 0.006)
        axes.margins(x=0.25)
        plain_ticks(axes.xaxis)
        axes.set_yticks([0.01, 0.1, 1, 10], ["0", "0.1", "1", "10"])
        _plain(axes, panel_title(source, record), "ms per frame", "other draws than\nfloat32 (%), inverted")
    return figure


def _agreement(verdicts: Sequence[Verdict], key: Key) -> float | None:
    if key[0] == "torch" and key[1] == "float32":
        return 1.0
    known = [v for v in verdicts if v.precision == key[1] and v.candidate.split("-")[0] == key[0].split("-")[0]]
    own = [v for v in known if v.candidate == key[0]]
    return next((v.agreement for v in [*own, *known]), None)


def plot_growth(records: Records) -> Figure:
    """Milliseconds per frame against filled and allocated columns, and of a prompt against its length."""
    records = _with(records, "frame")
    figure = _figure(f"latency against position, capacity and prompt length, {len(records)} records", 10,
                     2.8 * max(1, len(records)))  # fmt: skip
    grid = figure.subplots(max(1, len(records)), 3, squeeze=False)
    if not records:
        grid[0][1].text(0.5, 0.5, "no record holds this yet", ha="center", va="center")
    for panels, (source, record) in zip(grid, records.items(), strict=False):
        rows = record["rows"]
        for key, base in base_rows(rows).items():
            mine = [r for r in rows if (r["candidate"], r["precision"], r["device"]) == key and r["not_run"] is None]
            frames = [r for r in mine if r["graph"] == "frame" and r["batch"] == 1]
            at = [r for r in frames if r["position"] == base["position"]]
            places = {(r["capacity"] or 0, r["position"]) for r in frames}
            # The capacity at which most positions were measured, the largest of several.
            deepest = max((sum(c == o for o, _ in places), c) for c, _ in places)[1]
            along = [r for r in frames if (r["capacity"] or 0) == deepest]
            prompts = [r for r in mine if r["graph"] == "prefill" and r["batch"] == 1]
            curves = ((along, "position"), (at, "capacity"), (prompts, "prompt"))
            for axes, (chosen, factor) in zip(panels, curves, strict=True):
                points = sorted({r[factor]: r["ms_median"] for r in chosen if r[factor] is not None}.items())
                if points:
                    axes.plot(*zip(*points, strict=True), _MARKERS[key[1]] + "-", color=candidate_colour(*key[:2]),
                              ms=4, lw=1, label=_name(key))  # fmt: skip
        names = ("columns filled", "columns allocated", "columns of the prompt")
        for axes, name in zip(panels, names, strict=True):
            axes.set_yscale("log")
            axes.set_xscale("log", base=2)
            plain_ticks(axes.yaxis)
            measured = sorted({float(x) for line in axes.get_lines() for x in line.get_xdata()})
            axes.set_xticks(measured, [f"{x:.0f}" for x in measured], rotation=45 if len(measured) > 4 else 0)
            axes.set_xticks([], minor=True)
            _plain(
                axes, panel_title(source, record) if axes is panels[0] else "", name, "ms" if axes is panels[0] else ""
            )
        panels[2].legend(
            handles=panels[1].get_lines(), fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5)
        )
    return figure


def plot_throughput(records: Records) -> Figure:
    """Frames per second of all rows together, against the number of rows. Grey: as many times the speed of one row."""
    chosen: dict[str, Record] = {
        name: record
        for name, record in records.items()
        if any(row["graph"] == "frame" and row["batch"] > 1 and row["not_run"] is None for row in record["rows"])
    }
    figure, panels = _panels(chosen, "throughput against batch", 2.8 * _lines(chosen))
    for axes, (source, record) in zip(panels, chosen.items(), strict=True):
        rows = [row for row in record["rows"] if row["graph"] == "frame" and row["not_run"] is None]
        for key, base in base_rows(rows).items():
            place = (base["capacity"], base["position"])
            points = {
                row["batch"]: row["frames_per_second"]
                for row in rows
                if (row["candidate"], row["precision"], row["device"]) == key
                and (row["capacity"], row["position"]) == place
            }
            if len(points) > 1:
                batches = sorted(points)
                axes.plot(batches, [points[1] * b for b in batches], color=GREY, lw=1, zorder=0)
                axes.plot(batches, [points[b] for b in batches], _MARKERS[key[1]] + "-",
                          color=candidate_colour(*key[:2]), ms=4, lw=1, label=_name(key))  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.axhline(1e3 / _FRAME_MS, color=INK, linestyle=":", linewidth=1)
        axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        _plain(axes, panel_title(source, record), "rows", "frames per second")
    return figure
