"""What engine builds cost on one machine: seconds, bytes and memory, each build in a process of its own.

    python -m fstrt_helpers.measure.builds tiny --precision float16 --record mine

Records lie apart from those of speed, since their rows have other columns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..engines.source import PRECISIONS, replace_file
from ..errors import EngineError
from ..tables import text_table
from .provenance import describe_machine, describe_versions, git_commit
from .record import RECORD_FOLDER, RecordError

__all__ = ["BUILD_RECORDS", "BUILD_ROW", "measure_build", "read_build_records", "write_build_record"]

BUILD_RECORDS = RECORD_FOLDER / "engines"
SCHEMA = 1
KIND = "engine builds"
BUILD_ROW: dict[str, tuple[type, ...]] = {
    "checkpoint": (str,),
    "graph": (str,),
    "precision": (str,),
    "capacity": (int, type(None)),
    "target": (str,),
    "cpu_seconds": (int, float),  # what the process used, whatever ran beside it
    "seconds": (int, float),  # wall clock, of parsing, building, hashing and writing
    "parse_seconds": (int, float),
    "MB": (int, float),  # 10^6 bytes, of the engine
    "graph_MB": (int, float),  # of the graph with its weights
    "peak_host_MB": (int, float, type(None)),  # resident memory of the whole process
    "warm_seconds": (int, float),  # the same call again, in another new process
    "products": (dict,),  # share of the products by precision, read back from the network
    "layers": (int,),
    "load": (int, float),  # one-minute load average before the build
}
_HEAD = ("schema", "kind", "date", "commit", "machine", "versions", "settings", "rows")


def measure_build(
    checkpoint: str,
    graph: str,
    precision: str,
    *,
    capacity: int | None = None,
    flavour: str | None = None,
    graph_folder: Path | None = None,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Builds one engine in a new process, then asks the engine cache for it in another.

    Args:
        checkpoint: Whose graph.
        graph: Name of the graph.
        precision: What it computes in.
        capacity: Columns of the KV cache.
        flavour: As in :func:`fstrt_helpers.engines.flavour.load_trt`.
        graph_folder: Root of the exported graphs.
        folder: Root of the engines.

    Returns:
        A row as :data:`BUILD_ROW` says.

    Raises:
        EngineError: A process failed, with the end of what it said.
    """
    asked = {"checkpoint": checkpoint, "graph": graph, "precision": precision, "capacity": capacity}
    places = {"graph_folder": graph_folder, "folder": folder}
    asked |= {"flavour": flavour} | {key: None if path is None else str(path) for key, path in places.items()}
    row = _in_new_process(asked | {"force": True})
    warm = _in_new_process(asked | {"force": False})
    if warm.pop("built"):
        raise EngineError(f"{graph} was built again when it should have been there: {warm['why']}")
    row["warm_seconds"] = warm["seconds"]
    return {key: row[key] for key in BUILD_ROW}


