"""Where do two graphs part? A search like ``git bisect``, over the nodes of a graph instead of the commits of a branch.

Polygraphy answers the question with ``ModifyOutputs(outputs=MARK_ALL)``: every tensor of both graphs becomes an output
and is kept, which needs memory for all of them. The search here runs about log2(nodes) small parts of the graphs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import GraphError
from .view import GraphView

if TYPE_CHECKING:
    import onnx

__all__ = ["Divergence", "bisect_outputs", "run_tensors"]


@dataclass(frozen=True)
class Divergence:
    """The first node at which two graphs part: its output differs, everything it reads from other nodes agrees.

    Attributes:
        node: Name of the node in the suspect graph.
        operator: Its operator.
        tensor: Its output that differs.
        difference: Largest absolute difference of that output.
        changed: What the node has of its own that differs: attributes, weights, constants.
        between: Nodes of the suspect graph that lie between the last tensors known to agree and this node, and have no
            counterpart in the reference; the cause may be one of them.
        runs: How often a part of the graphs was run to find it.
        nodes: Number of nodes it was searched among.
    """

    node: str
    operator: str
    tensor: str
    difference: float
    changed: tuple[str, ...]
    between: tuple[str, ...]
    runs: int
    nodes: int

    def __str__(self) -> str:
        lines = [
            f"the graphs part at {self.operator} {self.node!r}, output {self.tensor!r}",
            f"  largest difference  {self.difference:.1e}; everything it reads from other nodes agrees",
            f"  its own differences {'; '.join(self.changed) or 'none'}",
            f"  search              {self.runs} runs for {self.nodes} nodes",
        ]
        if self.between:
            lines.insert(3, f"  not in the reference {', '.join(self.between)}")
        return "\n".join(lines)

    __repr__ = __str__


def run_tensors(
    graph: onnx.ModelProto | str | os.PathLike[str] | GraphView,
    inputs: Mapping[str, np.ndarray],
    tensors: Iterable[str],
) -> dict[str, np.ndarray]:
    """Computes any tensors of a graph on ONNX Runtime, running only the nodes they need, without fusing any.

    Args:
        graph: A path, a model or a view.
        inputs: Values of the graph's inputs; floats are cast to what it takes, those that are not needed are ignored.
        tensors: Names, of outputs or of anything inside.

    Raises:
        GraphError: There is no such tensor, an input is missing, or ONNX Runtime refuses the part.
    """
    import onnx
    import onnxruntime as ort

    view = GraphView.of(graph)
    names = list(dict.fromkeys(tensors))
    if unknown := [n for n in names if n not in view.producer]:
        raise GraphError(f"no node makes {unknown[0]!r}", where=view.path, fix="take names from the nodes' outputs")
    nodes = view.ancestors(names)
    read = {i for node in nodes for i in node.input} | _read_inside(nodes)
    part = onnx.ModelProto(ir_version=view.model.ir_version, opset_import=view.model.opset_import)
    part.functions.extend(view.model.functions)
    part.graph.name = "part"
    part.graph.node.extend(nodes)
    part.graph.initializer.extend(_named(view.weights[n], n) for n in view.weights if n in read)
    part.graph.input.extend(info for name, info in view.inputs.items() if name in read)
    for name in names:  # ONNX Runtime works out the types
        part.graph.output.add(name=name)
    if missing := [i.name for i in part.graph.input if i.name not in inputs]:
        raise GraphError(f"input {missing[0]!r} is missing", where=view.path, fix="give all inputs of the graph")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    if view.folder is not None:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(view.folder))
    try:
        session = ort.InferenceSession(part.SerializeToString(), options, providers=["CPUExecutionProvider"])
        feed = {i.name: _declared(inputs[i.name], view.dtype(i.name)) for i in part.graph.input}
        return dict(zip(names, session.run(names, feed), strict=True))
    except Exception as error:  # onnxruntime raises classes of its own for every kind of fault
        raise GraphError(f"ONNX Runtime cannot run the part: {error}", where=view.path) from error


def _declared(value: np.ndarray, kind: str) -> np.ndarray:
    """The value in the precision that the graph takes: one set of inputs serves graphs of several precisions."""
    value = np.asarray(value)
    return value.astype(kind) if value.dtype.kind == "f" and kind in ("float16", "float32", "float64") else value


def _read_inside(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    graphs = [g for n in nodes for a in n.attribute for g in (*a.graphs, a.g)]
    return {i for g in graphs for n in g.node for i in n.input}


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    """The weight under its tensor's name; values of Constant nodes have none of their own."""
    if tensor.name == name:
        return tensor
    import onnx

    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


def bisect_outputs(
    reference: onnx.ModelProto | str | os.PathLike[str] | GraphView,
    suspect: onnx.ModelProto | str | os.PathLike[str] | GraphView,
    inputs: Mapping[str, np.ndarray],
    *,
    atol: float = 1e-6,
    rtol: float = 1e-5,
) -> Divergence | None:
    """Finds the node at which a graph begins to compute something else than another one of nearly the same nodes.

    Tensors are matched by name. Starting from an output that differs, the node is probed whose answer halves what is
    left: if it differs, the search goes on among the nodes before it; if it agrees, those are left out. As a difference
    may hide on the way (an ArgMax still picks the same), every tensor the found node reads is checked at the end.

    Args:
        reference: The graph that is right.
        suspect: The graph that may be wrong.
        inputs: One set of inputs that both take.
        atol: Differences up to ``atol + rtol · |reference|`` count as equal.
        rtol: Same.

    Returns:
        The node, or None if all outputs agree.

    Raises:
        GraphError: The graphs have no output in common, or cannot be run.
    """
    search = _Search(GraphView.of(reference), GraphView.of(suspect), inputs, atol, rtol)
    return search.run()


