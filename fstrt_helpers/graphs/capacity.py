"""Fixes the capacity of the KV cache in an exported graph.

ONNX Runtime takes a graph whose capacity ``C`` is free. TensorRT wants a cache of known length, so before an engine is
built, the name becomes a number, one engine per capacity. Nothing else in the graph has to change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import GraphError, ParameterError

if TYPE_CHECKING:
    import onnx

__all__ = ["CAPACITY", "fix_capacity", "free_dimensions"]

CAPACITY = "C"


def free_dimensions(model: onnx.ModelProto) -> dict[str, dict[int, str]]:
    """Axes of the inputs that have a name in place of a number: ``{"mask": {0: "B", 3: "C"}, ...}``."""
    found = {}
    for value in model.graph.input:
        axes = enumerate(value.type.tensor_type.shape.dim)
        if named := {axis: dim.dim_param for axis, dim in axes if dim.dim_param}:
            found[value.name] = named
    return found


def fix_capacity(model: onnx.ModelProto, capacity: int) -> onnx.ModelProto:
    """Replaces the free dimension ``C`` by a number, in inputs, outputs and everything in between.

    Args:
        model: A ``prefill`` or ``frame`` graph. It is not changed. External data need not be loaded.
        capacity: Columns the cache holds.

    Returns:
        A copy in which ``C`` is `capacity`.

    Raises:
        ParameterError: The capacity is no positive number.
        GraphError: The graph has no free capacity.
    """
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise ParameterError(f"the capacity is {capacity!r}", fix="give a whole number of columns, such as 512")
    if not any(CAPACITY in named.values() for named in free_dimensions(model).values()):
        raise GraphError(
            "no input has a free dimension C",
            where=model.graph.name,
            fix="only prefill and frame have one, and only as long as it is not fixed",
        )
    fixed = type(model)()
    fixed.CopyFrom(model)
    graph = fixed.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == CAPACITY:
                dim.dim_value = capacity
    return fixed
