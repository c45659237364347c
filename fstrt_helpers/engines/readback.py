"""Reads from a parsed network in which precision its layers compute, and refuses one that is not what was asked for.

A strongly typed network computes each layer in the types of its tensors, so they are known before the build. Asking
the file name, or the builder's flags, is how a float32 engine came to be called float16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import EngineError

__all__ = ["LayerShare", "check_precision", "dropped_inputs", "heavy_share", "read_precision"]

_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT8": "int8", "FP8": "float8", "INT4": "int4",
          "FP4": "float4"}  # fmt: skip
_FLOATS = ("FLOAT", "BF16", "HALF", "FP8", "FP4")  # the widest first
# Where nearly all of the arithmetic is. TensorRT calls the two products of attention by its input.
_HEAVY = {"MATRIX_MULTIPLY", "CONVOLUTION", "DECONVOLUTION", "ATTENTION_INPUT", "ATTENTION", "EINSUM", "MOE"}
_CARRIERS = {"SHUFFLE", "IDENTITY", "CAST", "SQUEEZE", "UNSQUEEZE", "SLICE"}  # pass a dequantised value on
_SHOWN = 4


@dataclass(frozen=True)
class LayerShare:
    """Layers of one type and one precision.

    Attributes:
        layer: TensorRT's name of the type, such as ``MATRIX_MULTIPLY``.
        precision: What they compute in. ``int8`` means that all operands come from DequantizeLinear, ``int8 weights``
            that only the second one does; ``index`` stands for integers and booleans.
        count: How many.
        heavy: Whether they are products, which decide speed and size.
        names: Names of the heavy ones.
    """

    layer: str
    precision: str
    count: int
    heavy: bool
    names: tuple[str, ...] = ()


def read_precision(network: Any) -> tuple[LayerShare, ...]:
    """Counts the layers of a network by type and precision.

    Args:
        network: A parsed ``INetworkDefinition``.

    Returns:
        Heavy types first, then by count.
    """
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    maker = {layer.get_output(i).name: layer for layer in layers for i in range(layer.num_outputs)}
    counts: Counter[tuple[str, str]] = Counter()
    names: dict[tuple[str, str], list[str]] = {}
    for layer in layers:
        kind = layer.type.name
        key = (kind, _precision(layer, maker) if kind in _HEAVY else _widest(layer))
        counts[key] += 1
        if kind in _HEAVY:
            names.setdefault(key, []).append(layer.name)
    found = [
        LayerShare(kind, precision, count, kind in _HEAVY, tuple(names.get((kind, precision), ())))
        for (kind, precision), count in counts.items()
    ]
    return tuple(sorted(found, key=lambda s: (not s.heavy, -s.count, s.layer, s.precision)))


def heavy_share(layers: Sequence[LayerShare]) -> dict[str, float]:
    """Share of the heavy layers per precision, the largest first; empty if there are none."""
    counts: Counter[str] = Counter()
    for share in layers:
        if share.heavy:
            counts[share.precision] += share.count
    return {precision: count / counts.total() for precision, count in counts.most_common()}


def check_precision(
    layers: Sequence[LayerShare],
    asked: str,
    *,
    where: object = None,
    islands: Collection[str] = (),
    widened: Collection[str] = (),
) -> None:
    """Refuses a network whose products do not compute in what was asked for.

    Args:
        layers: From :func:`read_precision`.
        asked: ``float32``, ``float16``, ``bfloat16`` or ``int8``. For ``int8`` at least one product must have int8
            operands; which others stay in higher precision is for the sensitivity sweep to decide.
        where: Named in the error.
        islands: Parts of layer names that may compute in something else.
        widened: Whole names of layers that compute in float32 for want of a kernel.

    Raises:
        EngineError: With the share of each precision and the names of the first layers that differ.
    """
    shares = heavy_share(layers)
    found = ", ".join(f"{precision} {share:.0%}" for precision, share in shares.items())
    if asked == "int8":
        if shares and not any(precision.startswith("int8") for precision in shares):
            raise EngineError(
                f"int8 was asked for, but no product has int8 operands ({found})",
                where=where,
                fix="quantise the graph first: DequantizeLinear before the weights, or Q/DQ pairs",
            )
        return
    differ = [
        name
        for share in layers
        if share.heavy and share.precision != asked
        for name in share.names
        if name not in widened and not any(part in name for part in islands)
    ]
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        raise EngineError(
            f"{asked} was asked for, but the products are {found}: {', '.join(differ[:_SHOWN])}{more}",
            where=where,
            fix=f"build from the graph exported in {asked}; name layers that are meant to differ in islands=",
        )


def dropped_inputs(network: Any, used: Collection[str]) -> list[str]:
    """Inputs that the graph reads and the parsed network does not.

    TensorRT's parser leaves out what it does not support of some operators, such as the valid lengths of Attention,
    with a warning only, and the engine then computes something else.

    Args:
        network: A parsed ``INetworkDefinition``.
        used: Inputs that some node of the ONNX graph reads.
    """
    read: set[str] = set()
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        read.update(t.name for j in range(layer.num_inputs) if (t := layer.get_input(j)) is not None)
    names = {network.get_input(i).name for i in range(network.num_inputs)}
    passed_on = {network.get_output(i).name for i in range(network.num_outputs)}
    return sorted(name for name in used if name not in read | passed_on or name not in names)


def _operands(layer: Any) -> list[Any]:
    return [t for i in range(layer.num_inputs) if (t := layer.get_input(i)) is not None]


def _widest(layer: Any) -> str:
    """The widest float among the inputs, or, where there is none, among the outputs."""
    outputs = [layer.get_output(i) for i in range(layer.num_outputs)]
    for tensors in (_operands(layer), outputs):
        kinds = {tensor.dtype.name for tensor in tensors}
        for kind in _FLOATS:
            if kind in kinds:
                return _NAMES[kind]
        for kind in ("INT8", "INT4"):
            if kind in kinds:
                return _NAMES[kind]
    return "index"


def _precision(layer: Any, maker: dict[str, Any]) -> str:
    floats = [t for t in _operands(layer) if t.dtype.name in _NAMES]
    stored = [_stored(tensor, maker) for tensor in floats]
    narrow = [kind for kind in stored if kind]
    if floats and len(narrow) == len(floats):
        return narrow[0]
    return f"{narrow[-1]} weights" if narrow else _widest(layer)


def _stored(tensor: Any, maker: dict[str, Any]) -> str:
    """The type that a tensor was dequantised from; empty if it was not."""
    layer = maker.get(tensor.name)
    while layer is not None and layer.type.name in _CARRIERS:
        layer = maker.get(layer.get_input(0).name)
    if layer is None or layer.type.name != "DEQUANTIZE":
        return ""
    return _NAMES.get(layer.get_input(0).dtype.name, "")
