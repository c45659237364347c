"""The roofline: what a frame computes per second, against what it computes per byte, under the machine's two limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoint_config import DualARConfig
from ..full_random import OFFICIAL_CONFIG
from ..measure.roofline import frame_work
from .benchmark_plots import _panels, candidate_colour, plain_ticks
from .benchmark_tables import panel_title
from .plots import INK, _plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_roofline", "roofline_points"]


def config_of(record: Mapping[str, Any]) -> DualARConfig:
    """Shape of the model a record measured: that of ``tiny``, or the official one."""
    if record["rows"][0]["checkpoint"].split(" ")[0] == "tiny":
        from ..checkpoint import find_checkpoint

        return find_checkpoint("tiny").config
    return DualARConfig.from_dict(OFFICIAL_CONFIG)


def roofline_points(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One point per measured frame: operations per byte, operations per second, share of the memory roof.

    Args:
        record: A benchmark record.

    Returns:
        ``intensity`` in operations per byte, ``gflops`` in 10^9 operations per second, and who it is.
    """
    config = config_of(record)
    points = []
    for row in record["rows"]:
        if row["graph"] != "frame" or row["not_run"] is not None:
            continue
        kv = 4.0 if row["device"] == "cpu" and row["precision"] in ("int8", "int4") else None
        work = frame_work(config, row["precision"], position=row["position"], batch=row["batch"], kv_bytes_per_value=kv)
        points.append(
            {
                "candidate": row["candidate"],
                "precision": row["precision"],
                "device": row["device"],
                "batch": row["batch"],
                "intensity": work.intensity(),
                "gflops": work.operations / row["ms_median"] / 1e6,
                "share of the memory roof": row["floor_share"],
            }
        )
    return points


def plot_roofline(records: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Every measured frame under its machine's roofs; the batch stands beside a point.

    The slanted line is memory: a copy's bandwidth times operations per byte. The flat one, where the record has it, is
    the rate of a large matrix product.
    """
    points = {name: roofline_points(record) for name, record in records.items()}
    records = {name: record for name, record in records.items() if points[name]}
    figure, panels = _panels(records, "roofline", 3.2 * max(1, (len(records) + 1) // 2))
    for axes, (name, record) in zip(panels, records.items(), strict=True):
        mine = points[name]
        device = "cuda" if any(p["device"] == "cuda" for p in mine) else "cpu"
        roof = record["bandwidth"].get(device)
        xs = [min(p["intensity"] for p in mine) / 2, max(p["intensity"] for p in mine) * 4]
        if roof:
            axes.plot(xs, [roof * x for x in xs], color=INK, lw=1)
            axes.text(xs[0], roof * xs[0] * 1.3, f"{roof:,.0f} GB/s", fontsize=7, rotation=0)
        rate = (record["settings"].get("tflops") or {}).get(device)
        if rate:
            axes.axhline(1e3 * rate, color=INK, lw=1, linestyle="--")
            axes.text(xs[0], 1e3 * rate * 1.1, f"{1e3 * rate:,.0f} GFLOP/s, large products", fontsize=7)
        seen: set[str] = set()
        for p in mine:
            label = f"{p['candidate']} {p['precision']}"
            axes.plot(p["intensity"], p["gflops"], "o", ms=4, color=candidate_colour(p["candidate"], p["precision"]),
                      label=None if label in seen else label)  # fmt: skip
            seen.add(label)
            if p["batch"] > 1:
                axes.annotate(str(p["batch"]), (p["intensity"], p["gflops"]), (4, 2), textcoords="offset points",
                              fontsize=6)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_ticks(axes.xaxis)
        plain_ticks(axes.yaxis)
        axes.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        _plain(axes, panel_title(name, record), "operations per byte", "10⁹ operations per second")
    return figure
