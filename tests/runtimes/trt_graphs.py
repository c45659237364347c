"""Four graphs with the inputs and outputs of the real ones and next to nothing between them, written by hand.

TensorRT-RTX builds each in a fraction of a second. So everything around an engine can be tested where none can run.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from fstrt_helpers.checkpoint import DualARConfig
from fstrt_helpers.graphs.manifest import GraphManifest, file_sha256, graph_path
from fstrt_helpers.graphs.spec import GRAPHS, graph_spec, noise_size

from ..checkpoints import RANDOM_CONFIG

CONFIG = DualARConfig.from_dict(RANDOM_CONFIG | {"dim": 64, "n_layer": 1, "max_seq_len": 128})
FINGERPRINT = "0123456789ab" + "c" * 52
_KINDS = {torch.int64: TensorProto.INT64, torch.bool: TensorProto.BOOL, torch.float32: TensorProto.FLOAT,
          torch.float16: TensorProto.FLOAT16}  # fmt: skip
_HEADS, _WIDTH = CONFIG.n_local_heads, CONFIG.head_dim


def write_small_graphs(root: Path, name: str = "small", fingerprint: str = FINGERPRINT) -> Path:
    """Writes ``<root>/<name>/float16/<graph>.onnx`` with data and manifests, and returns the root."""
    for graph in GRAPHS:
        _write(graph, graph_path(root, name, "float16", graph), name, fingerprint)
    return root


def _write(graph: str, path: Path, name: str, fingerprint: str) -> None:
    spec = graph_spec(graph, CONFIG, noise=noise_size(CONFIG), dtype=torch.float16)
    nodes, outputs, weight = _codec(graph) if graph.startswith("codec") else _cached(graph)
    inputs = [
        helper.make_tensor_value_info(t.name, _KINDS[t.dtype], ["4*T" if d == "M" else d for d in t.shape])
        for t in spec.inputs
    ]
    weights = [numpy_helper.from_array(weight.astype(np.float16), "w")]  # larger than the threshold below: external
    model = helper.make_model(
        helper.make_graph(nodes, graph, inputs, outputs, weights),
        opset_imports=[helper.make_opsetid("", 24)],
        ir_version=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    data = f"{graph}.{fingerprint[:12]}.data"
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=64)
    GraphManifest(
        graph=graph,
        checkpoint=name,
        fingerprint=fingerprint,
        precision="float16",
        attention="fused",
        opset=24,
        onnx_sha256=file_sha256(path),
        data_bytes={data: (path.parent / data).stat().st_size},
        inputs=[str(t) for t in spec.inputs],
        outputs=list(spec.outputs),
        config={k: v for k, v in dataclasses.asdict(CONFIG).items() if k != "extra"},
        versions={},
        seconds=0.0,
    ).write(path.with_suffix(".onnx.json"))


def _value(name: str, kind: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _constant(name: str, *values: int) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_ints=list(values))


def _codec(graph: str) -> tuple[list, list, np.ndarray]:
    node = helper.make_node
    if graph == "codec_decode":  # mean of the codes of a frame, spread over its 2048 samples
        nodes = [
            *(_constant("shape", 0, 1, -1), _constant("axis", 1), _constant("last", 2)),
            node("Cast", ["codes"], ["x"], to=TensorProto.FLOAT16),
            node("ReduceMean", ["x", "axis"], ["mean"], keepdims=0),  # [B, T]
            node("Unsqueeze", ["mean", "last"], ["column"]),
            node("MatMul", ["column", "w"], ["samples"], name="product"),
            node("Reshape", ["samples", "shape"], ["row"]),
            node("Cast", ["row"], ["waveform"], to=TensorProto.FLOAT),
        ]
        return nodes, [_value("waveform", TensorProto.FLOAT, ["B", 1, "2048*T"])], np.full((1, 2048), 1 / 1024)
    nodes = [
        *(_constant("shape", 0, 160, -1, 4), _constant("axis", 3)),
        node("Cast", ["log_mel"], ["x"], to=TensorProto.FLOAT16),
        node("Reshape", ["x", "shape"], ["fours"]),
        node("ReduceMean", ["fours", "axis"], ["mean"], keepdims=0),  # [B, 160, T]
        node("MatMul", ["w", "mean"], ["rows"], name="product"),
        node("Cast", ["rows"], ["codes"], to=TensorProto.INT64),
    ]
    return nodes, [_value("codes", TensorProto.INT64, ["B", 8, "T"])], np.ones((8, 160)) / 16


def _cached(graph: str) -> tuple[list, list, np.ndarray]:
    """Writes a product of the ids, where the mask lets any slot be read, into keys and values."""
    node, ids = helper.make_node, "columns" if graph == "prefill" else "column"
    nodes = [
        *(
            _constant("shape", 0, -1, _HEADS, _WIDTH),
            _constant("axis", 3),
            _constant("one", 1),
            _constant("two", 2),
            _constant("newest", 15),
        ),
        node("Cast", [ids], ["x"], to=TensorProto.FLOAT16),
        node("Transpose", ["x"], ["rows"], perm=[0, 2, 1]),  # [B, S, 9]
        node("MatMul", ["rows", "w"], ["wide"], name="product"),
        node("Reshape", ["wide", "shape"], ["heads"]),
        node("Transpose", ["heads"], ["new"], perm=[0, 2, 1, 3]),  # [B, H, S, D]
        node("Cast", ["mask"], ["open"], to=TensorProto.FLOAT16),
        node("ReduceMax", ["open", "axis"], ["any"]),  # [B, 1, S, 1]
        node("Mul", ["new", "any"], ["kept"]),
        node("TensorScatter", ["k_0", "kept", "start"], ["k_0_out"], axis=2, mode="linear"),
        node("TensorScatter", ["v_0", "kept", "start"], ["v_0_out"], axis=2, mode="linear"),
    ]
    outputs = [_value(f"{n}_0_out", TensorProto.FLOAT16, ["B", _HEADS, "C", _WIDTH]) for n in "kv"]
    if graph == "frame":
        sampler = ("temperature", "top_p", "penalty")
        nodes += [
            node("Concat", sampler, ["settings"], axis=1),
            node("Concat", ["noise", "settings"], ["numbers"], axis=1),
            node("ReduceMax", ["numbers", "one"], ["most"], keepdims=1),  # [B, 1]
            node("Cast", ["most"], ["whole"], to=TensorProto.INT64),
            node("Add", ["window", "column"], ["moved"]),
            node("Gather", ["moved", "newest"], ["last"], axis=2),  # [B, 9, 1]
            node("Squeeze", ["last", "two"], ["codes"]),
            node("Add", ["codes", "whole"], ["next"]),
        ]
        outputs.insert(0, _value("next", TensorProto.INT64, ["B", 9]))
    return nodes, outputs, np.linspace(-1, 1, 9 * _HEADS * _WIDTH).reshape(9, -1) / 64
