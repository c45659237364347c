"""An ONNX graph ready to be looked around in: who makes a tensor, who reads it, its type and its shape."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GraphError

if TYPE_CHECKING:
    import onnx

__all__ = ["GraphView", "dimension", "element_bits"]

Shape = tuple[int | str | None, ...]


class GraphView:
    """One graph. Weights that lie in files beside it are not read, so a view of a large model costs little.

    Args:
        model: A path, or a model in memory.
        folder: Where the external data of a model in memory lies; a path knows its own folder.

    Attributes:
        model: The protobuf, without external weights.
        folder: Where external weights lie, absolute, or None.
        nodes: Nodes of the main graph, every one after those it reads from.
        weights: Initializers and values of Constant nodes by name.
        producer: The node that makes a tensor.
        readers: The nodes that read a tensor.

    Raises:
        GraphError: The file is missing or is no ONNX graph.
    """

    def __init__(self, model: onnx.ModelProto | str | os.PathLike[str], folder: Path | None = None) -> None:
        import onnx

        self.path: Path | None = None
        if not isinstance(model, onnx.ModelProto):
            self.path = Path(model).resolve()
            folder = self.path.parent
            model = _load(self.path)
        self.model: onnx.ModelProto = model
        self.folder = None if folder is None else folder.resolve()
        graph = model.graph
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]
        self.weights: dict[str, onnx.TensorProto] = {t.name: t for t in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self.weights.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.input):
                self.readers.setdefault(name, []).append(node)
        self.inputs = {i.name: i for i in graph.input if i.name not in self.weights}
        self.outputs = {o.name: o for o in graph.output}
        self._info = self._typed()

    @classmethod
    def of(cls, graph: onnx.ModelProto | str | os.PathLike[str] | GraphView) -> GraphView:
        """The view itself, or one of a path or a model."""
        return graph if isinstance(graph, cls) else cls(graph)

    def _typed(self) -> dict[str, onnx.ValueInfoProto]:
        """Type and shape of every tensor; where the file does not say, ONNX works them out."""
        import onnx

        def known(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
            listed = [*graph.input, *graph.value_info, *graph.output]
            return {i.name: i for i in listed if i.type.tensor_type.elem_type}

        info = known(self.model.graph)
        if not self.producer.keys() <= info.keys():
            info = known(onnx.shape_inference.infer_shapes(self.model).graph) | info
        return info

    def dtype(self, name: str) -> str:
        """A tensor's element type, such as ``float16``; empty if unknown."""
        if name in self.weights:
            return _type_name(self.weights[name].data_type)
        return _type_name(self._info[name].type.tensor_type.elem_type) if name in self._info else ""

    def shape(self, name: str) -> Shape | None:
        """Sizes of a tensor: a number, the name of a free dimension, or None; None for all if the rank is unknown."""
        if name in self.weights:
            return tuple(self.weights[name].dims)
        if name not in self._info or not self._info[name].type.tensor_type.HasField("shape"):
            return None
        dims = self._info[name].type.tensor_type.shape.dim
        return tuple(d.dim_param or (d.dim_value if d.HasField("dim_value") else None) for d in dims)

    def describe(self, name: str) -> str:
        """Type and shape in one word, such as ``float32[B, 9, 1]``."""
        shape = self.shape(name)
        inside = "?" if shape is None else ", ".join("?" if d is None else str(d) for d in shape)
        return f"{self.dtype(name) or '?'}[{inside}]"

    def value(self, name: str) -> np.ndarray | None:
        """The constant of that name, read from its file if it lies in one; None if the tensor is computed.

        Raises:
            GraphError: Its file is missing.
        """
        import onnx

        tensor = self.weights.get(name)
        if tensor is None:
            return None
        if tensor.data_location == onnx.TensorProto.EXTERNAL and self.folder is None:
            raise GraphError(f"the data of {name!r} lies in a file", fix="open the graph by path, or name the folder")
        try:
            return onnx.numpy_helper.to_array(tensor, str(self.folder or ""))
        except (OSError, onnx.checker.ValidationError) as error:
            raise GraphError(f"the data of {name!r} cannot be read", where=self.folder, fix="export again") from error

    def weight_of(self, node: onnx.NodeProto) -> str | None:
        """Name of the largest weight a node reads, also through casts, transposes and dequantisation."""
        found = [w for w in map(self._behind, node.input) if w is not None]
        return max(found, key=lambda w: int(np.prod(self.weights[w].dims)), default=None)

    def _behind(self, name: str) -> str | None:
        while name not in self.weights:
            node = self.producer.get(name)
            if node is None or node.op_type not in ("Cast", "DequantizeLinear", "Identity", "Transpose"):
                return None
            name = node.input[0]
        return name

    def ancestors(self, tensors: Iterable[str], stop: Iterable[str] = ()) -> list[onnx.NodeProto]:
        """All nodes that take part in computing some tensors, in order, looking no further back than ``stop``."""
        seen, wanted, todo = set(stop), set(), list(tensors)
        while todo:
            name = todo.pop()
            if name in seen or name not in self.producer:
                continue
            node = self.producer[name]
            seen.update(node.output)
            wanted.add(id(node))
            todo += [i for n in _with_inner([node]) for i in n.input]
        return [node for node in self.nodes if id(node) in wanted]

    def every_node(self) -> Iterator[onnx.NodeProto]:
        """Nodes of the main graph and of the graphs inside Loop, If and Scan."""
        return _with_inner(self.nodes)


def _with_inner(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _with_inner(graph.node)


def _load(path: Path) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(path, load_external_data=False)
    except FileNotFoundError as error:
        raise GraphError(f"{path.name} is missing", where=path.parent, fix="export it: notebook 02") from error
    except DecodeError as error:
        raise GraphError(f"{path.name} is no ONNX graph", where=path, fix="export it again") from error


def _type_name(kind: int) -> str:
    import onnx

    if not kind:
        return ""
    name = onnx.TensorProto.DataType.Name(kind).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def element_bits(kind: str) -> int:
    """Bits of one element of a type, as :meth:`GraphView.dtype` names it."""
    if kind == "bool":
        return 8
    digits = "".join(c for c in kind.removesuffix("e4m3fn").removesuffix("e5m2") if c.isdigit())
    return int(digits) if digits else 8


def dimension(size: int | str | None, sizes: Mapping[str, int]) -> int | None:
    """The number behind a dimension such as ``4*T + 2`` once the free ones are known; None if it stays unknown."""
    if not isinstance(size, str):
        return size
    try:
        return _evaluate(ast.parse(size, mode="eval").body, sizes)
    except (SyntaxError, KeyError, TypeError):
        return None


def _evaluate(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluate(left, sizes), _evaluate(right, sizes)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
    raise TypeError("not an arithmetic expression")
