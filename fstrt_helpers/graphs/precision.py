"""Graphs of fewer bits: INT8 for TensorRT, 8 and 4 bits for ONNX Runtime on a CPU.

    python -m fstrt_helpers.graphs.precision tiny --precision int8

| form | precision | made from | ``prefill``, ``frame`` | ``codec_decode``, ``codec_encode`` |
|---|---|---|---|---|
| ``qdq`` | int8 | float16 | int8 weights, one scale per channel | int8 weights and activations, calibrated |
| ``nbits`` | int8, int4 | float32 | MatMulNBits, one scale per block | as they are, in float32 |

The two transformers are bound by reading weights, the codec by computing; so they are quantised differently. On a CPU
the codec in INT8 gains a tenth at best and loses quality, so it stays float32 there.

Half precision needs none of this: :mod:`fstrt_helpers.graphs.export` writes it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, find_checkpoint
from ..errors import GraphError, ParameterError
from .calibration import TEXTS, CalibrationSet, collect_calibration
from .codec_int8 import codec_int8, quantisable
from .export import GRAPH_FOLDER, export_graphs
from .manifest import GraphManifest, file_sha256, graph_path, read_manifest
from .nbits import ACCURACY_LEVEL, INT4_KEEP, fitting_block, nbits_weights
from .ranges import measure_ranges
from .spec import GRAPHS
from .weight_only import Quantised, weight_only_int8
from .weights import WeightGraph, resolve_keep, write_graph

__all__ = ["FORMS", "graph_label", "groups", "quantise_graphs"]

FORMS = ("qdq", "nbits")
_BITS = {"int8": 8, "int4": 4}
_BASE = {"qdq": "float16", "nbits": "float32"}
_CODEC = ("codec_decode", "codec_encode")


def graph_label(precision: str, form: str = "qdq", *, logits: bool = False) -> str:
    """Name of the folder in which graphs of a precision lie.

    Raises:
        ParameterError: There is no such precision or form, or not this precision in this form.
    """
    if precision not in _BITS:
        raise ParameterError(f"{precision!r} is no quantised precision", fix=f"use one of: {', '.join(_BITS)}")
    if form not in FORMS:
        raise ParameterError(f"there is no form {form!r}", fix=f"use one of: {', '.join(FORMS)}")
    if form == "qdq" and precision == "int4":
        raise ParameterError("int4 exists in the form for ONNX Runtime only", fix="form='nbits', or precision='int8'")
    return "-".join([precision] + ["nbits"] * (form == "nbits") + ["logits"] * logits)


def quantise_graphs(
    checkpoint: Checkpoint | str | os.PathLike[str] = "tiny",
    *,
    precision: str = "int8",
    form: str = "qdq",
    graphs: Sequence[str] = GRAPHS,
    keep: Collection[str] | None = None,
    calibration: CalibrationSet | None = None,
    method: str = "percentile",
    block_size: int | None = None,
    accuracy_level: int = ACCURACY_LEVEL,
    logits: bool = False,
    folder: Path | None = None,
    into: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Path]:
    """Quantises exported graphs and writes them with their manifests; a file appears complete or not at all.

    Graphs they are made from and that are not there yet are exported first.

    Args:
        checkpoint: Whose graphs.
        precision: ``int8`` or ``int4``.
        form: ``qdq`` for TensorRT, ``nbits`` for ONNX Runtime on a CPU.
        graphs: Which of the four.
        keep: Weights or modules of higher precision, such as ``layers.0``, ``fast_layers.2.attention.wo``,
            ``token_head``, ``codec.head.ups.4``. Among 4 bits they get 8, else they stay as they are. None means
            :data:`fstrt_helpers.graphs.nbits.INT4_KEEP` for int4 and nothing for int8.
        calibration: Data for the codec in form ``qdq``; collected or read from its cache if not given.
        method: How ranges are taken from it: ``minmax``, ``entropy`` or ``percentile``.
        block_size: Weights per scale in form ``nbits``; what was measured to be best by default.
        accuracy_level: In form ``nbits``: type in which activations enter the products, 4 is int8, 1 float32.
        logits: Whether ``frame`` is the one that returns its logits.
        folder: Root of the exported graphs; ``outputs/graphs`` by default.
        into: Root of the quantised ones; `folder` by default.
        progress: Called with graph name, number done, and number in all.

    Returns:
        Path of every ``.onnx`` file by graph name.

    Raises:
        ParameterError: An unknown graph, precision, form or method, or `keep` names what is not there, or all.
        GraphError: A graph is damaged or from another checkpoint, or not all that was chosen got quantised.
        CheckpointError: The checkpoint cannot be loaded.
    """
    label = graph_label(precision, form, logits=logits)
    if unknown := [g for g in graphs if g not in GRAPHS]:
        raise ParameterError(f"there is no graph {unknown[0]!r}", fix=f"use one of: {', '.join(GRAPHS)}")
    if block_size is not None and (block_size < 16 or block_size & (block_size - 1)):
        raise ParameterError(f"the block size is {block_size}", fix="use a power of two from 16 on, such as 32")
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = find_checkpoint(checkpoint)
    root = GRAPH_FOLDER if folder is None else folder
    graphs = [g for g in GRAPHS if g in graphs]  # prefill before frame, which reads its data
    sources = _sources(checkpoint, graphs, _BASE[form], logits, root)
    wanted = {g: WeightGraph(path) for g, path in sources.items()}
    labels = {w.label for g, graph in wanted.items() for w in _candidates(graph, g, form)}
    if keep is None:
        keep = [k for k in INT4_KEEP if precision == "int4" and k in labels]
    kept = resolve_keep(keep, labels)
    if labels and len(kept) == len(labels):
        raise ParameterError("keep= leaves nothing to quantise", fix=f"use the {_BASE[form]} graphs, or keep fewer")
    widths = {w.shape[1] for g in wanted.values() for w in g.weights() if w.kind == "Gather"}
    block = block_size or fitting_block(_BITS[precision], widths)
    settings = {"form": form, "precision": precision, "kept": kept, "block": block, "level": accuracy_level}
    if form == "qdq" and set(_CODEC) & set(graphs):
        calibration = calibration or _calibration(checkpoint)
        settings |= {"calibration": calibration.key, "method": method}
    mark = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:6]
    done: Quantised = {}
    paths: dict[str, Path] = {}
    for number, (name, graph) in enumerate(wanted.items()):
        if progress:
            progress(name, number, len(wanted))
        began = time.perf_counter()
        base = read_manifest(sources[name], fingerprint=checkpoint.fingerprint)
        path = graph_path(root if into is None else into, checkpoint.name, label, name)
        if form == "nbits" and name in _CODEC:
            paths[name] = _take_over(sources[name], path, base)
            continue
        facts: dict[str, Any] = {"kept": [w.label for w in _candidates(graph, name, form) if w.label in kept]}
        if name in _CODEC:
            float32 = _sources(checkpoint, [name], "float32", False, root)[name]
            ranges = measure_ranges(float32, calibration, method, graph=name)
            counts = codec_int8(graph, name, kept, ranges)
            facts["calibration"] = f"{method}, data {calibration.key[:12]}"
        elif form == "qdq":
            counts = weight_only_int8(graph, kept, done)
        else:
            bits = _BITS[precision]
            counts = nbits_weights(graph, kept, done, bits=bits, block_size=block, accuracy_level=accuracy_level)
            facts["block_size"] = block
        _check(graph, name, form, counts, path)
        shared = paths.get("prefill") if name == "frame" else None
        data = write_graph(graph, path, f"{name}.{checkpoint.fingerprint[:12]}-{mark}.data", share_with=shared)
        dataclasses.replace(
            base,
            precision=precision,
            form=form,
            activations=_BASE[form],
            quantised=counts,
            onnx_sha256=file_sha256(path),
            data_bytes={p.name: p.stat().st_size for p in data},
            versions=base.versions | _versions(),
            seconds=round(time.perf_counter() - began, 1),
            **facts,
        ).write(path.with_suffix(".onnx.json"))
        paths[name] = path
    if progress:
        progress("", len(wanted), len(wanted))
    return paths


def groups(checkpoint: Checkpoint, graph: str, *, folder: Path | None = None) -> list[str]:
    """Groups of weights that are worth judging one by one, as names for ``keep=``.

    For ``frame`` the embeddings, every slow and every fast layer, and the two heads; for the codec its stages.

    Args:
        checkpoint: Whose graphs; its float16 or float32 export of that graph is read, or a float16 one made.
        graph: ``frame``, ``codec_decode`` or ``codec_encode``.
        folder: Root of the exported graphs; ``outputs/graphs`` by default.
    """
    root = GRAPH_FOLDER if folder is None else folder
    there = (p for p in ("float16", "float32") if graph_path(root, checkpoint.name, p, graph).is_file())
    source = _sources(checkpoint, [graph], next(there, "float16"), False, root)[graph]
    found = []
    for weight in _candidates(WeightGraph(source), graph, "qdq"):
        parts = weight.label.split(".")
        depth = {"layers": 2, "fast_layers": 2, "codec": 4}.get(parts[0], 1)
        if parts[0] == "codec" and parts[2] == "conv_pre":
            depth = 3
        found.append(".".join(parts[:depth]))
    return list(dict.fromkeys(found))


def _candidates(graph: WeightGraph, name: str, form: str) -> list[Any]:
    if name in _CODEC:
        return quantisable(graph, name) if form == "qdq" else []
    return [w for w in graph.weights() if w.kind in ("MatMul", "Gather") and len(w.shape) == 2]


def _sources(
    checkpoint: Checkpoint, graphs: Sequence[str], precision: str, logits: bool, root: Path
) -> dict[str, Path]:
    """Exported graphs to start from; those that are not there are exported."""
    label = f"{precision}-logits" if logits else precision
    paths = {g: graph_path(root, checkpoint.name, label, g) for g in graphs}
    if missing := [g for g, path in paths.items() if not path.is_file()]:
        export_graphs(checkpoint, precision=precision, graphs=missing, logits=logits, folder=root)
    for path in paths.values():
        read_manifest(path, fingerprint=checkpoint.fingerprint)
    return paths


def _calibration(checkpoint: Checkpoint) -> CalibrationSet:
    from ..speech.backends import open_backend
    from ..speech.pipeline import FishSpeech

    speech = FishSpeech(checkpoint, open_backend(checkpoint, "torch", "float32"))
    if checkpoint.random_seed is None:
        return collect_calibration(speech)
    some = {name: TEXTS[name] for name in ("short-1", "silence")}  # it speaks noise, whatever the text
    return collect_calibration(speech, texts=some, max_seconds=1.0)


def _check(graph: WeightGraph, name: str, form: str, counts: dict[str, int], path: Path) -> None:
    """Counts what is really in the graph: a tool that does nothing must not go unnoticed.

    Raises:
        GraphError: Another number of weights is quantised than were chosen.
    """
    kinds = ("DequantizeLinear",) if form == "qdq" else ("MatMulNBits", "GatherBlockQuantized")
    slots = {"DequantizeLinear": 0, "MatMulNBits": 1, "GatherBlockQuantized": 0}
    constants = {t.name for t in graph.model.graph.initializer}
    nodes = [n for n in graph.model.graph.node if n.op_type in kinds]
    read = {n.input[slots[n.op_type]] for n in nodes} & constants
    if len(read) != sum(counts.values()):
        raise GraphError(
            f"{len(read)} weights of {name} are quantised, {sum(counts.values())} were chosen",
            where=path,
            fix="install the versions of onnx and onnxruntime in requirements.txt",
        )


def _take_over(source: Path, path: Path, base: GraphManifest) -> Path:
    """Copies a graph that is not quantised to the others: onnx refuses data files that are links."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for name in (*base.data_bytes, source.name):
        draft = path.parent / f".{name}.{os.getpid()}"
        try:
            shutil.copyfile(source.parent / name, draft)
            os.replace(draft, path.parent / name)
        finally:
            draft.unlink(missing_ok=True)
    base.write(path.with_suffix(".onnx.json"))
    return path


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"onnxruntime": version("onnxruntime")}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: quantises a checkpoint and prints a line per graph."""
    parser = argparse.ArgumentParser(
        prog="python -m fstrt_helpers.graphs.precision", description=__doc__.splitlines()[0]
    )
    parser.add_argument("checkpoint", nargs="?", default="tiny")
    parser.add_argument("--precision", default="int8", choices=tuple(_BITS))
    parser.add_argument("--form", choices=FORMS, help="qdq for TensorRT, nbits for ONNX Runtime on a CPU")
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--keep", nargs="*", help="weights or modules of higher precision")
    parser.add_argument("--method", default="percentile", choices=("minmax", "entropy", "percentile"))
    parser.add_argument("--folder", type=Path)
    a = parser.parse_args(argv)

    def progress(graph: str, done: int, total: int) -> None:
        print(f"[{done}/{total}] {graph or 'done'}", flush=True)

    paths = quantise_graphs(
        a.checkpoint,
        precision=a.precision,
        form=a.form or ("nbits" if a.precision == "int4" else "qdq"),
        graphs=a.graphs,
        keep=a.keep,
        method=a.method,
        folder=a.folder,
        progress=progress,
    )
    for graph, path in paths.items():
        manifest = read_manifest(path)
        size = path.stat().st_size + sum(manifest.data_bytes.values())
        made = ", ".join(f"{n} {kind}" for kind, n in manifest.quantised.items()) or "as exported"
        print(f"{graph:13} {size / 1e6:8.1f} MB  {made}  {path}")


if __name__ == "__main__":
    main()
