"""A benchmark record: what one run measured on one machine, as JSON, with a schema that is checked before it is kept.

A user's record has the same form, so that "this machine" can stand beside the recorded ones in every table and plot.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import FstrtError
from ..graphs.spec import PRECISIONS
from .candidates.names import CANDIDATES
from .grid import MEASURES

__all__ = [
    "RECORD_FOLDER",
    "ROW_FIELDS",
    "SCHEMA",
    "RecordError",
    "check_record",
    "read_record",
    "read_records",
    "write_record",
]

SCHEMA = 1
RECORD_FOLDER = Path(__file__).resolve().parents[2] / "data" / "benchmarks"

_TEXT, _COUNT, _AMOUNT = (str,), (int,), (int, float)
_NONE = type(None)
HEAD_FIELDS: dict[str, tuple[type, ...]] = {
    "schema": _COUNT,
    "kind": _TEXT,  # always "benchmark"
    "date": _TEXT,  # ISO 8601, UTC
    "commit": (str, _NONE),  # of this repository; "+" at the end: with changes
    "machine": (dict,),
    "versions": (dict,),
    "seed": _COUNT,
    "settings": (dict,),  # rounds, frames per round, threads, sampling, tflops (of a matrix product), load
    "bandwidth": (dict,),  # device to GB/s of a copy, read and written bytes together
    "inputs": (list,),  # hashes of prompts, codes and texts, in the order of first use
    "rows": (list,),
}
ROW_FIELDS: dict[str, tuple[type, ...]] = {
    "candidate": _TEXT,
    "checkpoint": _TEXT,  # random weights are called so
    "graph": _TEXT,  # frame, prefill (to the first frame), codec_decode or pipeline
    "precision": _TEXT,  # of the weights
    "device": _TEXT,
    "batch": _COUNT,
    "prompt": (int, _NONE),  # columns
    "capacity": (int, _NONE),  # columns allocated
    "position": (int, _NONE),  # columns filled
    "seconds": (int, float, _NONE),  # of audio: decoded at once, or allowed per text
    "not_run": (str, _NONE),
    "note": (str, _NONE),
    "samples": (int, _NONE),  # readings
    "ms_median": (int, float, _NONE),  # per frame, per prompt, per piece of audio, per text
    "ms_p95": (int, float, _NONE),
    "ms_min": (int, float, _NONE),
    "ms_max": (int, float, _NONE),
    "device_ms_median": (int, float, _NONE),  # between CUDA events
    "pipelined_ms": (int, float, _NONE),  # per frame, the host waiting only at the end
    "prefill_only_ms": (int, float, _NONE),  # without the first frame
    "round_ms": (list,),  # median of each round
    "frames_per_second": (int, float, _NONE),  # of all rows together
    "rtf": (int, float, _NONE),  # seconds of work per second of audio of one row
    "ttfa_ms": (int, float, _NONE),  # from the text to the first samples
    "gb_per_s": (int, float, _NONE),  # necessary bytes per second
    "floor_ms": (int, float, _NONE),  # necessary bytes at the speed of a copy
    "floor_share": (int, float, _NONE),  # floor_ms / ms_median
    "vs_eager": (int, float, _NONE),  # how many times faster than upstream-eager, round by round
    "vs_eager_range": (list, _NONE),  # of the rounds
    "vs_compile": (int, float, _NONE),
    "vs_compile_range": (list, _NONE),
    "build_ms": (int, float, _NONE),  # exporting, building, compiling; None: it was there
    "open_ms": (int, float, _NONE),  # loading
    "first_ms": (int, float, _NONE),
    "warmup_ms": (int, float, _NONE),
    "memory_mb": (int, float, _NONE),  # steady state: by the driver on a GPU, resident on a CPU
    "memory": (dict,),  # stage to witness to MB
    "stages": (dict,),  # pipeline: stage to median ms
    "ends": (dict,),  # pipeline: stop reason to number
}
_MACHINE_FIELDS = {"cpu": _TEXT, "cores": _COUNT, "gpu": (str, _NONE), "driver": (str, _NONE)}


class RecordError(FstrtError):
    """A benchmark record does not have the form that tables and plots rely on."""


def check_record(record: Mapping[str, Any], where: object = None) -> None:
    """Checks the form of a record, and that its figures can be true.

    Raises:
        RecordError: Lists everything that is wrong.
    """
    problems = _check_fields(record, HEAD_FIELDS, "record")
    if problems:
        raise _error(problems, where)
    if record["schema"] != SCHEMA or record["kind"] != "benchmark":
        problems.append(f"record: schema {record['schema']!r} of kind {record['kind']!r}, wanted {SCHEMA}, 'benchmark'")
    problems += [
        f"machine: {key} is {record['machine'].get(key)!r}"
        for key, kinds in _MACHINE_FIELDS.items()
        if not isinstance(record["machine"].get(key), kinds)
    ]
    try:
        if datetime.fromisoformat(record["date"]).tzinfo is None:
            problems.append("record: the date has no time zone")
    except ValueError:
        problems.append(f"record: {record['date']!r} is no date")
    if not record["rows"]:
        problems.append("record: no rows")
    for number, row in enumerate(record["rows"]):
        here = f"row {number}"
        wrong = _check_fields(row, ROW_FIELDS, here) if isinstance(row, dict) else [f"{here}: no object"]
        problems += wrong or [f"{here}: {problem}" for problem in _check_row(row)]
    if problems:
        raise _error(problems, where)


def _check_fields(values: Mapping[str, Any], fields: Mapping[str, tuple[type, ...]], where: str) -> list[str]:
    problems = [f"{where}: {name} is missing" for name in fields if name not in values]
    problems += [f"{where}: {name} is not known" for name in values if name not in fields]
    for name, kinds in fields.items():
        if name in values:
            value = values[name]
            if not isinstance(value, kinds) or isinstance(value, bool):
                problems.append(f"{where}: {name} is {value!r}")
            elif isinstance(value, float) and not math.isfinite(value):
                problems.append(f"{where}: {name} is not finite")
    return problems


def _check_row(row: Mapping[str, Any]) -> list[str]:
    problems = [
        f"there is no {name} {row[name]!r}"
        for name, known in (
            ("candidate", CANDIDATES),
            ("graph", MEASURES),
            ("precision", PRECISIONS),
            ("device", ("cpu", "cuda")),
        )
        if row[name] not in known
    ]
    order = [row[f"ms_{name}"] for name in ("min", "median", "p95", "max")]
    if row["not_run"] is not None:
        if not row["not_run"].strip():
            problems.append("not run, without a reason")
        if any(value is not None for value in (*order, row["samples"], row["rtf"])):
            problems.append("not run, yet it has figures")
    elif None in order or not row["samples"]:
        problems.append("neither figures nor a reason why there are none")
    elif not 0 < order[0] <= order[1] <= order[2] <= order[3]:
        problems.append(f"min, median, p95 and max are {order}")
    elif not row["round_ms"]:
        problems.append("no rounds")
    if row["batch"] < 1:
        problems.append(f"batch is {row['batch']}")
    return problems


def _error(problems: list[str], where: object) -> RecordError:
    more = f"\n    and {len(problems) - 20} more" * (len(problems) > 20)
    listed = "\n    ".join(problems[:20]) + more
    return RecordError(
        f"this is no benchmark record:\n    {listed}", where=where, fix="python -m fstrt_helpers.measure.benchmark"
    )


def read_record(path: Path) -> dict[str, Any]:
    """Reads and checks a record.

    Raises:
        RecordError: It cannot be read or does not have the form.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"the record cannot be read: {error}", where=path) from error
    if not isinstance(record, dict):
        raise RecordError("the record is no JSON object", where=path)
    check_record(record, path)
    return record


def read_records(folder: Path = RECORD_FOLDER) -> dict[str, dict[str, Any]]:
    """Every record of a folder by file name without its ending, in the order of their dates.

    Raises:
        RecordError: One of them is damaged.
    """
    found = {path.stem: read_record(path) for path in sorted(folder.glob("*.json"))}
    return dict(sorted(found.items(), key=lambda item: item[1]["date"]))


def write_record(record: Mapping[str, Any], path: Path) -> Path:
    """Checks a record and writes it in one step, one row per line, so that a crash leaves no half a file.

    Raises:
        RecordError: It does not have the form.
    """
    check_record(record, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    text = f'{head[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n'
    handle, draft = tempfile.mkstemp(suffix=".json", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)
    return path
