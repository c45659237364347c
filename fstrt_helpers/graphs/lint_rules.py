"""The traps that :func:`fstrt_helpers.graphs.lint.lint` looks for, one function per trap.

A rule gets a :class:`Subject` and yields a pair per place it finds: the node (or the tensor) and what is wrong there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from .spec import GraphSpec
from .view import GraphView

__all__ = ["RULES", "Rule", "Subject"]

Found = Iterator[tuple[str, str]]

_HEAVY = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "Einsum"}
_HALF = {"float16", "bfloat16"}
_DATA_DEPENDENT = {"NonZero", "Unique", "Compress", "NonMaxSuppression", "Loop", "If", "Scan"}
# Which input of an operator decides the shape of its output.
_SHAPE_INPUTS = {"Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2),
                 "Slice": (1, 2), "Pad": (1,), "TopK": (1,), "Resize": (2, 3), "OneHot": (1,)}  # fmt: skip
_ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Mod", "CumSum", "ReduceSum", "Where"}
_LARGE = 4096  # elements
_MOST_CONCAT_INPUTS = 32


@dataclass(frozen=True)
class Subject:
    """What a rule looks at.

    Attributes:
        view: The graph.
        spec: The inputs it was meant to have, if known.
        fixed: Free dimensions that may be fixed on purpose, such as ``C`` in a graph made for one cache capacity.
        islands: Parts of node or weight names; float32 is expected there in a half-precision graph.
    """

    view: GraphView
    spec: GraphSpec | None = None
    fixed: Collection[str] = field(default=frozenset())
    islands: Collection[str] = field(default=frozenset())


@dataclass(frozen=True)
class Rule:
    """One trap: its name, how bad it is, why it hurts, what to do, and the function that finds it."""

    name: str
    severity: str
    why: str
    fix: str
    find: Callable[[Subject], Found]


RULES: dict[str, Rule] = {}


def _rule(name: str, severity: str, *, why: str, fix: str) -> Callable[[Callable[[Subject], Found]], None]:
    def register(find: Callable[[Subject], Found]) -> None:
        RULES[name] = Rule(name, severity, why, fix, find)

    return register


@_rule(
    "nonpad-kv-seqlen",
    "error",
    why="TensorRT drops this input without an error and attends to the whole padded cache",
    fix="pass a boolean attn_mask, which it keeps",
)
def _nonpad(subject: Subject) -> Found:
    for node in subject.view.every_node():
        if node.op_type == "Attention" and len(node.input) > 6 and node.input[6]:
            yield node.name, f"reads its valid lengths from {node.input[6]!r}"


@_rule(
    "attention-outputs",
    "error",
    why="TensorRT's parser accepts Attention nodes with one output only",
    fix="write the cache with TensorScatter and ask for no attention scores",
)
def _attention_outputs(subject: Subject) -> Found:
    for node in subject.view.every_node():
        if node.op_type == "Attention" and any(node.output[1:]):
            yield node.name, f"has the outputs {', '.join(o for o in node.output if o)}"


@_rule(
    "lost-dynamic-axis",
    "error",
    why="the graph takes only the size it was traced with, and an engine profile has nothing to vary",
    fix="name the dimension in dynamic_shapes of torch.onnx.export",
)
def _lost_axis(subject: Subject) -> Found:
    for tensor in subject.spec.inputs if subject.spec else ():
        shape = subject.view.shape(tensor.name)
        for axis, (wanted, size) in enumerate(zip(tensor.shape, shape or (), strict=False)):
            if isinstance(wanted, str) and isinstance(size, int) and wanted not in subject.fixed:
                yield tensor.name, f"axis {axis} should be free ({wanted}) and is {size}"


@_rule(
    "data-dependent-shape",
    "error",
    why="a size known only after the node ran: no CUDA graph, no bound for memory; TensorRT-RTX refuses NonZero",
    fix="compute on all elements under a mask; unroll loops of known length",
)
def _data_dependent(subject: Subject) -> Found:
    view = subject.view
    for node in view.every_node():
        if node.op_type in _DATA_DEPENDENT:
            yield node.name, f"{node.op_type} sizes its result, or its work, by values"
    values = set(view.inputs)  # tensors that depend on input values, not only on input shapes
    for node in view.nodes:
        for place in _SHAPE_INPUTS.get(node.op_type, ()):
            if place < len(node.input) and node.input[place] in values:
                yield node.name, f"{node.op_type} takes its shape from values: {node.input[place]!r}"
        if node.op_type not in ("Shape", "Size") and values & set(node.input):
            values.update(node.output)


@_rule(
    "weight-norm",
    "warning",
    why="the file holds no constant weight: quantisers do not find one, and every runtime has to fold it first",
    fix="remove the parametrisation before exporting",
)
def _weight_norm(subject: Subject) -> Found:
    view = subject.view
    for node in view.nodes:
        if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm") or len(node.input) < 2:
            continue
        before = view.ancestors([node.input[1]])
        constant = all(i in view.weights or i in view.producer or not i for n in before for i in n.input)
        if constant and {n.op_type for n in before} & {"ReduceL2", "ReduceSumSquare", "ReduceSum", "LpNormalization"}:
            yield node.name, f"its weight {node.input[1]!r} is normalised by {len(before)} nodes"


@_rule(
    "dropout",
    "warning",
    why="an inference graph has no use for it, and it is one switch away from random results",
    fix="call eval() before exporting",
)
def _dropout(subject: Subject) -> Found:
    for node in subject.view.every_node():
        if node.op_type == "Dropout":
            yield node.name, "Dropout was exported"


@_rule(
    "training-mode",
    "error",
    why="the result depends on the batch, or on chance, instead of on what was learned",
    fix="call eval() before exporting",
)
def _training(subject: Subject) -> Found:
    for node in subject.view.every_node():
        training = any(a.name == "training_mode" and a.i for a in node.attribute)
        if node.op_type == "BatchNormalization" and (training or len([o for o in node.output if o]) > 1):
            yield node.name, "BatchNormalization takes mean and variance from the batch"
        if node.op_type == "Dropout" and len(node.input) > 2:
            switch = subject.view.value(node.input[2]) if node.input[2] else np.False_
            if switch is None or bool(switch):
                yield node.name, "Dropout is, or can be, switched on"


@_rule(
    "float32-island",
    "warning",
    why="strongly typed TensorRT runs it in float32: more bytes, no half-precision tensor cores, casts on both sides",
    fix="export in the target type; where float32 is meant, name the node in `islands`",
)
def _islands(subject: Subject) -> Found:
    view = subject.view
    heavy = [n for n in view.nodes if n.op_type in _HEAVY and _float_kinds(view, n)]
    if not any(_float_kinds(view, n) & _HALF for n in heavy):
        return  # no half-precision graph
    wide = [n for n in heavy if "float32" in _float_kinds(view, n)]
    names = [(n, f"{n.name} {view.weight_of(n) or ''}") for n in wide]
    unexpected = [n for n, text in names if not any(part in text for part in subject.islands)]
    for node in unexpected:
        casts = [i for i in node.input if i in view.producer and view.producer[i].op_type == "Cast"]
        how = "after a cast" if casts else "within float32 neighbours"
        share = f"{len(unexpected)} of {len(heavy)} heavy nodes"
        yield node.name, f"{node.op_type} runs in float32 {how} ({share} do)"


def _float_kinds(view: GraphView, node) -> set[str]:
    return {view.dtype(i) for i in node.input[:3]} & {"float32", *_HALF}


@_rule(
    "int64",
    "warning",
    why="TensorRT's parser refuses products of INT64, and a large INT64 tensor is twice the bytes of INT32",
    fix="keep INT64 for ids and shapes; cast to INT32, or to float before a product",
)
def _int64(subject: Subject) -> Found:
    view = subject.view
    for node in view.nodes:
        if node.op_type in _HEAVY and any(view.dtype(i) == "int64" for i in node.input[:3]):
            yield node.name, f"{node.op_type} multiplies INT64"
        elif node.op_type in _ARITHMETIC:
            for name in node.output:
                known = [d for d in view.shape(name) or () if isinstance(d, int)]
                if view.dtype(name) == "int64" and np.prod(known, dtype=np.int64) >= _LARGE:
                    yield node.name, f"{node.op_type} computes {view.describe(name)}"
    for name, tensor in view.weights.items():
        if view.dtype(name) == "int64" and np.prod(tensor.dims, dtype=np.int64) >= _LARGE:
            yield name, f"a constant {view.describe(name)}"


@_rule(
    "concat-inputs",
    "warning",
    why=f"ONNX Runtime's CUDA graphs refuse a Concat of more than {_MOST_CONCAT_INPUTS} inputs",
    fix="keep the tensors apart (one key and one value tensor per layer), or concatenate in steps",
)
def _concat(subject: Subject) -> Found:
    for node in subject.view.every_node():
        if node.op_type == "Concat" and len(node.input) > _MOST_CONCAT_INPUTS:
            yield node.name, f"{len(node.input)} inputs"


@_rule(
    "baked-shape",
    "error",
    why="the sizes of the trace are constants: other batch sizes or lengths fail, or are cut up wrongly",
    fix="let the module take the sizes from x.shape, or use -1 for the free one",
)
def _baked(subject: Subject) -> Found:
    view = subject.view
    for node in view.nodes:
        if node.op_type != "Reshape":
            continue
        shape = view.shape(node.input[0])
        target = view.value(node.input[1])
        if shape is None or target is None or not any(isinstance(d, str) for d in shape):
            continue
        copies_zero = not any(a.name == "allowzero" and a.i for a in node.attribute)
        if -1 not in target and not (copies_zero and 0 in target):
            yield node.name, f"reshapes {view.describe(node.input[0])} to the constant {target.tolist()}"