def _in_new_process(asked: Mapping[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", f"{__package__}.builds", "--one", json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineError(
            f"the build of {asked['graph']} in {asked['precision']} failed", where=(done.stderr or done.stdout)[-1500:]
        )
    return json.loads(done.stdout.splitlines()[-1])


def _one(asked: Mapping[str, Any]) -> dict[str, Any]:
    """One call of the engine cache, measured; runs in a process that does nothing else."""
    from ..engines.cache import cached_engine
    from ..engines.flavour import load_trt
    from ..engines.profile import default_profile
    from ..engines.source import find_graph
    from ..graphs.export import GRAPH_FOLDER

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    chosen = load_trt(asked["flavour"])
    root = Path(asked["graph_folder"] or GRAPH_FOLDER)
    path = find_graph(asked["checkpoint"], asked["graph"], asked["precision"], chosen.name, root)
    profile = default_profile(path, name=asked["graph"], capacity=asked["capacity"])
    began = time.process_time()
    engine = cached_engine(
        path, profile, precision=asked["precision"], flavour=chosen, folder=asked["folder"], force=asked["force"]
    )
    report = engine.report
    return {
        "checkpoint": asked["checkpoint"],
        "graph": asked["graph"],
        "precision": asked["precision"],
        "capacity": report.capacity,
        "target": report.target,
        "cpu_seconds": round(time.process_time() - began, 2),
        "seconds": round(engine.seconds, 2),
        "parse_seconds": round(report.parse_seconds, 2),
        "MB": round(report.bytes / 1e6, 2),
        "graph_MB": round(report.graph_bytes / 1e6, 2),
        "peak_host_MB": None if report.peak_host_mb is None else round(report.peak_host_mb),
        "products": {precision: round(share, 4) for precision, share in report.shares.items()},
        "layers": sum(share.count for share in report.layers),
        "load": round(load, 1),
        "built": engine.built,
        "why": engine.why,
    }


def write_build_record(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Writes rows with the machine and the versions they belong to; one row per line, in one step.

    Raises:
        RecordError: A row does not have the form.
    """
    settings = {"processes": "one per build; the warm call has its own"}
    record = {
        "schema": SCHEMA,
        "kind": KIND,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "settings": settings,
        "rows": list(rows),
    }
    _check(record, path)
    head = json.dumps({key: value for key, value in record.items() if key != "rows"}, indent=1)
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n'.encode())
    return path


def read_build_records(folder: Path = BUILD_RECORDS) -> dict[str, dict[str, Any]]:
    """Every record of a folder by file name without its ending.

    Raises:
        RecordError: One of them is damaged.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RecordError(f"the record cannot be read: {error}", where=path) from error
        _check(found[path.stem], path)
    return found


def _check(record: Any, where: Path) -> None:
    if not isinstance(record, Mapping) or any(key not in record for key in _HEAD) or record["kind"] != KIND:
        raise RecordError("this is no record of engine builds", where=where, fix="make it again with measure.builds")
    if record["schema"] != SCHEMA or not record["rows"]:
        raise RecordError("the record has another schema, or no rows", where=where)
    problems = [
        f"row {i}: {name} is {row.get(name)!r}"
        for i, row in enumerate(record["rows"])
        for name, kinds in BUILD_ROW.items()
        if not isinstance(row.get(name), kinds) or isinstance(row.get(name), bool)
    ]
    problems += [f"row {i}: {row['MB']} MB" for i, row in enumerate(record["rows"]) if not problems and row["MB"] <= 0]
    if problems:
        raise RecordError("; ".join(problems[:5]), where=where)


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: measures builds, prints a table, and writes a record if asked to."""
    from ..engines.profile import CAPACITY_DEFAULT, SIZES

    parser = argparse.ArgumentParser(prog="python -m fstrt_helpers.measure.builds", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default="tiny")
    parser.add_argument("--precision", nargs="*", default=["float16"], choices=PRECISIONS)
    parser.add_argument("--graphs", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--capacity", type=int, default=CAPACITY_DEFAULT)
    parser.add_argument("--flavour")
    parser.add_argument("--graph-folder", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--record", help="name of the record under data/benchmarks/engines; nothing is written without")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    if a.one:
        print(json.dumps(_one(json.loads(a.one))))
        return
    rows = []
    for precision in a.precision:
        for graph in a.graphs:
            capacity = a.capacity if graph in ("prefill", "frame") else None
            places = {"graph_folder": a.graph_folder, "folder": a.folder}
            rows.append(measure_build(a.checkpoint, graph, precision, capacity=capacity, flavour=a.flavour, **places))
            print(f"{graph} {precision}: {rows[-1]['seconds']} s", file=sys.stderr)
    print(text_table([row | {"products": json.dumps(row["products"])} for row in rows]))
    if a.record:
        print(write_build_record(rows, BUILD_RECORDS / f"{a.record}.json"), file=sys.stderr)


if __name__ == "__main__":
    main()
