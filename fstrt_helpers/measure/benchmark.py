"""Measures every way to run a checkpoint on this machine and keeps the figures as one JSON record.

    python -m fstrt_helpers.measure.benchmark tiny
    python -m fstrt_helpers.measure.benchmark full-random --batch 1 2 4 8 --capacity 512 2048 8192 --out here.json

Each candidate runs in a process of its own; they take turns, round by round. What cannot run here is a row that says
why. The first value of ``--batch``, ``--prompt``, ``--capacity``, ``--position`` and ``--seconds`` is the base point,
the others are tried one factor at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, find_checkpoint
from ..driver import driver_gpus
from ..errors import FstrtError, ParameterError
from ..tables import text_table
from .candidates.frames import SETTINGS
from .candidates.making import reference_name
from .candidates.names import CANDIDATES, Contender, contenders, takes_part, why_not
from .grid import MEASURES, Point, make_grid
from .provenance import describe_machine, describe_versions, git_commit
from .record import RECORD_FOLDER, SCHEMA, write_record
from .results import add_ratios, make_row, table_rows
from .rounds import Limits, Outcome, Process, measure_together, start_process

__all__ = ["main", "run_benchmark"]

_OUT = Path(__file__).resolve().parents[2] / "outputs" / "benchmarks"


def run_benchmark(
    checkpoint: Checkpoint | str = "tiny",
    *,
    candidates: Sequence[str] | None = None,
    measures: Sequence[str] = MEASURES,
    rounds: int = 5,
    frames: int = 24,
    seed: int = 0,
    threads: int = 0,
    device: str = "auto",
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda message: None,
    keep: Callable[[dict[str, Any]], None] = lambda record: None,
    commit: str | None = None,
    **grid: Any,
) -> dict[str, Any]:
    """Measures candidates against each other.

    Args:
        checkpoint: What to run.
        candidates: ``name`` or ``name:precision``; None is all of them.
        measures: Which of :data:`~.grid.MEASURES`.
        rounds: How often each candidate takes its turn at every point.
        frames: Frames timed per round.
        seed: Of prompts, codes and noise.
        threads: CPU threads; 0 is one per core.
        device: ``auto``, ``cpu`` or ``cuda``.
        limits: Seconds to wait for a candidate before it is given up.
        progress: Called with a line of text before each step.
        keep: Called with the record so far after each point: what was measured survives what comes later.
        commit: Of this repository, where it cannot be asked for.
        **grid: Factors, as :func:`~.grid.make_grid` takes them.

    Returns:
        A record (:mod:`.record`).

    Raises:
        ParameterError: A candidate, measure, factor or number that does not exist or fit.
        CheckpointError: The checkpoint is not there.
    """
    for name, value, least, most in (
        ("rounds", rounds, 1, 1000),
        ("frames", frames, 2, 512),
        ("seed", seed, 0, 2**31),
        ("threads", threads, 0, 4096),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ParameterError(f"{name} is {value!r}", fix=f"give a whole number from {least} to {most}")
    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else find_checkpoint(checkpoint)
    longest = checkpoint.config.max_seq_len
    points = make_grid(measures, longest=longest, frames=frames, **grid)
    entered = contenders(list(candidates) if candidates else None, device)
    progress("measuring how fast this machine copies memory")
    devices = ["cpu"] + ["cuda"] * any(c.device == "cuda" and driver_gpus()[0] for c in entered)
    before = {name: _rates(name) for name in devices}
    settings = {"checkpoint": reference_name(checkpoint), "seed": seed, "frames": frames, "threads": threads}
    began = time.perf_counter()
    measured: list[tuple[Point, list[Outcome]]] = []
    about = {"rounds": rounds, "frames": frames, "threads": threads, "sampling": SETTINGS}
    load = _load()

    def record(rates: dict[str, tuple[float, float]]) -> dict[str, Any]:
        seconds = round(time.perf_counter() - began, 1)
        return _record(
            measured, checkpoint, rates, seed, about | {"seconds": seconds, "load": [*load, *_load()]}, commit
        )

    for number, group in enumerate(_groups(points)):
        for one in _measure_group(group, entered, settings, rounds, longest, limits, progress):
            measured.append(one)
            keep(record(before))
        if number == 0:  # one row is enough to say why a candidate does not run at all
            entered = [contender for contender in entered if why_not(contender) is None]
    # The better of two readings: a busy moment must not lower what the machine can do.
    return record({name: tuple(map(max, first, _rates(name))) for name, first in before.items()})


def _record(
    measured: Sequence[tuple[Point, list[Outcome]]],
    checkpoint: Checkpoint,
    rates: dict[str, tuple[float, float]],
    seed: int,
    settings: dict[str, Any],
    commit: str | None,
) -> dict[str, Any]:
    bandwidth = {name: rate[0] for name, rate in rates.items()}
    rows: list[dict[str, Any]] = []
    inputs: list[str] = []
    for point, outcomes in measured:
        mine = [make_row(outcome, point, checkpoint, bandwidth) for outcome in outcomes]
        add_ratios(mine)
        rows += mine
        inputs += [digest for o in outcomes for answer in o.rounds for digest in answer.get("inputs", ())]
    return {
        "schema": SCHEMA,
        "kind": "benchmark",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit or git_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "seed": seed,
        "settings": settings | {"tflops": {name: round(rate[1], 3) for name, rate in rates.items()}},
        "bandwidth": {key: round(value, 2) for key, value in bandwidth.items()},
        "inputs": list(dict.fromkeys(inputs)),
        "rows": rows,
    }


def _load() -> list[float]:
    """How many processes wanted a core in the last minute, one entry; above the number of cores this run was not alone.
    Empty where the system does not tell."""
    return [round(os.getloadavg()[0], 1)] if hasattr(os, "getloadavg") else []


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    """Points that may share a process: what one model leaves behind must not count as the memory of the next."""
    kinds = {point.graph: "frames" if point.graph in ("frame", "prefill") else point.graph for point in points}
    return [list(group) for _, group in itertools.groupby(points, key=lambda point: kinds[point.graph])]


def _measure_group(
    points: Sequence[Point],
    entered: Sequence[Contender],
    settings: dict[str, Any],
    rounds: int,
    longest: int,
    limits: Limits | None,
    progress: Callable[[str], None],
) -> Iterator[tuple[Point, list[Outcome]]]:
    """Starts a process per candidate, measures the points, those of one shape together, and ends the processes."""
    processes: dict[Contender, Process | str] = {}
    try:
        for contender in entered:
            progress(f"starting {contender}")
            process, reason = start_process(contender, settings, limits)
            processes[contender] = process or str(reason)
        for number, (_, shape) in enumerate(itertools.groupby(points, key=lambda point: point.shape)):
            together = list(shape)
            playing = {
                contender: process
                for contender, process in processes.items()
                if takes_part(contender, together[0]) and (number == 0 or isinstance(process, Process))
            }
            yield from measure_together(together, playing, rounds, longest, limits, progress)
    finally:
        for process in processes.values():
            if isinstance(process, Process):
                process.close()


def _rates(device: str) -> tuple[float, float]:
    """GB/s of a copy and TFLOP/s of a matrix product, read in a process of its own: this one makes no CUDA context,
    which would count as somebody's memory."""
    program = (
        f"import json; from {__package__}.roofline import copy_bandwidth, matmul_rate; "
        f"print(json.dumps([copy_bandwidth({device!r}), matmul_rate({device!r})]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    copied, computed = json.loads(done.stdout.split("\n")[-2])
    return copied, computed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fstrt_helpers.measure.benchmark",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", nargs="?", default="tiny", help="tiny, fish-speech-1.5, full-random or a folder")
    known = ", ".join(CANDIDATES)
    parser.add_argument("--candidates", nargs="+", metavar="NAME[:PRECISION]", help=f"some of: {known}")
    short = {"codec": "codec_decode"}
    parser.add_argument(
        "--measure", nargs="+", default=list(MEASURES), type=lambda m: short.get(m, m), help=", ".join(MEASURES)
    )
    parser.add_argument("--batch", nargs="+", type=int, default=[1], help="rows")
    parser.add_argument("--prompt", nargs="+", type=int, default=[64, 32, 256, 1024], help="columns of a prompt")
    parser.add_argument("--capacity", nargs="+", type=int, default=[512], help="columns the KV cache is allocated for")
    parser.add_argument("--position", nargs="+", type=int, default=[300], help="columns filled")
    parser.add_argument("--seconds", nargs="+", type=float, default=[2.0, 10.0], help="audio the codec decodes at once")
    parser.add_argument("--spoken", type=float, default=5.0, help="most seconds of audio per text of the pipeline")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each candidate takes at every point")
    parser.add_argument("--frames", type=int, default=24, help="frames timed per round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 is one per core")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds a candidate may take to get ready")
    parser.add_argument("--commit", help="of this repository, where it is not a checkout")
    parser.add_argument(
        "--out", type=Path, help="the record's file; outputs/benchmarks/<checkpoint>-<time>.json if not given"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: measures, prints the table, writes the record and says where to send it."""
    given = vars(_parser().parse_args(argv))
    out, limit = given.pop("out"), given.pop("limit")
    checkpoint, measures = given.pop("checkpoint"), given.pop("measure")
    if out is None:
        out = _OUT / f"{Path(checkpoint).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    try:
        record = run_benchmark(
            checkpoint,
            measures=measures,
            limits=Limits(prepare=limit),
            progress=lambda message: print(message, file=sys.stderr, flush=True),
            keep=lambda record: write_record(record, out),
            **given,
        )
        write_record(record, out)
    except FstrtError as error:
        print(error, file=sys.stderr)
        return 1
    machine = record["machine"]
    print(text_table(table_rows(record["rows"])))
    gpu = f", {machine['gpu']}" if machine["gpu"] else ", no GPU"
    copied = ", ".join(f"{device} copies {rate:,.0f} GB/s" for device, rate in record["bandwidth"].items())
    print(f"\n{machine['cpu']}, {machine['cores']} cores{gpu}; {copied}; {record['settings']['seconds']:.0f} s")
    print(f"The record is {os.path.relpath(out)}. To add this machine to the tables, send a pull request that puts the")
    print(f"file into {os.path.relpath(RECORD_FOLDER)}, named after machine and checkpoint.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