class _Search:
    """State of one search. Sets of nodes are bit masks over their positions, which makes set arithmetic cheap."""

    def __init__(
        self, good: GraphView, bad: GraphView, inputs: Mapping[str, np.ndarray], atol: float, rtol: float
    ) -> None:
        self.good, self.bad, self.inputs, self.atol, self.rtol = good, bad, inputs, atol, rtol
        self.runs = 0
        self.nodes = bad.nodes
        self.tensors = [[o for o in n.output if o in good.producer] for n in self.nodes]
        self.place = {o: i for i, n in enumerate(self.nodes) for o in n.output}
        self.parents = [sorted({self.place[i] for i in n.input if i in self.place}) for n in self.nodes]
        self.before: list[int] = []  # per node: everything it depends on
        for parents in self.parents:
            mask = 0
            for p in parents:
                mask |= self.before[p] | 1 << p
            self.before.append(mask)
        self.visible = sum(1 << i for i, names in enumerate(self.tensors) if names)
        self.known: dict[int, float] = {}

    def differs(self, i: int) -> bool:
        """Whether an output of node i differs, by more than the tolerance allows."""
        if i not in self.known:
            self.known[i] = max(self._difference(self.tensors[i]).values())
        return self.known[i] > 0

    def _difference(self, names: list[str]) -> dict[str, float]:
        """Largest absolute difference per tensor, 0 where it is within the tolerance."""
        self.runs += 1
        a, b = (run_tensors(view, self.inputs, names) for view in (self.good, self.bad))
        return {name: _apart(a[name], b[name], self.atol, self.rtol) for name in names}

    def run(self) -> Divergence | None:
        """Narrows down from the graph's outputs to one node."""
        outputs = [o for o in self.bad.outputs if o in self.good.outputs and o in self.place]
        if not outputs:
            raise GraphError("the graphs have no output in common", where=self.bad.path)
        wrong = [self.place[o] for o, d in self._difference(outputs).items() if d > 0]
        if not wrong:
            return None
        found = min(wrong)
        self.known[found] = 1.0
        left = self.before[found] & self.visible
        while True:
            while left:
                probe = self._halving(left)
                if self.differs(probe):
                    found, left = probe, left & self.before[probe]
                else:
                    left &= ~(self.before[probe] | 1 << probe)
            hidden = next((p for p in self._observed(found)[0] if self.differs(p)), None)
            if hidden is None:
                return self._report(found)
            found, left = hidden, self.before[hidden] & self.visible

    def _halving(self, left: int) -> int:
        """The node among those left whose answer, either way, leaves the fewest."""
        total, best, score = left.bit_count(), -1, -1
        rest = left
        while rest:
            i = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            inside = (self.before[i] & left).bit_count()
            worth = min(inside + 1, total - inside)
            if worth > score:
                best, score = i, worth
        return best

    def _observed(self, i: int) -> tuple[list[int], list[int]]:
        """Nearest nodes before i that both graphs have, and those in between that only the suspect has."""
        near, between, todo = set(), set(), list(self.parents[i])
        while todo:
            p = todo.pop()
            if self.visible >> p & 1:
                near.add(p)
            elif p not in between:
                between.add(p)
                todo += self.parents[p]
        return sorted(near), sorted(between)

    def _report(self, i: int) -> Divergence:
        node = self.nodes[i]
        differences = self._difference(self.tensors[i])
        tensor = max(differences, key=lambda name: differences[name])
        return Divergence(
            node=node.name or node.output[0],
            operator=node.op_type,
            tensor=tensor,
            difference=differences[tensor],
            changed=tuple(_own_changes(self.good, self.bad, self.good.producer[tensor], node)),
            between=tuple(self.nodes[p].name or self.nodes[p].output[0] for p in self._observed(i)[1]),
            runs=self.runs,
            nodes=len(self.nodes),
        )


def _apart(a: np.ndarray, b: np.ndarray, atol: float, rtol: float) -> float:
    if a.shape != b.shape:
        return float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    unequal = ~np.isclose(b, a, rtol=rtol, atol=atol, equal_nan=True)
    if not unequal.any():
        return 0.0
    largest = np.abs(a - b)[unequal].max()
    return float("inf") if np.isnan(largest) else float(largest)


def _own_changes(good: GraphView, bad: GraphView, a: onnx.NodeProto, b: onnx.NodeProto) -> list[str]:
    """Differences between two nodes that do not come from other nodes."""
    import onnx

    found = [f"operator {a.op_type} -> {b.op_type}"] if a.op_type != b.op_type else []
    values = [{x.name: onnx.helper.get_attribute_value(x) for x in n.attribute} for n in (a, b)]
    for name in dict.fromkeys([*values[0], *values[1]]):
        old, new = (v.get(name) for v in values)
        if old != new:
            shown = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in (old, new)]
            found.append(f"attribute {name}: {shown[0]} -> {shown[1]}")
    for old_name, new_name in zip(a.input, b.input, strict=False):
        old, new = good.value(old_name), bad.value(new_name)
        if old is None or new is None:
            if old_name != new_name:
                found.append(f"input {old_name} -> {new_name}")
        elif old.shape != new.shape or not np.array_equal(old, new):
            by = _apart(old, new, 0, 0)
            found.append(f"constant {new_name} {list(new.shape)}: largest difference {by:.1e}")
    return found
