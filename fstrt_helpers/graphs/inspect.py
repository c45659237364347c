"""What an exported graph consists of: operators, bytes, the repeating block; and two graphs side by side.

Tables read the file's structure only; weights stay on disk. Two bridges lead to Polygraphy: :func:`polygraphy_runner`
puts one of our back ends into its ``Comparator`` (``polygraphy run``), and :func:`cut_out` is its ``ExtractSubgraph``
(``polygraphy surgeon extract``) with the types and shapes filled in from the file.
Polygraphy's API: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/polygraphy/index.html
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import GraphError
from ..tables import Table
from .view import GraphView, dimension, element_bits

if TYPE_CHECKING:
    import onnx
    from polygraphy.backend.base import BaseRunner

    from ..runtimes.base import Runtime

__all__ = [
    "cut_out",
    "input_table",
    "layer_nodes",
    "layer_table",
    "operator_table",
    "polygraphy_runner",
    "side_by_side",
]

Source = "onnx.ModelProto | str | os.PathLike[str] | GraphView"
_SLOW_LAYER = r"(?:^|\.)layers\.{layer}\."


def operator_table(graph: Source, sizes: Mapping[str, int] | None = None) -> Table:
    """How often each operator occurs, the weights it reads, and the bytes it writes.

    Args:
        graph: A path, a model or a view.
        sizes: Values of the free dimensions, such as ``{"B": 1, "C": 512}``; without them nothing is said about
            what is written.

    Returns:
        A row per operator, most frequent first, then a total. A weight that several operators read counts for the
        first of them. MB is 10⁶ bytes. ``unsized`` counts tensors whose size does not follow from ``sizes``.
    """
    view = GraphView.of(graph)
    counts = Counter(node.op_type for node in view.nodes)
    kinds = sorted({view.dtype(name) for name in view.weights}, key=lambda k: (k != "float32", k))
    stored: dict[str, Counter[str]] = {op: Counter() for op in counts}
    written: dict[str, float] = dict.fromkeys(counts, 0.0)
    unsized: Counter[str] = Counter()
    seen: set[str] = set()
    for node in view.nodes:
        for name in set(node.input) & view.weights.keys() - seen:
            seen.add(name)
            stored[node.op_type][view.dtype(name)] += _bytes(view, name, {}) or 0
        for name in filter(None, node.output) if sizes is not None else ():
            size = _bytes(view, name, sizes or {})
            written[node.op_type] += size or 0
            unsized[node.op_type] += size is None
    rows = []
    for op in [*(op for op, _ in counts.most_common()), "total"]:
        ops = list(counts) if op == "total" else [op]
        row: dict[str, Any] = {"operator": op, "nodes": sum(counts[o] for o in ops)}
        row |= {f"{kind} weights (MB)": round(sum(stored[o][kind] for o in ops) / 1e6, 3) for kind in kinds}
        if sizes is not None:
            row["written (MB)"] = round(sum(written[o] for o in ops) / 1e6, 3)
            row["unsized"] = sum(unsized[o] for o in ops)
        rows.append(row)
    return Table(rows)


def _bytes(view: GraphView, name: str, sizes: Mapping[str, int]) -> int | None:
    """Bytes of a tensor, None if a dimension is unknown."""
    shape, kind = view.shape(name), view.dtype(name)
    dims = None if shape is None or not kind else [dimension(d, sizes) for d in shape]
    if dims is None or None in dims:
        return None
    return int(np.prod(dims, dtype=np.int64)) * element_bits(kind) // 8


def input_table(graph: Source) -> Table:
    """Name, type and shape of every input and output; a run such as ``k_0 … k_7`` of equal tensors is one row."""
    view = GraphView.of(graph)
    rows: list[dict[str, str]] = []
    for role, names in (("input", view.inputs), ("output", view.outputs)):
        groups: dict[tuple[str, str], list[str]] = {}
        for name in names:
            groups.setdefault((re.sub(r"\d+", "*", name), view.describe(name)), []).append(name)
        for (_, what), members in groups.items():
            label = members[0] if len(members) == 1 else f"{members[0]} … {members[-1]} ({len(members)})"
            rows.append({"": role, "name": label, "type and shape": what})
    return Table(rows)


def side_by_side(first: Source, second: Source, names: Sequence[str] = ("first", "second")) -> Table:
    """Where two graphs differ: node counts, operators, weights per type, inputs, outputs, opset.

    Args:
        first: A path, a model or a view.
        second: The other one.
        names: Column heads.

    Returns:
        A row per property that differs, and the number of nodes in any case.
    """
    facts = [_facts(GraphView.of(graph)) for graph in (first, second)]
    keys = dict.fromkeys(key for f in facts for key in f)
    rows = []
    for key in keys:
        a, b = (f.get(key) for f in facts)
        if a != b or key == "nodes":
            rows.append({"property": key, names[0]: "" if a is None else str(a), names[1]: "" if b is None else str(b)})
    return Table(rows)


def _facts(view: GraphView) -> dict[str, Any]:
    facts: dict[str, Any] = {"nodes": len(view.nodes)}
    facts |= {f"opset {o.domain or 'ai.onnx'}": o.version for o in view.model.opset_import}
    weights: Counter[str] = Counter()
    for name in view.weights:
        weights[view.dtype(name)] += _bytes(view, name, {}) or 0
    facts |= {f"{kind} weights (MB)": round(size / 1e6, 3) for kind, size in sorted(weights.items())}
    facts |= {f"operator {op}": n for op, n in Counter(n.op_type for n in view.nodes).most_common()}
    facts |= {f"input {name}": view.describe(name) for name in view.inputs}
    return facts | {f"output {name}": view.describe(name) for name in view.outputs}


def layer_nodes(graph: Source, layer: int, scope: str = _SLOW_LAYER) -> list[onnx.NodeProto]:
    """The nodes of one transformer layer, in order, found through the names of its weights.

    The layer begins at the norm before the first node that reads one of its matrices and ends at the addition behind
    the last one; it holds all that lies on a path between them, and the cache writes on the way.

    Args:
        graph: A path, a model or a view.
        layer: Which one, from 0.
        scope: Pattern of weight names with ``{layer}`` in it; by default the slow layers.

    Raises:
        GraphError: No weight has such a name.
    """
    view = GraphView.of(graph)
    pattern = re.compile(scope.replace("{layer}", str(layer)))
    own = [
        node
        for node in view.nodes
        if (name := view.weight_of(node)) and pattern.search(name) and len(view.shape(name) or ()) > 1
    ]  # matrices only: the exporter merges equal norm weights of different layers into one
    if not own:
        raise GraphError(f"no weight belongs to layer {layer}", where=view.path, fix="count from 0")
    place = {id(node): i for i, node in enumerate(view.nodes)}
    first, last = _entrance(view, own), _exit(view, own)
    below = {id(first)}
    for node in view.nodes[place[id(first)] :]:
        if any(id(view.producer[i]) in below for i in node.input if i in view.producer):
            below.add(id(node))
    above = {id(node) for node in view.ancestors(last.output)}
    caches = {id(n) for n in view.nodes if n.op_type == "TensorScatter" and id(n) in below}
    return [n for n in view.nodes[place[id(first)] : place[id(last)] + 1] if id(n) in below & (above | caches)]


def _entrance(view: GraphView, own: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
    """The norm in front of the first weight, or the node that reads that weight itself."""
    before = next((view.producer[i] for i in own[0].input if i in view.producer), own[0])
    return before if "Normalization" in before.op_type else own[0]


def _exit(view: GraphView, own: Sequence[onnx.NodeProto]) -> onnx.NodeProto:
    """The addition behind the last weight, or the last node that has nothing of the kind behind it."""
    after = [n for name in own[-1].output for n in view.readers.get(name, []) if n.op_type == "Add"]
    return after[0] if after else own[-1]


def layer_table(graph: Source) -> Table:
    """Nodes of every slow layer, and what they are; equal layers that follow each other share a row."""
    view = GraphView.of(graph)
    rows: list[dict[str, Any]] = []
    for layer in range(10_000):
        try:
            nodes = layer_nodes(view, layer)
        except GraphError:
            break
        kinds = Counter(node.op_type for node in nodes)
        what = ", ".join(f"{n} {op}" if n > 1 else op for op, n in kinds.most_common())
        if rows and rows[-1]["operators"] == what:
            rows[-1]["slow layer"] = f"{rows[-1]['slow layer'].split(' … ')[0]} … {layer}"
        else:
            rows.append({"slow layer": str(layer), "nodes in each": len(nodes), "operators": what})
    return Table(rows)


def polygraphy_runner(runtime: Runtime, name: str) -> BaseRunner:
    """One of our back ends as a runner for Polygraphy's ``Comparator.run``.

    Polygraphy's own runner for PyTorch moves every input to a CUDA device, so it does not serve on a CPU. Key and
    value tensors are copied first: back ends write into them, and the next runner must get them unchanged.
    Comparator: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/polygraphy/comparator/toc.html

    Args:
        runtime: An open back end, or one that opens when the runner is activated.
        name: What the reports call it.
    """
    return _runner_class()(runtime, name)


@functools.cache
def _runner_class() -> type[BaseRunner]:
    import time

    import torch
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata

    class RuntimeRunner(BaseRunner):
        """Runs a graph through a :class:`fstrt_helpers.runtimes.base.Runtime`."""

        def __init__(self, runtime: Runtime, name: str) -> None:
            super().__init__(name=name)
            self.runtime = runtime

        def activate_impl(self) -> None:
            self.runtime.open()

        def deactivate_impl(self) -> None:
            self.runtime.close()

        def get_input_metadata_impl(self) -> TensorMetadata:
            metadata = TensorMetadata()
            for tensor in self.runtime.spec.inputs:
                kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
                metadata.add(tensor.name, kind, [d if isinstance(d, int) else -1 for d in tensor.shape])
            return metadata

        def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            tensors = {k: torch.from_numpy(np.array(v)).to(self.runtime.device) for k, v in feed_dict.items()}
            began = time.perf_counter()
            result = self.runtime.run(tensors)
            self.inference_time = time.perf_counter() - began
            # The files call a cache that comes in as k_0 and goes out again k_0_out.
            return {f"{k}_out" if k in feed_dict else k: v.cpu().numpy() for k, v in result.items()}

    return RuntimeRunner


def cut_out(graph: str | os.PathLike[str], inputs: Iterable[str], outputs: Iterable[str]) -> onnx.ModelProto:
    """The part of a graph between some tensors, weights included: ``polygraphy surgeon extract``.

    Loaders: https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/polygraphy/backend/onnx/toc.html

    Args:
        graph: The ``.onnx`` file.
        inputs: Tensors that become inputs; they keep the type and the free dimensions they have in the file.
        outputs: Tensors that become outputs.

    Raises:
        GraphError: There is no such tensor, or the part depends on a tensor that is not among the inputs.
    """
    from polygraphy.backend.onnx import extract_subgraph, onnx_from_path
    from polygraphy.common import TensorMetadata
    from polygraphy.logger import G_LOGGER

    view = GraphView.of(graph)
    inputs, outputs = list(inputs), list(outputs)
    for name in [*inputs, *outputs]:
        if name not in view.producer and name not in view.inputs:
            raise GraphError(f"there is no tensor {name!r}", where=view.path, fix="take names from `layer_nodes`")
    for node in view.ancestors(outputs, stop=inputs):
        outside = [i for i in node.input if i in view.inputs and i not in inputs]
        if outside:
            raise GraphError(f"the part needs {outside[0]!r} too", where=view.path, fix="add it to the inputs")

    def metadata(names: Iterable[str]) -> TensorMetadata:
        found = TensorMetadata()
        for name in names:
            found.add(name, np.dtype(view.dtype(name)), view.shape(name))
        return found

    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        model = onnx_from_path(str(Path(graph).resolve()))
        return extract_subgraph(model, metadata(inputs), metadata(outputs))
