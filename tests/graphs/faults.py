"""Minimal graphs, each with one fault that the lint knows, and the same graph without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FAULTS", "attention", "clean", "faulty"]

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
Shape = Sequence[int | str]
FAULTS: dict[str, Callable[[bool], onnx.ModelProto]] = {}


def faulty(rule: str) -> onnx.ModelProto:
    """The graph with the fault that the rule of this name looks for."""
    return FAULTS[rule](True)


def clean(rule: str) -> onnx.ModelProto:
    """The same graph, mended."""
    return FAULTS[rule](False)


def _fault(rule: str) -> Callable[[Callable[[bool], onnx.ModelProto]], Callable[[bool], onnx.ModelProto]]:
    def register(build: Callable[[bool], onnx.ModelProto]) -> Callable[[bool], onnx.ModelProto]:
        FAULTS[rule] = build
        return build

    return register


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Shape]],
    outputs: dict[str, tuple[int, Shape]],
    weights: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "fault",
        [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [helper.make_tensor_value_info(name, *what) for name, what in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def _node(op: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    """A node named after its operator; names are separated by blanks, ``-`` leaves one out."""
    names = [["" if n == "-" else n for n in side.split()] for side in (inputs, outputs)]
    return helper.make_node(op, *names, name=op.lower(), **attributes)


def attention(limit: str, *, heads: int = 2, capacity: int = 8, width: int = 4) -> onnx.ModelProto:
    """One query row over a cache of which only a part is filled.

    Args:
        limit: What says how much is filled: ``nonpad`` (its length), ``mask`` (a boolean mask), or ``none``.
        heads: Attention heads.
        capacity: Slots of the cache.
        width: Width of a head.
    """
    cache = (FLOAT, [1, heads, capacity, width])
    inputs = {"q": (FLOAT, [1, heads, 1, width]), "k": cache, "v": cache}
    extra = {"nonpad": ("length", (INT64, [1])), "mask": ("mask", (BOOL, [1, 1, 1, capacity]))}
    names = {"nonpad": "q k v - - - length", "mask": "q k v mask", "none": "q k v"}[limit]
    inputs |= dict([extra[limit]]) if limit in extra else {}
    return _model([_node("Attention", names, "y")], inputs, {"y": (FLOAT, [1, heads, 1, width])})


@_fault("nonpad-kv-seqlen")
def _nonpad(bad: bool) -> onnx.ModelProto:
    return attention("nonpad" if bad else "mask")


@_fault("attention-outputs")
def _attention_outputs(bad: bool) -> onnx.ModelProto:
    model = attention("none")
    if bad:
        model.graph.node[0].output.extend(["", "", "scores"])
        model.graph.output.append(helper.make_tensor_value_info("scores", FLOAT, [1, 2, 1, 8]))
    return model


@_fault("lost-dynamic-axis")
def _lost_axis(bad: bool) -> onnx.ModelProto:
    """The input of ``codec_decode``; the test gives the specification."""
    batch = 2 if bad else "B"
    what = (INT64, [batch, 8, "T"])
    return _model([_node("Identity", "codes", "waveform")], {"codes": what}, {"waveform": what})


@_fault("data-dependent-shape")
def _data_dependent(bad: bool) -> onnx.ModelProto:
    if not bad:
        nodes = [_node("Where", "keep x zero", "y")]
        what = {"x": (FLOAT, ["T"]), "keep": (BOOL, ["T"])}
        return _model(nodes, what, {"y": (FLOAT, ["T"])}, {"zero": np.float32(0)})
    return _model([_node("NonZero", "x", "y")], {"x": (FLOAT, ["T"])}, {"y": (INT64, [1, "N"])})


@_fault("weight-norm")
def _weight_norm(bad: bool) -> onnx.ModelProto:
    """A convolution whose weight is g · v / |v|, and the one with that product as a constant."""
    v = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    g, axes = np.ones((4, 1, 1), np.float32), np.array([1, 2])
    w = g * v / np.sqrt((v**2).sum((1, 2), keepdims=True))
    parts = [
        _node("ReduceL2", "v axes", "norm", keepdims=1),
        _node("Div", "v norm", "direction"),
        _node("Mul", "g direction", "w"),
    ]
    weights = {"g": g, "v": v, "axes": axes} if bad else {"w": w}
    nodes = [*(parts if bad else []), _node("Conv", "x w", "y")]
    return _model(nodes, {"x": (FLOAT, ["B", 3, "T"])}, {"y": (FLOAT, ["B", 4, "U"])}, weights)


@_fault("dropout")
def _dropout(bad: bool) -> onnx.ModelProto:
    what = (FLOAT, ["B", 4])
    node = _node("Dropout", "x ratio", "y") if bad else _node("Identity", "x", "y")
    return _model([node], {"x": what}, {"y": what}, {"ratio": np.float32(0.1)} if bad else {})


@_fault("training-mode")
def _training(bad: bool) -> onnx.ModelProto:
    what, one = (FLOAT, ["B", 4, "T"]), np.ones(4, np.float32)
    outputs = "y mean_out var_out" if bad else "y"
    node = _node("BatchNormalization", "x scale bias mean var", outputs, training_mode=int(bad))
    return _model([node], {"x": what}, {"y": what}, dict.fromkeys(("scale", "bias", "mean", "var"), one))


@_fault("float32-island")
def _island(bad: bool) -> onnx.ModelProto:
    """Two products in half precision; in the faulty graph the second is wrapped in casts."""
    w = np.eye(4, dtype=np.float16)
    nodes = [_node("MatMul", "x w", "h")]
    if bad:
        island = _node("MatMul", "wide w32", "product")
        island.name = "island"
        nodes += [_node("Cast", "h", "wide", to=FLOAT), island, _node("Cast", "product", "y", to=HALF)]
    else:
        nodes.append(_node("MatMul", "h w", "y"))
    weights = {"w": w} | ({"w32": w.astype(np.float32)} if bad else {})
    return _model(nodes, {"x": (HALF, ["B", 4])}, {"y": (HALF, ["B", 4])}, weights)


@_fault("int64")
def _int64(bad: bool) -> onnx.ModelProto:
    kind = INT64 if bad else FLOAT
    w = np.eye(4, dtype=np.int64 if bad else np.float32)
    return _model([_node("MatMul", "x w", "y")], {"x": (kind, ["B", 4])}, {"y": (kind, ["B", 4])}, {"w": w})


@_fault("concat-inputs")
def _concat(bad: bool) -> onnx.ModelProto:
    count = 33 if bad else 32
    names = [f"k_{i}" for i in range(count)]
    inputs = {name: (FLOAT, ["B", 1]) for name in names}
    return _model([_node("Concat", " ".join(names), "y", axis=1)], inputs, {"y": (FLOAT, ["B", count])})


@_fault("baked-shape")
def _baked(bad: bool) -> onnx.ModelProto:
    """Splits 4 channels into 2 heads, for two rows of five columns only, or for any."""
    shape = np.array([2, 5, 2, 2] if bad else [0, 0, 2, 2])
    return _model(
        [_node("Reshape", "x shape", "y")],
        {"x": (FLOAT, ["B", "S", 4])},
        {"y": (FLOAT, [2, 5, 2, 2] if bad else ["B", "S", 2, 2])},
        {"shape": shape},
    )
