"""The codec in INT8, weights and activations (W8A8), as explicit Q/DQ nodes for TensorRT.

The codec computes many samples with few weights, so reading less does not help; multiplying in int8 does. Both sides of
a convolution become int8: weights with a scale per output channel, activations with one scale from calibration.

ONNX Runtime's ``quantize_static`` inserts the nodes. TensorRT takes zero points of 0 only and no int32 biases, hence
its three options; and outputs stay unquantised, since only what enters a product decides in which type it is computed.
https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from ..errors import GraphError
from .ranges import Ranges
from .weights import Weight, WeightGraph, is_kept

__all__ = ["CODEC_KEEP", "codec_int8", "quantisable"]

CODEC_KEEP = {
    "codec_decode": ("codec.quantizer.residual_fsq", "codec.head.conv_post"),
    "codec_encode": ("codec.quantizer.residual_fsq",),
}
"""Left in float16 always: the projections of the quantiser, four numbers wide, whose rounding makes the codes; and the
last convolution, whose output is the waveform itself."""
_KINDS = ("Conv", "ConvTranspose", "MatMul")
_OPTIONS = {
    "QuantizeBias": False,
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    "OpTypesToExcludeOutputQuantization": list(_KINDS),
}


def quantisable(graph: WeightGraph, name: str) -> list[Weight]:
    """Weights of the codec that int8 can hold: all products and convolutions but depthwise ones and `CODEC_KEEP`.

    A depthwise filter has 7 weights per channel; there is no int8 product in it to speed up.

    Args:
        graph: ``codec_decode`` or ``codec_encode``.
        name: Which of the two.
    """
    depthwise = {
        node.name
        for node in graph.model.graph.node
        for attribute in node.attribute
        if attribute.name == "group" and attribute.i > 1
    }
    return [
        w
        for w in graph.weights()
        if w.kind in _KINDS and not depthwise & set(w.nodes) and not is_kept(w.label, CODEC_KEEP[name])
    ]


def codec_int8(graph: WeightGraph, name: str, kept: Collection[str], ranges: Ranges) -> dict[str, int]:
    """Puts Q/DQ pairs into a codec graph.

    Args:
        graph: The float16 export; its model is replaced.
        name: ``codec_decode`` or ``codec_encode``.
        kept: Labels of the weights and modules that stay float16.
        ranges: Of the same graph in float32.

    Returns:
        How many weights of each kind were quantised.

    Raises:
        GraphError: The ranges are of another graph.
    """
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import TensorData, TensorsData, save_tensors_data

    chosen = [w for w in quantisable(graph, name) if not is_kept(w.label, kept)]
    if missing := [w.label for w in chosen if w.label not in ranges.limits]:
        raise GraphError(f"the ranges do not cover {missing[0]}", where=graph.path, fix="calibrate this checkpoint")
    counts: dict[str, int] = {}
    for weight in chosen:
        counts[weight.kind] = counts.get(weight.kind, 0) + 1
    if not chosen:
        return counts
    reader = {node.name: node for node in graph.model.graph.node}
    data = {}
    for weight in chosen:
        limits = [np.array(v, np.float16) for v in ranges.limits[weight.label]]
        data[reader[weight.nodes[0]].input[0]] = TensorData(lowest=limits[0], highest=limits[1])
    with tempfile.TemporaryDirectory(prefix="quantise-") as scratch:  # the tool writes beside its model
        source, cache, target = (Path(scratch) / n for n in ("model.onnx", "ranges.json", "int8.onnx"))
        onnx.save(onnx.load(graph.path), source)
        save_tensors_data(TensorsData(CalibrationMethod.MinMax, data), cache)
        level = logging.getLogger().level
        logging.getLogger().setLevel(logging.ERROR)  # it recommends a preprocessing that TensorRT does itself
        try:
            quantize_static(
                source,
                target,
                None,
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=list(_KINDS),
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                nodes_to_quantize=[node for weight in chosen for node in weight.nodes],
                extra_options=_OPTIONS,
                calibration_cache_path=cache,
            )
        finally:
            logging.getLogger().setLevel(level)
        graph.model.CopyFrom(onnx.load(target))
    graph.drop_unused()
    return counts
