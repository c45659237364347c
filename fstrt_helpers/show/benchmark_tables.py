"""Benchmark records as tables: machines, speed by back end and precision, what is missing and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ParameterError
from ..measure.growth import fit_rows
from ..measure.headline import compare_claims
from ..measure.recommend import USERS, base_rows, recommend
from ..measure.verdicts import Verdict
from .tables import Table

__all__ = [
    "claims_table",
    "growth_table",
    "machine_label",
    "machines_table",
    "missing_table",
    "panel_title",
    "recommendation_table",
    "speed_table",
    "verdict_table",
]

Record = Mapping[str, Any]
Records = Mapping[str, Record]


def machine_label(record: Record) -> str:
    """Machine and checkpoint in few words, such as ``NVIDIA H200, full-random``."""
    machine = record["machine"]
    name = machine["gpu"] or f"{machine['cores']} CPU cores"
    return f"{name}, {record['rows'][0]['checkpoint'].split(' (')[0]}"


def panel_title(name: str, record: Record) -> str:
    """The same and the name of the record, since two of one machine may stand side by side."""
    return f"{machine_label(record)} ({name})"


def machines_table(records: Records) -> Table:
    """What was measured where, when, and with which state of this repository."""
    lines = []
    for name, record in records.items():
        machine, rows = record["machine"], record["rows"]
        lines.append(
            {
                "record": name,
                "checkpoint": rows[0]["checkpoint"],
                "CPU": f"{machine['cores']} x {machine['cpu']}",
                "GPU": machine["gpu"] or "none",
                "GB/s copied": ", ".join(f"{device} {rate:,.0f}" for device, rate in record["bandwidth"].items()),
                "date": record["date"][:10],
                "commit": (record["commit"] or "")[:8],
                "rounds": record["settings"].get("rounds"),
                "load before, after": ", ".join(f"{x:g}" for x in record["settings"].get("load", ())),
                "rows": len(rows),
                "of them not run": sum(row["not_run"] is not None for row in rows),
            }
        )
    return Table(lines or [{"record": "none", "remark": "no records: python -m fstrt_helpers.measure.benchmark"}])


def speed_table(record: Record) -> Table:
    """One line per candidate and precision: frame, prompt, codec, whole sentence; one that did not run says why.

    Everything is at the record's base point and for one row of speech.
    """
    rows = record["rows"]
    found = {graph: base_rows(rows, graph) for graph in ("frame", "prefill", "codec_decode", "pipeline")}
    lines = []
    for key, reason in _entered(rows).items():
        frame, prefill, codec, spoken = (found[graph].get(key, {}) for graph in found)
        lines.append(
            {
                "candidate": key[0],
                "precision": key[1],
                "on": key[2],
                "frame (ms)": frame.get("ms_median"),
                "p95": frame.get("ms_p95"),
                "real-time factor": frame.get("rtf"),
                "x eager": frame.get("vs_eager"),
                "x compiled": frame.get("vs_compile"),
                "share of floor": frame.get("floor_share"),
                "prompt (ms)": prefill.get("ms_median"),
                "codec (ms)": codec.get("ms_median"),
                "first audio (ms)": spoken.get("ttfa_ms"),
                "memory (MB)": frame.get("memory_mb"),
                "not run": None if frame else reason,
            }
        )
    used = [key for key in lines[0] if any(line[key] is not None for line in lines)] if lines else []
    return Table([{key: line[key] for key in used} for line in lines])


def _entered(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], str | None]:
    """Every candidate that was entered, with the first reason why something of it was not run."""
    found: dict[tuple[str, str, str], str | None] = {}
    for row in rows:
        key = (row["candidate"], row["precision"], row["device"])
        found[key] = found.get(key) or row["not_run"]
    return found


def missing_table(records: Records) -> Table:
    """Everything that was entered and not run, with its reason, so that a gap is never mistaken for an oversight."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for record in records.values():
        for row in record["rows"]:
            if row["not_run"]:
                places = reasons.setdefault((row["not_run"], machine_label(record)), {})
                places.setdefault(f"{row['candidate']} {row['precision']}", []).append(row["graph"])
    lines = []
    for (reason, label), places in reasons.items():
        graphs = dict.fromkeys(graph for found in places.values() for graph in found)
        lines.append(
            {
                "machine": label,
                "candidates": ", ".join(places),
                "measure": ", ".join(graphs),
                "rows": sum(map(len, places.values())),
                "why not": reason,
            }
        )
    if not any(record["machine"]["gpu"] for record in records.values()):
        lines.append(
            {
                "machine": "any GPU",
                "candidates": "all",
                "measure": "all",
                "rows": 0,
                "why not": "no record of a GPU lies in data/benchmarks yet",
            }
        )
    return Table(lines)


def growth_table(records: Records) -> Table:
    """What 1000 filled and 1000 allocated columns add to a frame, by candidate: a straight line through its rows."""
    lines = []
    for record in records.values():
        for candidate, precision, device in base_rows(record["rows"]):
            rows = [row for row in record["rows"] if row["device"] == device]
            line: dict[str, Any] = {"machine": machine_label(record), "candidate": f"{candidate} {precision}"}
            try:
                fit = fit_rows(rows, candidate, precision)
            except ParameterError as error:
                line["remark"] = error.what
            else:
                unknown = 1 + (fit.per_position is not None) + (fit.per_capacity is not None)
                line |= {
                    "empty cache (ms)": fit.base,
                    "per 1000 filled (ms)": fit.per_position,
                    "per 1000 allocated (ms)": fit.per_capacity,
                    "explains": f"{fit.r2:.0%}" if fit.count > unknown else "no points to spare",
                    "points": fit.count,
                }
            lines.append(line)
    return Table(lines)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """What the quality gate said."""
    return Table(
        [
            {
                "candidate": f"{v.candidate} {v.precision} on {v.device}",
                "of": v.checkpoint,
                "equal draws": None if v.agreement is None else f"{v.agreement:.2%}",
                "log-mel distance (dB)": v.mel_db,
                "ends by itself": None if v.stop_rate is None else f"{v.stop_rate:.0%}",
                "words understood": None if v.recall is None else f"{v.recall:.1%}",
                "gate": v.words,
            }
            for v in verdicts
        ]
    )


def recommendation_table(records: Records, verdicts: Sequence[Verdict]) -> Table:
    """For every machine, what serves each of the three users best."""
    return Table(
        [
            {"machine": machine_label(record), **recommend(record, verdicts, user).row()}
            for record in records.values()
            for user in USERS
        ]
    )


def claims_table(records: Records, verdicts: Sequence[Verdict]) -> Table:
    """The article's five headline claims beside what each record holds."""
    return Table(
        [
            {"machine": machine_label(record), **line}
            for record in records.values()
            for line in compare_claims(record, verdicts)
        ]
    )
