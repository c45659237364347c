"""From readings to the rows of a record: summaries, roofline figures, ratios against upstream, the table to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ..checkpoint import Checkpoint
from .grid import Point
from .latency import frames_per_second, real_time_factor, summarise
from .record import ROW_FIELDS
from .roofline import frame_work
from .rounds import Outcome

__all__ = ["add_ratios", "make_row", "table_rows"]

_ROOT = Path(__file__).resolve().parents[2]
_REFERENCES = {"vs_eager": "upstream-eager", "vs_compile": "upstream-compile"}


def make_row(outcome: Outcome, point: Point, checkpoint: Checkpoint, bandwidth: Mapping[str, float]) -> dict[str, Any]:
    """A row of a record, all fields of it.

    Args:
        outcome: What came of a candidate.
        point: What was measured.
        checkpoint: Of which model.
        bandwidth: GB/s of a copy by device.
    """
    contender = outcome.contender
    row: dict[str, Any] = {
        **dict.fromkeys(ROW_FIELDS),
        "candidate": contender.name,
        "checkpoint": checkpoint.label,
        "precision": contender.precision,
        "device": contender.device,
        **point.row(),
        "round_ms": [],
        "memory": {},
        "stages": {},
        "ends": {},
    }
    if outcome.not_run is not None:
        return row | {"not_run": _without_paths(outcome.not_run)}
    readings = [ms for answer in outcome.rounds for ms in answer["ms"]]
    summary = summarise(readings)
    steady = outcome.memory.get("steady", {})
    stages = outcome.prepared["stages"]
    row |= {
        "capacity": outcome.prepared["capacity"],
        "samples": summary.count,
        **{f"ms_{name}": _round(getattr(summary, name)) for name in ("median", "p95", "min", "max")},
        "round_ms": [_round(median(answer["ms"])) for answer in outcome.rounds],
        **{f"{stage}_ms": _round(stages.get(stage)) for stage in ("build", "open", "first", "warmup")},
        "memory_mb": steady.get("driver_mb" if contender.device == "cuda" else "host_mb"),
        "memory": outcome.memory,
        "note": _note(outcome, point, checkpoint.config.max_seq_len),
    }
    extra = {"frame": _frame, "prefill": _prefill, "codec_decode": _codec, "pipeline": _pipeline}[point.graph]
    return row | extra(outcome, point, summary.median, checkpoint, bandwidth)


def _frame(
    outcome: Outcome, point: Point, ms: float, checkpoint: Checkpoint, bandwidth: Mapping[str, float]
) -> dict[str, Any]:
    device = [value for answer in outcome.rounds for value in answer.get("device_ms") or ()]
    together = [answer["pipelined_ms"] for answer in outcome.rounds if answer.get("pipelined_ms") is not None]
    contender = outcome.contender
    # On a CPU keys and values stay float32 beside quantised weights; on a GPU they are of half precision.
    kv_bytes = 4.0 if contender.device == "cpu" and contender.precision in ("int8", "int4") else None
    work = frame_work(
        checkpoint.config,
        contender.precision,
        position=point.position or 0,
        batch=point.batch,
        kv_bytes_per_value=kv_bytes,
    )
    found: dict[str, Any] = {
        "frames_per_second": _round(frames_per_second(ms, point.batch)),
        "rtf": _round(real_time_factor(ms)),
        "device_ms_median": _round(median(device)) if device else None,
        "pipelined_ms": _round(median(together)) if together else None,
        "gb_per_s": _round(work.achieved_gb_per_s(ms)),
    }
    if contender.device in bandwidth:
        floor = work.floor_ms(bandwidth[contender.device])
        found |= {"floor_ms": _round(floor), "floor_share": _round(floor / ms)}
    return found


def _prefill(outcome: Outcome, *_: Any) -> dict[str, Any]:
    alone = [value for answer in outcome.rounds for value in answer["more"]["prefill_only"]]
    return {"prefill_only_ms": _round(median(alone)) if alone else None}


def _codec(outcome: Outcome, point: Point, ms: float, *_: Any) -> dict[str, Any]:
    return {"rtf": _round(ms / 1e3 / (point.seconds or 1))}


def _pipeline(outcome: Outcome, *_: Any) -> dict[str, Any]:
    more = [{key: values[0] for key, values in answer["more"].items()} for answer in outcome.rounds]
    ends = [end for answer in outcome.rounds for end in answer["ends"]]
    factors = [
        answer["ms"][0] / 1e3 / figures["audio"]
        for answer, figures in zip(outcome.rounds, more, strict=True)
        if figures["audio"]
    ]
    stages = {key: _round(median(f[key] for f in more)) for key in more[0] if key not in ("first_audio", "audio")}
    return {
        "rtf": _round(median(factors)) if factors else None,
        "ttfa_ms": _round(median(figures["first_audio"] for figures in more)),
        "stages": stages,
        "ends": {end: ends.count(end) for end in sorted(set(ends))},
    }


def _note(outcome: Outcome, point: Point, longest: int) -> str | None:
    notes = []
    if outcome.contender.name.startswith("upstream") and point.graph in ("frame", "prefill"):
        notes.append("its cache cut to this capacity" if outcome.prepared["capacity"] < longest else "as it ships")
    if outcome.contender.precision in ("int8", "int4"):
        notes.append("weights only")
    return "; ".join(filter(None, notes)) or None


def _round(value: float | None) -> float | None:
    """Five significant digits."""
    return None if value is None else float(f"{value:.5g}")


def _without_paths(reason: str) -> str:
    """A record travels: folders of this machine do not."""
    for folder in (str(_ROOT), str(Path.home())):
        if len(folder) > 1:
            reason = reason.replace(folder, "...")
    return reason


def add_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Writes into the rows of one point how many times faster each is than upstream, eager and compiled.

    The ratio is taken round by round, between readings that lie seconds apart, and its median is reported with the
    range. Upstream counts in the first of its precisions.
    """
    for field, reference in _REFERENCES.items():
        base = next((row for row in rows if row["candidate"] == reference and row["not_run"] is None), None)
        for row in rows:
            if base is None or row["not_run"] is not None:
                continue
            ratios = [theirs / ours for theirs, ours in zip(base["round_ms"], row["round_ms"], strict=True)]
            row[field] = _round(median(ratios))
            row[f"{field}_range"] = [_round(min(ratios)), _round(max(ratios))]


def table_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns people read, one line per row of a record."""
    lines = []
    for row in rows:
        factors = {"batch": "B", "prompt": "S", "capacity": "C", "position": "at", "seconds": "s"}
        point = " ".join(f"{short} {row[key]:g}" for key, short in factors.items() if row[key] is not None)
        lines.append(
            {
                "graph": row["graph"],
                "point": point,
                "candidate": f"{row['candidate']} {row['precision']}",
                "on": row["device"],
                "ms": row["ms_median"],
                "p95": row["ms_p95"],
                "RTF": row["rtf"],
                "first audio (ms)": row["ttfa_ms"],
                "x eager": row["vs_eager"],
                "x compiled": row["vs_compile"],
                "GB/s": row["gb_per_s"],
                "of floor": row["floor_share"],
                "MB": row["memory_mb"],
                "remark": row["not_run"] or row["note"],
            }
        )
    used = [key for key in lines[0] if any(line[key] is not None for line in lines)] if lines else []
    return [{key: line[key] for key in used} for line in lines]
