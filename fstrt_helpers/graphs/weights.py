"""Reads and writes the weights of an exported graph: names, external data, one copy for two graphs.

What the precision forms have in common: finding the weights that matrix products and embeddings read, joining those
that read the same input, and writing the result with its data beside it, complete or not at all.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ParameterError

if TYPE_CHECKING:
    import onnx

__all__ = ["Weight", "WeightGraph", "is_kept", "join_gates", "resolve_keep", "weight_label", "write_graph"]

_LEAST = 1024  # bytes; smaller tensors stay inside the .onnx file
_PAGES = 65_536  # bytes; larger ones begin a page, so that they can be mapped
_GATE, _UP, _BOTH = ".w1.weight", ".w3.weight", ".w13.weight"


def weight_label(name: str) -> str:
    """Short name of a weight: its module in the checkpoint, ``layers.3.attention.wo`` say.

    The token head is cut out of the checkpoint's and transposed, so the exporter invents a name for it; here it is
    ``token_head``. Weights of the codec keep their ``codec.`` in front.
    """
    if name.startswith("codec."):
        return name.removesuffix(".weight")
    if name.startswith("frame.model."):
        return name.removeprefix("frame.model.").removesuffix(".weight")
    return "token_head"


@dataclass(frozen=True)
class Weight:
    """A weight that can be quantised.

    Attributes:
        name: Of the initializer.
        kind: Operator that reads it: ``MatMul``, ``Gather``, ``Conv`` or ``ConvTranspose``.
        nodes: Names of the nodes that read it.
        shape: Its shape.
    """

    name: str
    kind: str
    nodes: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def label(self) -> str:
        """See :func:`weight_label`."""
        return weight_label(self.name)


class WeightGraph:
    """An exported graph whose external data is read tensor by tensor, when it is asked for.

    Args:
        path: The ``.onnx`` file.

    Attributes:
        model: The protobuf. New initializers hold their bytes themselves; the others still point to their file.
    """

    def __init__(self, path: Path) -> None:
        import onnx

        self.path = path
        self.model: onnx.ModelProto = onnx.load(path, load_external_data=False)
        self._tensors = {t.name: t for t in self.model.graph.initializer}

    def weights(self) -> list[Weight]:
        """Constant matrices, filters and embeddings in the order in which nodes first read them."""
        found: dict[str, tuple[str, list[str]]] = {}
        for node in self.model.graph.node:
            slot = {"MatMul": 1, "Conv": 1, "ConvTranspose": 1, "Gather": 0}.get(node.op_type)
            if slot is None or node.input[slot] not in self._tensors:
                continue
            name = node.input[slot]
            if node.op_type == "Gather" and not name.endswith("embeddings.weight"):
                continue
            found.setdefault(name, (node.op_type, []))[1].append(node.name)
        return [Weight(n, kind, tuple(nodes), tuple(self._tensors[n].dims)) for n, (kind, nodes) in found.items()]

    def array(self, name: str) -> np.ndarray:
        """Values of an initializer; large ones are mapped, not read."""
        return _array(self._tensors[name], self.path.parent)

    def add(self, name: str, values: np.ndarray) -> str:
        """Adds an initializer unless one of that name is there; returns the name."""
        from onnx import numpy_helper

        if name not in self._tensors:
            self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
            self.model.graph.initializer.append(self._tensors[name])
        return name

    def replace_nodes(self, replaced: Mapping[str, list[onnx.NodeProto]]) -> None:
        """Puts nodes in the place of others, by name, and drops initializers that nothing reads any more."""
        graph = self.model.graph
        nodes = [new for node in graph.node for new in replaced.get(node.name, [node])]
        del graph.node[:]
        graph.node.extend(nodes)
        self.drop_unused()

    def drop_unused(self) -> None:
        """Removes initializers that no node reads."""
        graph = self.model.graph
        read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        kept = [t for t in graph.initializer if t.name in read]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        self._tensors = {t.name: t for t in graph.initializer}


def _place(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _array(tensor: onnx.TensorProto, folder: Path) -> np.ndarray:
    from onnx import helper, numpy_helper

    if not tensor.external_data:
        return numpy_helper.to_array(tensor)
    place = _place(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    shape = tuple(tensor.dims)
    if not math.prod(shape):
        return np.zeros(shape, dtype)
    return np.memmap(folder / place["location"], dtype, "r", int(place.get("offset", 0)), shape)


def _bytes(tensor: onnx.TensorProto, folder: Path) -> bytes:
    if not tensor.external_data:
        return tensor.raw_data
    place = _place(tensor)
    with (folder / place["location"]).open("rb") as handle:
        handle.seek(int(place.get("offset", 0)))
        return handle.read(int(place["length"]))


def join_gates(graph: WeightGraph, kept: Collection[str], *, whole: bool = False) -> set[str]:
    """Makes one product of the gate and the up projection of every feed-forward layer, and a Split behind it.

    ``w1`` and ``w3`` read the same input. TensorRT-RTX 1.7 ends with an internal error (``vector::_M_range_check``)
    where both are int8 and used several times, as in the fast layers; joined they build. On a CPU it is one node less
    per layer, and as fast.

    Args:
        graph: It is changed.
        kept: Weights of higher precision. A pair of which one is kept is left alone.
        whole: Whether to join pairs of which both are kept; else they are left alone too.

    Returns:
        `kept`, with the joined weights among them.
    """
    from onnx import helper

    pairs: dict[tuple[str, str], dict[str, onnx.NodeProto]] = {}
    for node in graph.model.graph.node:
        for end in (_GATE, _UP):
            if node.op_type == "MatMul" and node.input[1].endswith(end):
                pairs.setdefault((node.input[0], node.input[1].removesuffix(end)), {})[end] = node
    replaced: dict[str, list[onnx.NodeProto]] = {}
    joined: set[str] = set()
    higher = set(kept)
    for (x, stem), pair in pairs.items():
        both_kept = [is_kept(weight_label(stem + end), kept) for end in pair]
        if pair.keys() != {_GATE, _UP} or (any(both_kept) and not (whole and all(both_kept))):
            continue
        if all(both_kept):
            higher.add(weight_label(stem + _BOTH))
        gate, up = pair[_GATE], pair[_UP]
        both = f"{gate.output[0]}_both"
        if stem not in joined:
            joined.add(stem)
            graph.add(stem + _BOTH, np.concatenate([graph.array(stem + _GATE), graph.array(stem + _UP)], axis=1))
        product = helper.make_node("MatMul", [x, stem + _BOTH], [both], name=f"{gate.name}_both")
        outputs = [gate.output[0], up.output[0]]
        split = helper.make_node("Split", [both], outputs, name=f"{gate.name}_split", axis=-1, num_outputs=2)
        replaced |= {gate.name: [product, split], up.name: []}
    graph.replace_nodes(replaced)
    return higher


def is_kept(label: str, keep: Collection[str]) -> bool:
    """Whether a weight, or a module around it, is in the list."""
    parts = label.split(".")
    return any(".".join(parts[: i + 1]) in keep for i in range(len(parts)))


def resolve_keep(keep: Collection[str], labels: Collection[str]) -> list[str]:
    """Labels that a list of weights and modules stands for.

    Args:
        keep: Such as ``layers.0``, ``layers.3.attention.wo``, ``fast_layers``, ``token_head``, ``codec.head.ups.4``.
        labels: What there is.

    Raises:
        ParameterError: A name stands for nothing.
    """
    for name in keep:
        if not any(is_kept(label, [name]) for label in labels):
            tops = sorted({".".join(label.split(".")[:2]) for label in labels})
            raise ParameterError(
                f"no weight is called {name!r}, so it cannot be kept", fix=f"use one of: {', '.join(tops)}, or below"
            )
    return sorted(label for label in labels if is_kept(label, keep))


def write_graph(
    graph: WeightGraph,
    path: Path,
    data_name: str,
    *,
    share_with: Path | None = None,
) -> list[Path]:
    """Saves a graph with its weights in one file beside it; both appear complete or not at all.

    Args:
        graph: What to write.
        path: The ``.onnx`` file to be.
        data_name: Name of the data file. It must say what is in it, so that no old graph reads new weights.
        share_with: Another graph in the same folder: weights that are byte for byte the same are read from its file.

    Returns:
        The data files the graph reads.
    """
    import onnx

    path.parent.mkdir(parents=True, exist_ok=True)
    twins = {}
    if share_with is not None:
        other = onnx.load(share_with, load_external_data=False)
        twins = {t.name: t for t in other.graph.initializer if t.external_data}
    draft = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.parent))
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    try:
        with (draft / data_name).open("wb") as data:
            for tensor in model.graph.initializer:
                values = _bytes(tensor, graph.path.parent)
                if not tensor.external_data and len(values) < _LEAST:
                    continue
                twin = twins.get(tensor.name)
                if twin is not None and _same(tensor, values, twin, path.parent):
                    place = _place(twin)
                else:
                    data.write(b"\0" * (-data.tell() % (4096 if len(values) >= _PAGES else 64)))
                    place = {"location": data_name, "offset": str(data.tell()), "length": str(len(values))}
                    data.write(values)
                tensor.ClearField("raw_data")
                tensor.data_location = onnx.TensorProto.EXTERNAL
                del tensor.external_data[:]
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=value)
        onnx.save(model, draft / path.name)
        names = {_place(t)["location"] for t in model.graph.initializer if t.external_data}
        if data_name in names:  # data first: a graph never points to what is not there
            os.replace(draft / data_name, path.parent / data_name)
        os.replace(draft / path.name, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return [path.parent / name for name in sorted(names)]


def _same(tensor: onnx.TensorProto, values: bytes, twin: onnx.TensorProto, folder: Path) -> bool:
    alike = (tensor.dims, tensor.data_type) == (twin.dims, twin.data_type)
    return alike and int(_place(twin)["length"]) == len(values) and _bytes(twin, folder) == values
