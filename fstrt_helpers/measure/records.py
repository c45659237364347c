"""What the notebooks measured on this machine: one JSON file, rows replaced when a notebook runs again."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["MEASUREMENTS", "keep_rows", "machine_facts"]

MEASUREMENTS = "measurements.json"  # {"schema": 1, "rows": [{…}, …], …}


def machine_facts() -> dict[str, Any]:
    """Processor, usable cores and GPUs, for the head of a record."""
    from ..driver import driver_gpus

    names = Path("/proc/cpuinfo")
    lines = names.read_text(encoding="utf-8").splitlines() if names.is_file() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": cpu, "cores": cores, "gpus": [str(gpu) for gpu in driver_gpus()[0]]}


def keep_rows(folder: str | os.PathLike[str], notebook: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Adds a notebook's rows to ``measurements.json`` and drops those of its earlier runs.

    Args:
        folder: The ``outputs`` folder; it is made if it is not there.
        notebook: Number of the notebook, such as ``01``; becomes the first column.
        rows: What was measured; plain values only.

    Returns:
        The file. It is replaced in one step, so a crash leaves the old one.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MEASUREMENTS
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # none yet, or damaged: it can be measured again
        earlier = []
    kept = [row for row in earlier if row.get("notebook") != notebook]
    record = {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine_facts(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
        "rows": sorted([*kept, *({"notebook": notebook, **row} for row in rows)], key=lambda row: row["notebook"]),
    }
    handle, draft = tempfile.mkstemp(suffix=".json", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)
    return path
