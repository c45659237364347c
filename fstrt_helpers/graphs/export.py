"""Exports the four graphs of a checkpoint to ONNX at opset 24.

    python -m fstrt_helpers.graphs.export tiny --precision float32

One file serves ONNX Runtime and TensorRT alike: attention, rotary positions, norms and cache writes are single
operators (:mod:`fstrt_helpers.model.ops`), weights lie beside the graph, shared between ``prefill`` and ``frame``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..checkpoint import Checkpoint, find_checkpoint
from ..errors import ParameterError
from ..model.frame import Frame, legal_rows
from ..model.ops import decomposed_attention
from .manifest import GraphManifest, file_sha256, graph_path
from .modules import (
    CodecDecodeGraph,
    CodecEncodeGraph,
    FrameGraph,
    PrefillGraph,
    example_inputs,
    transpose_linears,
)
from .spec import FLOATS, GRAPHS, PRECISIONS, GraphSpec, graph_spec, noise_size

if TYPE_CHECKING:
    import onnx

__all__ = ["GRAPH_FOLDER", "OPSET", "export_graphs"]

OPSET = 24
GRAPH_FOLDER = Path(__file__).resolve().parents[2] / "outputs" / "graphs"
_LONGEST = {"B": 64, "S": 8191, "C": 8192, "T": 8192}


def export_graphs(
    checkpoint: Checkpoint | str | os.PathLike[str] = "tiny",
    *,
    precision: str = "float32",
    graphs: Sequence[str] = GRAPHS,
    attention: str = "fused",
    logits: bool = False,
    folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Path]:
    """Exports graphs and writes them with their manifests; a file appears complete or not at all.

    Args:
        checkpoint: What to export.
        precision: Type of weights and activations. Norms, softmax, sampling and rotary tables keep what they need.
        graphs: Which of the four.
        attention: ``fused`` writes one Attention operator per layer; ``decomposed`` writes MatMul, Softmax, MatMul,
            which is what TensorRT needs for a float32 ``prefill``.
        logits: Whether ``frame`` returns its logits besides the tokens, to compare two runtimes by more than what
            they draw.
        folder: Root of the exported graphs; ``outputs/graphs`` by default.
        progress: Called with graph name, number done, and number in all.

    Returns:
        Path of every ``.onnx`` file by graph name.

    Raises:
        ParameterError: An unknown graph, precision or form of attention.
        CheckpointError: The checkpoint cannot be loaded.
    """
    if precision in PRECISIONS and precision not in FLOATS:
        raise ParameterError(
            f"{precision} is made from an exported graph, not exported",
            fix=f"`python -m fstrt_helpers.graphs.precision --precision {precision}`, or quantise_graphs()",
        )
    for value, known, what in (
        *((g, GRAPHS, "graph") for g in graphs),
        (precision, FLOATS, "precision"),
        (attention, ("fused", "decomposed"), "form of attention"),
    ):
        if value not in known:
            raise ParameterError(f"there is no {what} {value!r}", fix=f"use one of: {', '.join(known)}")
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = find_checkpoint(checkpoint)
    dtype = getattr(torch, precision)
    label = "-".join([precision] + [attention] * (attention != "fused") + ["logits"] * logits)
    root = GRAPH_FOLDER if folder is None else folder
    modules = _modules(checkpoint, graphs, dtype, logits)
    paths: dict[str, Path] = {}
    for done, (graph, (module, spec)) in enumerate(modules.items()):
        if progress:
            progress(graph, done, len(modules))
        path = graph_path(root, checkpoint.name, label, graph)
        began = time.perf_counter()
        with decomposed_attention() if attention == "decomposed" else contextlib.nullcontext():
            program = _trace(module, spec)
        paths[graph] = path
        share_with = paths.get("prefill") if graph == "frame" else None
        data = _write(program, path, checkpoint.fingerprint, share_with)
        GraphManifest(
            graph=graph,
            checkpoint=checkpoint.name,
            fingerprint=checkpoint.fingerprint,
            precision=precision,
            attention=attention,
            opset=OPSET,
            onnx_sha256=file_sha256(path),
            data_bytes={p.name: p.stat().st_size for p in data},
            inputs=[str(t) for t in spec.inputs],
            outputs=list(spec.outputs),
            config={k: v for k, v in dataclasses.asdict(checkpoint.config).items() if k != "extra"},
            versions=_versions(),
            seconds=round(time.perf_counter() - began, 1),
        ).write(path.with_suffix(".onnx.json"))
    if progress:
        progress("", len(modules), len(modules))
    return paths


def _modules(
    checkpoint: Checkpoint, graphs: Sequence[str], dtype: torch.dtype, logits: bool
) -> dict[str, tuple[nn.Module, GraphSpec]]:
    """Module and specification of every graph asked for; prefill comes before frame."""
    found: dict[str, nn.Module] = {}
    noise = noise_size(checkpoint.config)
    if {"prefill", "frame"} & set(graphs):
        dual_ar = checkpoint.load_dual_ar()
        rows = legal_rows(dual_ar, checkpoint.tokenizer().im_end_id)
        frame = Frame(dual_ar, rows)
        if hasattr(dual_ar, "output"):
            del dual_ar.output  # the frame keeps its own rows of it
        transpose_linears(dual_ar.to(dtype))
        frame.head = frame.head.to(dtype)
        found |= {"prefill": PrefillGraph(frame), "frame": FrameGraph(frame, logits=logits)}
    if {"codec_decode", "codec_encode"} & set(graphs):
        codec = transpose_linears(checkpoint.load_codec().to(dtype))
        found |= {"codec_decode": CodecDecodeGraph(codec), "codec_encode": CodecEncodeGraph(codec)}
    return {
        graph: (found[graph].eval(), graph_spec(graph, checkpoint.config, noise=noise, dtype=dtype, logits=logits))
        for graph in GRAPHS
        if graph in graphs
    }


def _trace(module: nn.Module, spec: GraphSpec) -> Any:
    """Runs ``torch.onnx.export`` with every free dimension named."""
    free: dict[str, Any] = {d: torch.export.Dim(d, min=1, max=n) for d, n in _LONGEST.items()}
    if spec.graph == "codec_encode":
        free["M"] = 4 * free["T"]
    shapes = [{i: free[d] for i, d in enumerate(t.shape) if isinstance(d, str)} for t in spec.inputs]
    names = [t.name for t in spec.inputs]
    variadic = sum(n.startswith(("k_", "v_")) for n in names)
    dynamic = (*shapes[: len(shapes) - variadic], *([tuple(shapes[-variadic:])] if variadic else []))
    with _quiet(), torch.no_grad():
        return torch.onnx.export(
            module,
            example_inputs(spec.inputs),
            dynamo=True,
            opset_version=OPSET,
            input_names=names,
            output_names=[f"{n}_out" if n in names else n for n in spec.outputs],
            dynamic_shapes=dynamic,
            verbose=False,
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporter's notes on operators of libraries that are not installed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write(program: Any, path: Path, fingerprint: str, share_with: Path | None) -> list[Path]:
    """Saves a graph with its data beside it and returns the data files it reads.

    Weights that the graph ``share_with`` holds already are read from that graph's data file. A data file carries the
    checkpoint's fingerprint in its name, so exporting another checkpoint never changes weights under an old graph.
    """
    import onnx

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
    try:
        program.save(draft / path.name, external_data=True)
        model = onnx.load(draft / path.name, load_external_data=False)
        for node in model.graph.node:  # the exporter notes where in which file on this machine a node came from
            kept = [p for p in node.metadata_props if "stack_trace" not in p.key]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        if path.stem == "codec_encode":
            _name_frames(model)
        shared = onnx.load(share_with, load_external_data=False) if share_with else onnx.ModelProto()
        data = f"{path.stem}.{fingerprint[:12]}.data"
        _move_weights(model, draft / f"{path.name}.data", draft / data, shared)
        onnx.save(model, draft / path.name)
        for name in (data, path.name):  # data first: a graph never points to what is not there
            os.replace(draft / name, path.parent / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    names = {_place(t)["location"] for t in model.graph.initializer if t.external_data}
    return [path.parent / name for name in sorted(names)]


def _name_frames(model: onnx.ModelProto) -> None:
    """Calls the length of the codes ``T``: the exporter invents a name, because it divides 4 T by 4 in two steps."""
    invented = model.graph.output[0].type.tensor_type.shape.dim[2].dim_param
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(rf"\b{invented}\b", "T", dim.dim_param)


def _place(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _move_weights(model: onnx.ModelProto, source: Path, target: Path, shared: onnx.ModelProto) -> None:
    """Copies external weights from `source` to `target`, but points those that `shared` has too to its data file."""
    twins = {t.name: t for t in shared.graph.initializer if t.external_data and t.name.startswith("frame.model.")}
    with source.open("rb") as old, target.open("wb") as new:
        for tensor in model.graph.initializer:
            if not tensor.external_data:
                continue
            twin = twins.get(tensor.name)
            if twin is not None and (twin.dims, twin.data_type) == (tensor.dims, tensor.data_type):
                place = _place(twin)
            else:
                here = _place(tensor)
                old.seek(int(here.get("offset", 0)))
                new.write(b"\0" * (-new.tell() % 4096))  # page-aligned, so that it can be mapped
                place = {"location": target.name, "offset": str(new.tell()), "length": here["length"]}
                new.write(old.read(int(here["length"])))
            del tensor.external_data[:]
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "onnx", "onnxscript")}


def main(argv: Sequence[str] | None = None) -> None:
    """Command line: exports a checkpoint and prints a line per graph."""
    parser = argparse.ArgumentParser(prog="python -m fstrt_helpers.graphs.export", description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", nargs="?", default="tiny")
    parser.add_argument("--precision", default="float32", choices=FLOATS)
    parser.add_argument("--attention", default="fused", choices=("fused", "decomposed"))
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--folder", type=Path)
    a = parser.parse_args(argv)

    def progress(graph: str, done: int, total: int) -> None:
        print(f"[{done}/{total}] {graph or 'done'}", flush=True)

    paths = export_graphs(
        a.checkpoint, precision=a.precision, graphs=a.graphs, attention=a.attention, folder=a.folder, progress=progress
    )
    for graph, path in paths.items():
        size = sum(p.stat().st_size for p in path.parent.glob(f"{graph}.*"))
        print(f"{graph:13} {size / 1e6:8.1f} MB  {path}")


if __name__ == "__main__":
    main()
