"""What an exported graph still needs before TensorRT takes it, done to the protobuf in memory; the file stays as it is.

* The KV cache gets a fixed length (:mod:`fstrt_helpers.graphs.capacity`).
* Transposed convolutions in bfloat16 compute in float32 between casts. TensorRT has no bfloat16 kernel for them:
  TensorRT-RTX 1.7 "could not infer output types", TensorRT 11.0 finds no tactic
  (https://github.com/NVIDIA/TensorRT/issues/4829). float16 would be faster and would lose the range that bfloat16 is
  chosen for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..graphs.capacity import fix_capacity
from ..graphs.view import GraphView

if TYPE_CHECKING:
    import onnx

__all__ = ["adapt", "widened_nodes"]


def widened_nodes(view: GraphView) -> list[str]:
    """Names of the nodes that :func:`adapt` lets compute in float32 although they are bfloat16."""
    return [node.name for node in _bfloat16_deconvolutions(view)]


def adapt(model: onnx.ModelProto, capacity: int | None, folder: Path) -> onnx.ModelProto:
    """Makes a graph ready for TensorRT's parser.

    Args:
        model: The graph, without its weights. It is not changed.
        capacity: Columns of the KV cache, or None where the graph has none.
        folder: Where its external data lies; only the weights of transposed convolutions are read, if at all.

    Returns:
        The model itself if nothing was to be done, else a copy.
    """
    if capacity is not None:
        model = fix_capacity(model, capacity)
    names = set(widened_nodes(GraphView(model, folder)))
    return _widen(model, names, folder) if names else model


def _bfloat16_deconvolutions(view: GraphView) -> Iterator[onnx.NodeProto]:
    for node in view.nodes:
        if node.op_type == "ConvTranspose" and view.dtype(node.input[0]) == "bfloat16":
            yield node


def _widen(model: onnx.ModelProto, names: set[str], folder: Path) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    widened = copy.deepcopy(model)
    graph = widened.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes, added = [], {}
    for node in graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        wide = copy.deepcopy(node)
        for index, name in enumerate(node.input):
            if not name:
                continue
            wide.input[index] = f"{name}_as_float32"
            if name in weights:
                added[name] = _as_float32(weights[name], folder)
            else:
                cast = helper.make_node(
                    "Cast", [name], [wide.input[index]], name=f"{node.name}_widen_{index}", to=TensorProto.FLOAT
                )
                nodes.append(cast)
        wide.output[0] = f"{node.output[0]}_as_float32"
        nodes.append(wide)
        narrow = helper.make_node(
            "Cast", [wide.output[0]], [node.output[0]], name=f"{node.name}_narrow", to=TensorProto.BFLOAT16
        )
        nodes.append(narrow)
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(added.values())
    unused = added.keys() - {name for node in nodes for name in node.input} - {o.name for o in graph.output}
    kept = [tensor for tensor in graph.initializer if tensor.name not in unused]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return widened


def _as_float32(tensor: onnx.TensorProto, folder: Path) -> onnx.TensorProto:
    """The same weight in float32, which holds every bfloat16 value exactly; its data moves into the protobuf."""
    import numpy as np
    from onnx import numpy_helper
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    if uses_external_data(tensor):
        tensor = copy.deepcopy(tensor)
        load_external_data_for_tensor(tensor, str(folder))
    values = numpy_helper.to_array(tensor).astype(np.float32)
    return numpy_helper.from_array(np.ascontiguousarray(values), f"{tensor.name}_as_float32")
