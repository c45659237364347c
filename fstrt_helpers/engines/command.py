"""The command line of :mod:`fstrt_helpers.engines.build`: engines of a checkpoint, a row for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import FstrtError
from ..tables import text_table
from .cache import CachedEngine, cached_engine
from .flavour import FLAVOURS, load_trt
from .profile import CAPACITY_DEFAULT, SIZES, default_profile
from .source import PRECISIONS, find_graph

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Builds, or finds, the engines asked for; ends with status 1 if one of them cannot be had, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m fstrt_helpers.engines.build", description="Builds TensorRT engines from exported graphs."
    )
    parser.add_argument("checkpoint", nargs="?", default="tiny")
    parser.add_argument("--precision", default="float16", choices=PRECISIONS)
    parser.add_argument("--graphs", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--capacity", nargs="*", type=int, default=[CAPACITY_DEFAULT], help="of prefill and frame")
    parser.add_argument("--flavour", choices=FLAVOURS)
    parser.add_argument("--target", nargs="*", help="portable, current, or GPUs such as SM86")
    parser.add_argument("--workspace", type=int, help="device memory for scratch, in MiB")
    parser.add_argument("--level", type=int, help="optimisation level, 0 to 5")
    parser.add_argument("--version-compatible", action="store_true", help="TensorRT only")
    parser.add_argument("--force", action="store_true", help="build even if a good engine is there")
    parser.add_argument("--graph-folder", type=Path, help="root of the exported graphs")
    parser.add_argument("--folder", type=Path, help="root of the engines")
    a = parser.parse_args(argv)
    rows, status = [], 0
    for graph in a.graphs:
        for capacity in a.capacity if graph in ("prefill", "frame") else [None]:
            try:
                engine = _engine(a, graph, capacity)
            except FstrtError as error:
                print(f"{graph}: {error}", file=sys.stderr)
                status = 1
            except KeyboardInterrupt:
                print(f"{graph}: stopped; nothing was written for it", file=sys.stderr)
                sys.exit(130)
            else:
                rows.append(engine.row())
                print(f"{graph}: {engine.path}", file=sys.stderr)
    print(text_table(rows))
    sys.exit(status)


def _engine(a: argparse.Namespace, graph: str, capacity: int | None) -> CachedEngine:
    flavour = load_trt(a.flavour)
    root = a.graph_folder
    if root is None:
        from ..graphs.export import GRAPH_FOLDER as root
    path = find_graph(a.checkpoint, graph, a.precision, flavour.name, root)
    shown: list[str] = []

    def progress(phase: str, step: int, total: int) -> None:
        if sys.stderr.isatty():
            text = f"\r{graph}: {phase} {step}/{total}"
            print(text.ljust(max(map(len, shown), default=0)), end="", file=sys.stderr, flush=True)
            shown[:] = [text]

    try:
        return cached_engine(
            path,
            default_profile(path, name=graph, capacity=capacity),
            precision=a.precision,
            flavour=flavour,
            target=a.target,
            workspace=None if a.workspace is None else a.workspace << 20,
            level=a.level,
            version_compatible=a.version_compatible,
            progress=progress,
            folder=a.folder,
            force=a.force,
        )
    finally:
        if shown:
            print("\r".ljust(len(shown[0])), end="\r", file=sys.stderr, flush=True)
