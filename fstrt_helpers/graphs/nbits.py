"""Weights of 8 or 4 bits for ONNX Runtime on a CPU: MatMulNBits and GatherBlockQuantized.

A frame at batch 1 reads every weight once and computes little with it, so fewer bytes are less time. Every block of
weights along the input axis has its own scale. With accuracy level 4 the activations are rounded to int8 per block as
well, and the products are sums of int8, which is what makes it fast:
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
Embeddings of 8 bits: https://github.com/microsoft/onnxruntime/pull/25214

The arithmetic is ONNX Runtime's own. Its tool for whole graphs is not used: it quantises a weight once for every node
that reads it, leaves 8-bit embeddings alone, and in some combinations only logs that it did nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GraphError
from .weight_only import Quantised
from .weights import Weight, WeightGraph, is_kept, join_gates

if TYPE_CHECKING:
    import onnx

__all__ = ["ACCURACY_LEVEL", "BLOCK_SIZE", "INT4_KEEP", "fitting_block", "nbits_weights", "quantise_blocks"]

ACCURACY_LEVEL = 4
"""Type in which activations enter the products: 1 is float32, 4 is int8."""
BLOCK_SIZE = {8: 32, 4: 128}
"""Weights per scale, by bits. A frame of the official size on two cores (AVX-512 with VNNI): 54 ms with 4 bits in
blocks of 32, 37 in blocks of 128; 82 and 74 with 8 bits, where the larger blocks cost a percent of the draws."""
INT4_KEEP = ("fast_output", "token_head")
"""What stays at 8 bits among 4 unless asked otherwise: the two heads, a tenth of what a frame reads and a third of the
damage."""
_DOMAIN = "com.microsoft"


def fitting_block(bits: int, widths: Collection[int]) -> int:
    """The usual block size, or the largest power of two below it that divides every width of an embedding."""
    block = BLOCK_SIZE[bits]
    while any(width % block for width in widths):
        block //= 2
    return block


def quantise_blocks(values: np.ndarray, bits: int, block_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric blocks along the input axis, in the layout of MatMulNBits.

    Args:
        values: float32 [K, N].
        bits: 8 or 4.
        block_size: Weights per scale; a power of two from 16 on.

    Returns:
        uint8 [N, ceil(K / block_size), block_size * bits / 8] and scales float32 [N, ceil(K / block_size)].
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer

    config = DefaultWeightOnlyQuantConfig(block_size=block_size, is_symmetric=True, bits=bits)
    packed, scales, _ = DefaultWeightOnlyQuantizer(config).qbits_block_quant(np.ascontiguousarray(values))
    return packed, scales


def nbits_weights(
    graph: WeightGraph,
    kept: Collection[str],
    done: Quantised,
    *,
    bits: int,
    block_size: int,
    accuracy_level: int = ACCURACY_LEVEL,
) -> dict[str, int]:
    """Replaces products and embeddings of a ``prefill`` or ``frame`` graph by their quantised operators.

    Args:
        graph: The float32 export; it is changed.
        kept: Labels of the weights and modules of higher precision: 8 bits among 4, float32 among 8.
        done: Weights that are quantised already; new ones are added.
        bits: 8 or 4.
        block_size: Weights per scale; those of higher precision have that of 8 bits at most.
        accuracy_level: See :data:`ACCURACY_LEVEL`.

    Returns:
        How many weights of each kind were quantised.

    Raises:
        GraphError: The width of an embedding is no multiple of the block size.
    """
    from onnx import helper

    kept = join_gates(graph, kept, whole=bits == 4)
    nodes = {node.name: node for node in graph.model.graph.node}
    replaced: dict[str, list[onnx.NodeProto]] = {}
    counts: dict[str, int] = {}
    for weight in graph.weights():
        higher = is_kept(weight.label, kept)
        if weight.kind not in ("MatMul", "Gather") or len(weight.shape) != 2 or (higher and bits == 8):
            continue
        width = 8 if higher else bits
        block = min(BLOCK_SIZE[8], block_size) if higher else block_size
        inputs = _quantised_inputs(graph, weight, done, width, block)
        for name in weight.nodes:
            node = nodes[name]
            if weight.kind == "MatMul":
                operator, operands = "MatMulNBits", [node.input[0], *inputs]
                choice = {"K": weight.shape[0], "N": weight.shape[1], "accuracy_level": accuracy_level}
            else:
                operator, operands = "GatherBlockQuantized", [inputs[0], node.input[1], inputs[1]]
                choice = {"gather_axis": 0, "quantize_axis": 1}
            replaced[name] = [
                helper.make_node(
                    operator, operands, node.output, name, domain=_DOMAIN, bits=width, block_size=block, **choice
                )
            ]
        counts[weight.kind] = counts.get(weight.kind, 0) + 1
    graph.replace_nodes(replaced)
    if not any(opset.domain == _DOMAIN for opset in graph.model.opset_import):
        graph.model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    return counts


def _quantised_inputs(graph: WeightGraph, weight: Weight, done: Quantised, bits: int, block_size: int) -> list[str]:
    """Adds the packed weight and its scales and returns their names."""
    if weight.name not in done:
        values = graph.array(weight.name)
        if weight.kind == "Gather":  # rows of an embedding are the columns of a product: same layout
            if weight.shape[1] % block_size:
                raise GraphError(
                    f"{weight.label} is {weight.shape[1]} wide, no multiple of the block size {block_size}",
                    where=graph.path,
                    fix="choose a block size that divides it, or keep it",
                )
            packed, scales = quantise_blocks(values.T, bits, block_size)
            packed = packed.reshape(weight.shape[0], -1)
        else:
            packed, scales = quantise_blocks(values, bits, block_size)
        done[weight.name] = packed, scales
    packed, scales = done[weight.name]
    return [graph.add(f"{weight.name}_q{bits}", packed), graph.add(f"{weight.name}_scale", scales)]
