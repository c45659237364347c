"""Makes what a candidate needs and is not there yet: exported or quantised graphs, and engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint, find_checkpoint
from ...errors import EngineError, FstrtError, GraphError
from ...graphs.manifest import graph_path, read_manifest
from ...graphs.spec import GRAPHS
from .names import Contender

__all__ = ["graph_file", "main", "make_missing", "reference_name"]

_QUANTISED = ("int8", "int4")
_DONE, _FAILED = "made: ", "failed: "  # how the child's last line begins


def reference_name(checkpoint: Checkpoint) -> str:
    """What :func:`~fstrt_helpers.checkpoint.find_checkpoint` finds it by in another process."""
    return checkpoint.name if checkpoint.random_seed is not None else str(checkpoint.folder)


def graph_file(contender: Contender, checkpoint: Checkpoint, graph: str) -> Path:
    """Where the exported graph of an ONNX Runtime candidate lies."""
    from ...graphs.export import GRAPH_FOLDER
    from ...graphs.precision import graph_label

    label = contender.precision
    if contender.device == "cuda" and graph.startswith("codec"):
        label = "float32"  # as the back end does: cuDNN's float16 convolutions are slow through ONNX Runtime
    elif label in _QUANTISED:
        label = graph_label(label, "nbits")
    return graph_path(GRAPH_FOLDER, checkpoint.name, label, graph)


def make_missing(contender: Contender, checkpoint: Checkpoint, graphs: tuple[str, ...]) -> bool:
    """Exports, quantises or builds what a candidate needs and that is not there yet or comes from another checkpoint.

    It is done in a process of its own: what it leaves in memory must not count as the model's.

    Args:
        contender: Candidates of PyTorch need nothing.
        checkpoint: Of which model.
        graphs: Which of the four; engines are made for all of them, because they are opened together.

    Returns:
        Whether anything had to be made.

    Raises:
        GraphError: A graph could not be made.
        EngineError: An engine could not be built.
    """
    if contender.name.startswith("tensorrt"):
        return _in_a_child(contender, checkpoint, GRAPHS, EngineError("its engines could not be built"))
    if not contender.name.startswith("ort"):
        return False
    stale = [graph for graph in graphs if _stale(graph_file(contender, checkpoint, graph), checkpoint)]
    if not stale:
        return False
    what = f"the graphs {', '.join(stale)} could not be made"
    return _in_a_child(contender, checkpoint, stale, GraphError(what))


def _stale(path: Path, checkpoint: Checkpoint) -> bool:
    try:
        read_manifest(path, fingerprint=checkpoint.fingerprint)
    except GraphError:
        return True
    return False


def _in_a_child(
    contender: Contender, checkpoint: Checkpoint, graphs: Sequence[str], error: GraphError | EngineError
) -> bool:
    from ...engines.recipe import ENGINE_FOLDER
    from ...graphs.export import GRAPH_FOLDER

    order = {
        "candidate": contender.name,
        "precision": contender.precision,
        "checkpoint": reference_name(checkpoint),
        "graphs": list(graphs),
        "graph_folder": str(GRAPH_FOLDER),
        "engine_folder": str(ENGINE_FOLDER),
    }
    command = [sys.executable, "-m", __name__, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        told = [line.removeprefix(_FAILED) for line in said if line.startswith(_FAILED)] or said
        raise type(error)(f"{error.what}: {told[-1]}", where=GRAPH_FOLDER / checkpoint.name)
    made = [line for line in done.stdout.splitlines() if line.startswith(_DONE)][-1]
    return made.removeprefix(_DONE) != "nothing"


def main(argv: Sequence[str]) -> None:
    """What the child does: one order as JSON; the last line says what was made, or why it could not be."""
    order = json.loads(argv[0])
    try:
        made = _make(order)
    except FstrtError as error:
        sys.exit(_FAILED + " ".join(error.what.split()))
    print(_DONE + (" ".join(made) or "nothing"))


def _make(order: dict[str, Any]) -> Sequence[str]:
    graphs, folder = order["graphs"], Path(order["graph_folder"])
    if order["candidate"].startswith("tensorrt"):
        flavour = order["candidate"].replace("-", "_")
        return _engines(order["checkpoint"], order["precision"], flavour, folder, Path(order["engine_folder"]))
    _graphs(order["checkpoint"], order["precision"], "nbits", graphs, folder)
    return graphs


def _graphs(checkpoint: str, precision: str, form: str, graphs: Sequence[str], folder: Path, **options: str) -> None:
    if precision in _QUANTISED:
        from ...graphs.precision import quantise_graphs

        quantise_graphs(checkpoint, precision=precision, form=form, graphs=graphs, folder=folder)
    else:
        from ...graphs.export import export_graphs

        export_graphs(checkpoint, precision=precision, graphs=graphs, folder=folder, **options)


def _engines(name: str, precision: str, flavour: str, folder: Path, engines: Path) -> list[str]:
    """Exports graphs that are missing, then builds the engines that are; returns the files that changed."""
    from ...engines.flavour import load_trt
    from ...engines.source import graph_label
    from ...runtimes.tensorrt_buckets import ready_engines

    checkpoint, trt = find_checkpoint(name), load_trt(flavour)
    labels = {graph: graph_label(precision, graph, trt.name) for graph in GRAPHS}
    paths = {graph: graph_path(folder, checkpoint.name, label, graph) for graph, label in labels.items()}
    for label in dict.fromkeys(labels.values()):
        stale = [graph for graph, path in paths.items() if labels[graph] == label and _stale(path, checkpoint)]
        attention = label.removeprefix(precision).strip("-")
        if stale:
            _graphs(name, precision, "qdq", stale, folder, **({"attention": attention} if attention else {}))

    def times() -> dict[str, int]:
        return {p.name: p.stat().st_mtime_ns for p in (engines / checkpoint.name / precision).glob("*.engine")}

    before = times()
    ready_engines(checkpoint.name, precision, checkpoint.config, trt, graphs=folder, folder=engines, missing=True)
    return [file for file, changed in times().items() if before.get(file) != changed]


if __name__ == "__main__":
    main(sys.argv[1:])
