"""The graph an engine is built from: which file, checked against its manifest, and hashed with its weights."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import GraphError, ParameterError
from ..graphs.manifest import file_sha256, graph_path, read_manifest
from ..graphs.view import GraphView

if TYPE_CHECKING:
    import onnx

__all__ = [
    "PRECISIONS",
    "Source",
    "cached_sha256",
    "find_graph",
    "graph_label",
    "note_sha256",
    "open_source",
    "replace_file",
]

PRECISIONS = ("float32", "float16", "bfloat16", "int8")
"""Precisions that have a form for TensorRT."""

_SETTLED = 2_000_000_000  # nanoseconds; a file changed more recently may change again within one tick of the clock


@dataclass(frozen=True)
class Source:
    """One graph, ready to be parsed.

    Attributes:
        path: The ``.onnx`` file, absolute.
        graph: Its name.
        checkpoint: Name of the checkpoint it was exported from; empty if no manifest tells.
        model: The graph without its weights.
        data: External data files by location.
    """

    path: Path
    graph: str
    checkpoint: str
    model: onnx.ModelProto
    data: dict[str, Path]

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the graph and of each data file."""
        found = {self.path.name: hashlib.sha256(self.path.read_bytes()).hexdigest()}
        return found | {location: cached_sha256(path) for location, path in sorted(self.data.items())}


def graph_label(precision: str, graph: str, flavour: str) -> str:
    """Name of the folder that holds the form of a graph which TensorRT builds.

    In float32 there is no kernel for attention with more than one query row. ``prefill`` has many, and ``frame`` has
    two in its first fast step, so both take the form with MatMul, Softmax, MatMul.

    Args:
        precision: One of :data:`PRECISIONS`.
        graph: Name of the graph.
        flavour: ``tensorrt`` or ``tensorrt_rtx``; both take the same form.

    Raises:
        ParameterError: There is no such form.
    """
    if precision not in PRECISIONS:
        raise ParameterError(
            f"there is no {precision} form of a graph for {flavour}", fix=f"use one of: {', '.join(PRECISIONS)}"
        )
    return "float32-decomposed" if precision == "float32" and graph in ("prefill", "frame") else precision


def find_graph(checkpoint: str, graph: str, precision: str, flavour: str, folder: Path) -> Path:
    """The ``.onnx`` file to build from.

    Args:
        checkpoint: Name of the checkpoint.
        graph: Name of the graph.
        precision: One of :data:`PRECISIONS`.
        flavour: See :func:`graph_label`.
        folder: Root of the exported graphs.

    Raises:
        GraphError: It was not exported; the fix is the command that does it.
    """
    label = graph_label(precision, graph, flavour)
    path = graph_path(folder, checkpoint, label, graph)
    if not path.is_file():
        raise GraphError(
            f"{graph} was not exported as {label}", where=path, fix=_export_command(checkpoint, graph, label)
        )
    return path


def _export_command(checkpoint: str, graph: str, label: str) -> str:
    if label == "int8":
        return f"python -m fstrt_helpers.graphs.precision {checkpoint} --precision int8 --graphs {graph}"
    precision, _, attention = label.partition("-")
    graphs = "prefill frame" if graph in ("prefill", "frame") else graph  # these two share their weights
    extra = f" --attention {attention}" if attention else ""
    return f"python -m fstrt_helpers.graphs.export {checkpoint} --precision {precision}{extra} --graphs {graphs}"


def open_source(path: str | os.PathLike[str]) -> Source:
    """Reads a graph, without its weights, and checks that all of its files are there.

    Raises:
        GraphError: A file is missing, changed or cut short.
    """
    path = Path(path).resolve()
    checkpoint, graph = "", path.stem
    if path.with_suffix(".onnx.json").is_file():
        manifest = read_manifest(path)
        checkpoint, graph = manifest.checkpoint, manifest.graph
    model = GraphView(path).model
    places = {e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}
    data = {place: path.parent / place for place in sorted(places)}
    if missing := [place for place, file in data.items() if not file.is_file()]:
        what = f"the data file {missing[0]} of {path.name} is missing"
        raise GraphError(what, where=path.parent, fix="export it again")
    return Source(path, graph, checkpoint, model, data)


def cached_sha256(path: Path) -> str:
    """SHA-256 of a file, read again only if its size, time of change or inode differ from last time.

    The answer is kept in a hidden file beside it. Hashing the weights of a full-size model takes about a second, and
    asking for a finished engine should not.
    """
    state = _state(path)
    try:
        known = json.loads(_note(path).read_text(encoding="utf-8"))
        if known["state"] == state and len(known["sha256"]) == 64:
            return known["sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        pass  # no note, or not one of ours: hash the file
    digest = file_sha256(path)
    if time.time_ns() - state[1] > _SETTLED and _state(path) == state:
        note_sha256(path, digest)
    return digest


def note_sha256(path: Path, digest: str) -> None:
    """Notes the hash of a file for :func:`cached_sha256`."""
    with contextlib.suppress(OSError):  # a read-only folder or a full disk: the file is hashed next time
        replace_file(_note(path), json.dumps({"state": _state(path), "sha256": digest}).encode())


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that it appears complete or not at all; on failure the old one stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with draft.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
