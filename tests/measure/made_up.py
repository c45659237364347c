"""Records with figures that were never measured, for tests of what is made of records."""

from __future__ import annotations

from typing import Any

from fstrt_helpers.measure.record import ROW_FIELDS
from fstrt_helpers.measure.verdicts import Verdict

__all__ = ["machine_record", "not_run", "record", "row", "verdict"]


def row(**changes: Any) -> dict[str, Any]:
    base = dict.fromkeys(ROW_FIELDS) | {
        "candidate": "torch",
        "checkpoint": "tiny",
        "graph": "frame",
        "precision": "float32",
        "device": "cpu",
        "batch": 1,
        "samples": 4,
        "ms_median": 2.0,
        "ms_p95": 3.0,
        "ms_min": 1.5,
        "ms_max": 3.5,
        "round_ms": [2.0, 2.1],
        "memory": {},
        "stages": {},
        "ends": {},
    }
    return base | changes


def record(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    absent = dict(samples=None, ms_median=None, ms_p95=None, ms_min=None, ms_max=None, round_ms=[])
    return {
        "schema": 1,
        "kind": "benchmark",
        "date": "2026-12-01T12:00:00+00:00",
        "commit": None,
        "machine": {"cpu": "a", "cores": 2, "gpu": None, "driver": None},
        "versions": {"torch": "2.13.0"},
        "seed": 0,
        "settings": {},
        "bandwidth": {"cpu": 10.0},
        "inputs": [],
        "rows": list(rows) or [row(), row(candidate="tensorrt", device="cuda", not_run="no NVIDIA GPU here", **absent)],
        **changes,
    }


def not_run(reason: str, **changes: Any) -> dict[str, Any]:
    """A row without figures."""
    absent = dict.fromkeys(("samples", "ms_median", "ms_p95", "ms_min", "ms_max"))
    return row(not_run=reason, round_ms=[], **absent, **changes)


def verdict(candidate: str, precision: str, passed: bool = True, **changes: Any) -> Verdict:
    """What the gate might have said."""
    words = "passes" if passed else "fails: agreement"
    facts = dict(device="cpu", checkpoint="tiny", agreement=0.99, mel_db=0.1, recall=0.9, stop_rate=1.0, words=words)
    return Verdict(candidate, precision, passed=passed, **(facts | changes))


def _frame(candidate: str, precision: str, device: str, ms: float, mb: float, **changes: Any) -> dict[str, Any]:
    witness = "driver_mb" if device == "cuda" else "host_mb"
    stages = {"weights": mb * 0.8, "steady": mb, "peak": mb * 1.25}
    figures = dict(
        candidate=candidate, precision=precision, device=device, capacity=512, position=300, ms_median=ms,
        ms_p95=ms * 1.2, ms_min=ms * 0.9, ms_max=ms * 1.5, round_ms=[ms, ms], rtf=ms / 46.44,
        frames_per_second=1e3 * changes.get("batch", 1) / ms, floor_ms=ms / 2, floor_share=0.5, memory_mb=mb,
        memory={stage: {witness: size} for stage, size in stages.items()},
    )  # fmt: skip
    return row(**(figures | changes))


def _spoken(candidate: str, precision: str, device: str, rtf: float, first: float) -> dict[str, Any]:
    ms = 2000 * rtf
    order = dict(ms_median=ms, ms_p95=ms, ms_min=ms, ms_max=ms, round_ms=[ms, ms])
    return row(
        candidate=candidate, precision=precision, device=device, graph="pipeline", seconds=2.0, rtf=rtf, ttfa_ms=first,
        stages={"text": 1.0, "frames": ms * 0.7, "codec": ms * 0.2}, ends={"eos": 2}, **order,
    )  # fmt: skip


def machine_record(gpu: bool = False) -> dict[str, Any]:
    """A record in which every kind of row occurs."""
    device, half = ("cuda", "float16") if gpu else ("cpu", "float32")
    rows = [
        _frame("upstream-eager", half, device, 80, 3000, capacity=8192, vs_eager=1.0),
        _frame("torch", half, device, 40, 2500, vs_eager=2.0),
        _frame("ort-cuda" if gpu else "ort-cpu", "int8", device, 20, 900, vs_eager=4.0),
        _frame("ort-cpu", "int4", "cpu", 15, 600, vs_eager=5.3),
        _frame("torch", half, device, 100, 2600, batch=8),
        _frame("torch", half, device, 44, 2500, position=1200, capacity=2048),
        _frame("torch", half, device, 42, 2500, capacity=2048),
        row(candidate="torch", precision=half, device=device, graph="prefill", prompt=64, capacity=512),
        _spoken("upstream-eager", half, device, 2.0, 4000),
        _spoken("torch", half, device, 1.0, 300),
        _spoken("ort-cuda" if gpu else "ort-cpu", "int8", device, 0.5, 200),
        _spoken("ort-cpu", "int4", "cpu", 0.4, 150),
        not_run("upstream's generate samples only batch row 0", candidate="upstream-eager", precision=half, batch=8),
        not_run("no TensorRT here", candidate="tensorrt", precision="float16", device="cuda"),
    ]
    machine = {"cpu": "a processor", "cores": 2, "gpu": "NVIDIA H200" if gpu else None, "driver": None}
    rates = {"cpu": 20.0} | ({"cuda": 4000.0} if gpu else {})
    for line in rows:
        line["checkpoint"] = "full-random (random weights)"
    return record(*rows, machine=machine, bandwidth=rates, settings={"rounds": 2, "tflops": {device: 0.2}})
