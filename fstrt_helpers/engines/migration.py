"""What became of the TensorRT calls of older tutorials, and a check that none of them is used.

Sources: NVIDIA's lists of removed Python APIs,
https://docs.nvidia.com/deeplearning/tensorrt/latest/api/migration/tensorrt-8x-to-10x-python-api-reference.html and
https://docs.nvidia.com/deeplearning/tensorrt/latest/api/migration/tensorrt-10x-to-11x-python-api-reference.html.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..tables import Table

__all__ = ["REMOVED", "Removed", "find_removed", "migration_table"]


@dataclass(frozen=True)
class Removed:
    """One name that newer versions of TensorRT do not have.

    Attributes:
        owner: The class or enumeration it belonged to; empty for names of the module itself.
        name: The name.
        gone_in: First major version without it.
        now: What to do instead.
        receiver: Part of a variable's name, where the name alone would fit too much: ``precision`` counts only after
            something called ``layer``.
    """

    owner: str
    name: str
    gone_in: int
    now: str
    receiver: str = ""

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}" if self.owner else self.name


def _removed(gone_in: int, owner: str, names: str, now: str, receiver: str = "") -> list[Removed]:
    return [Removed(owner, name, gone_in, now, receiver) for name in names.split()]


_TYPED = "precision lives in the ONNX graph; networks are strongly typed"
_QDQ = "explicit quantisation: QuantizeLinear and DequantizeLinear in the ONNX graph"
_ND = "the same name with _nd"

REMOVED: tuple[Removed, ...] = (
    # up to TensorRT 8, gone in 10
    *_removed(
        10,
        "Builder",
        "build_engine build_cuda_engine",
        "build_serialized_network, then Runtime.deserialize_cuda_engine",
        "builder",
    ),
    *_removed(10, "Builder", "max_batch_size", "the batch is a dimension with a range in the profile", "builder"),
    *_removed(10, "Builder", "fp16_mode int8_mode strict_type_constraints", _TYPED),
    *_removed(10, "IBuilderConfig", "max_workspace_size", "set_memory_pool_limit(MemoryPoolType.WORKSPACE, bytes)"),
    *_removed(10, "IBuilderConfig", "min_timing_iterations", "avg_timing_iterations"),
    *_removed(10, "BuilderFlag", "STRICT_TYPES", _TYPED),
    *_removed(10, "BuilderFlag", "ENABLE_TACTIC_HEURISTIC", "builder_optimization_level = 2"),
    *_removed(10, "NetworkDefinitionCreationFlag", "EXPLICIT_PRECISION", _QDQ),
    *_removed(11, "NetworkDefinitionCreationFlag", "EXPLICIT_BATCH", "nothing: the batch is always a dimension"),
    *_removed(10, "ICudaEngine", "num_bindings", "num_io_tensors"),
    *_removed(
        10, "ICudaEngine", "get_binding_name get_binding_index", "get_tensor_name(i); everything else goes by name"
    ),
    *_removed(10, "ICudaEngine", "get_binding_shape", "get_tensor_shape(name)"),
    *_removed(10, "ICudaEngine", "get_binding_dtype", "get_tensor_dtype(name)"),
    *_removed(10, "ICudaEngine", "binding_is_input", "get_tensor_mode(name) == TensorIOMode.INPUT"),
    *_removed(10, "ICudaEngine", "get_binding_format get_binding_format_desc", "get_tensor_format(name) and _desc"),
    *_removed(10, "ICudaEngine", "get_binding_bytes_per_component", "get_tensor_bytes_per_component(name)"),
    *_removed(10, "ICudaEngine", "get_profile_shape", "get_tensor_profile_shape(name, profile)"),
    *_removed(10, "ICudaEngine", "get_profile_shape_input", "get_tensor_profile_values(profile, name)"),
    *_removed(10, "ICudaEngine", "is_shape_binding is_execution_binding", "is_shape_inference_io(name)"),
    *_removed(10, "ICudaEngine", "has_implicit_batch_dimension", "nothing: it never has"),
    *_removed(10, "IExecutionContext", "set_binding_shape", "set_input_shape(name, shape)"),
    *_removed(
        10,
        "IExecutionContext",
        "execute_async execute_async_v2",
        "set_tensor_address(name, pointer) for each tensor, then execute_async_v3(stream)",
    ),
    *_removed(10, "IExecutionContext", "execute", "execute_v2(pointers), or execute_async_v3(stream)", "context"),
    *_removed(10, "IExecutionContext", "set_shape_input", "set_tensor_address with a host pointer"),
    *_removed(10, "INetworkDefinition", "add_convolution add_deconvolution add_pooling add_padding", _ND),
    *_removed(10, "INetworkDefinition", "add_fully_connected", "add_matrix_multiply and an elementwise sum"),
    *_removed(10, "INetworkDefinition", "add_rnn_v2", "add_loop"),
    *_removed(10, "IResizeLayer", "align_corners", "coordinate_transformation"),
    *_removed(10, "", "UffParser CaffeParser", "export to ONNX and use OnnxParser"),
    # TensorRT 10, gone in 11
    *_removed(11, "BuilderFlag", "FP16 BF16", f"{_TYPED}: cast it, or export it in that type"),
    *_removed(11, "BuilderFlag", "INT8 FP8 INT4 FP4", _QDQ),
    *_removed(11, "BuilderFlag", "OBEY_PRECISION_CONSTRAINTS PREFER_PRECISION_CONSTRAINTS", _TYPED),
    *_removed(
        11, "Builder", "platform_has_fast_fp16 platform_has_fast_int8 platform_has_tf32", "nothing: the graph decides"
    ),
    *_removed(11, "IBuilderConfig", "int8_calibrator set_calibration_profile get_calibration_profile", _QDQ),
    *_removed(
        11,
        "IBuilderConfig",
        "set_quantization_flag get_quantization_flag clear_quantization_flag quantization_flags",
        _QDQ,
    ),
    *_removed(11, "IBuilderConfig", "algorithm_selector", "an editable timing cache"),
    *_removed(
        11,
        "",
        "IInt8Calibrator IInt8EntropyCalibrator IInt8EntropyCalibrator2 IInt8MinMaxCalibrator IInt8LegacyCalibrator",
        _QDQ,
    ),
    *_removed(11, "", "IAlgorithmSelector", "an editable timing cache"),
    *_removed(11, "ILayer", "precision", _TYPED, "layer"),
    *_removed(
        11, "ILayer", "precision_is_set reset_precision set_output_type reset_output_type output_type_is_set", _TYPED
    ),
    *_removed(11, "ITensor", "set_dynamic_range reset_dynamic_range", _QDQ),
    *_removed(11, "ITensor", "dynamic_range", _QDQ, "tensor"),
    *_removed(11, "ICudaEngine", "device_memory_size", "device_memory_size_v2"),
)


def migration_table() -> Table:
    """Every removed name, the first version of TensorRT without it, and what to write instead.

    Names of one class that became the same share a row.
    """
    groups: dict[tuple[str, int, str], list[str]] = {}
    for entry in REMOVED:
        groups.setdefault((entry.owner or "trt", entry.gone_in, entry.now), []).append(entry.name)
    return Table(
        [
            {"class": owner, "until then": ", ".join(names), "gone in": gone_in, "now": now}
            for (owner, gone_in, now), names in groups.items()
        ]
    )


def find_removed(source: str) -> list[tuple[int, Removed]]:
    """Uses of removed names in Python code.

    Args:
        source: The code.

    Returns:
        Line and entry, in the order of lines. Comments and plain strings do not count.

    Raises:
        SyntaxError: It is not Python.
    """
    known: dict[str, list[Removed]] = {}
    for entry in REMOVED:
        known.setdefault(entry.name, []).append(entry)
    found = []
    for line, receiver, name in _names(ast.parse(source)):
        hit = next((entry for entry in known.get(name, []) if _fits(entry, receiver)), None)
        if hit is not None:
            found.append((line, hit))
    return sorted(found, key=lambda pair: pair[0])


def _fits(entry: Removed, receiver: str) -> bool:
    if entry.owner in ("BuilderFlag", "NetworkDefinitionCreationFlag"):
        return receiver == entry.owner
    return entry.receiver in receiver.lower()


def _names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, name of what stands before the dot, and name after it; also of imports and of ``getattr`` with a string."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name):
                yield node.lineno, _last(value), name
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[value, ast.Constant(value=str(name)), *_]):
                yield node.lineno, _last(value), name
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("tensorrt"):
                for alias in names:
                    yield node.lineno, module, alias.name


def _last(node: ast.expr) -> str:
    """The last name of an expression: ``BuilderFlag`` of ``trt.BuilderFlag``."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return _last(function)
        case ast.Subscript(value=value):
            return _last(value)
    return ""
