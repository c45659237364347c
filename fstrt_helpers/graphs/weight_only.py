"""Weight-only INT8 for TensorRT: int8 weights and a DequantizeLinear before every product that reads them.

TensorRT takes precision from the graph: a DequantizeLinear on a constant keeps the weight at one byte, and the product
itself runs in the type that comes out, float16 here. A frame at batch 1 is bound by reading weights, so half the bytes
are half the time at best.
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html

What the builder takes was tried with TensorRT-RTX 1.7: int8 constants may stand before a DequantizeLinear only, so
embeddings are dequantised before the Gather that picks rows, not after it; and gate and up projections are joined
(:func:`fstrt_helpers.graphs.weights.join_gates`).
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import TYPE_CHECKING

import numpy as np

from .weights import WeightGraph, is_kept, join_gates

if TYPE_CHECKING:
    import onnx

__all__ = ["Quantised", "quantise_channels", "weight_only_int8"]

Quantised = MutableMapping[str, tuple[np.ndarray, np.ndarray]]
"""Quantised values and scales by weight, so that a weight that two graphs read is quantised once."""


def quantise_channels(values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric int8 with one scale per channel, by ONNX Runtime's own tools.

    Args:
        values: Float matrix.
        axis: The axis along which one scale holds: 0 for a weight [in, out], which has a scale per output.

    Returns:
        int8 values of the same shape, and the scales, [other axis], in the type of `values`.
    """
    from onnx import TensorProto
    from onnxruntime.quantization.quant_utils import compute_scale_zp_blocked, quantize_nparray

    _, scales = compute_scale_zp_blocked(values, TensorProto.INT8, axis, values.shape[axis], True)
    int8 = quantize_nparray(TensorProto.INT8, values, scales.astype(np.float32), 0)
    return int8, scales.ravel()


def weight_only_int8(graph: WeightGraph, kept: Collection[str], done: Quantised) -> dict[str, int]:
    """Puts int8 weights and DequantizeLinear nodes into a ``prefill`` or ``frame`` graph.

    Products get a scale per output channel, embeddings a scale per row. A weight that several nodes read has one
    DequantizeLinear.

    Args:
        graph: The float16 export; it is changed.
        kept: Labels of the weights and modules that stay as they are.
        done: Weights that are quantised already; new ones are added.

    Returns:
        How many weights of each kind were quantised.
    """
    from onnx import helper

    join_gates(graph, kept)
    before: dict[str, list[onnx.NodeProto]] = {}
    nodes = {node.name: node for node in graph.model.graph.node}
    counts: dict[str, int] = {}
    for weight in graph.weights():
        if weight.kind not in ("MatMul", "Gather") or len(weight.shape) != 2 or is_kept(weight.label, kept):
            continue
        slot, axis = (1, 0) if weight.kind == "MatMul" else (0, 1)
        if weight.name not in done:
            done[weight.name] = quantise_channels(graph.array(weight.name), axis)
        int8, scales = done[weight.name]
        inputs = [graph.add(f"{weight.name}_int8", int8), graph.add(f"{weight.name}_scale", scales)]
        output = f"{weight.name}_dequantized"
        before[weight.nodes[0]] = [
            helper.make_node("DequantizeLinear", inputs, [output], name=f"{output}_node", axis=1 - axis)
        ]
        for name in weight.nodes:
            nodes[name].input[slot] = output
        counts[weight.kind] = counts.get(weight.kind, 0) + 1
    graph.replace_nodes({name: [*dequantise, nodes[name]] for name, dequantise in before.items()})
    return counts
