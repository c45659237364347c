"""Pictures of graphs, drawn from their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graphs.view import GraphView
from .plots import BLUE, GREEN, INK, ORANGE, PURPLE, _figure

if TYPE_CHECKING:
    import onnx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_nodes"]

_COLOURS = {
    "MatMul": BLUE,
    "Conv": BLUE,
    "ConvTranspose": BLUE,
    "Attention": ORANGE,
    "RotaryEmbedding": ORANGE,
    "TensorScatter": PURPLE,
    "RMSNormalization": GREEN,
    "LayerNormalization": GREEN,
}
_HALF = 0.39  # half the width of a box; columns are 1 apart
_HEIGHT = 0.28
_LONGEST_ROW = 13

Edge = tuple[int, int]
Point = tuple[float, float]


def plot_nodes(view: GraphView, nodes: Sequence[onnx.NodeProto], title: str = "") -> Figure:
    """Draws nodes as boxes and the tensors between them as arrows; data flows from left to right.

    Args:
        view: The graph they belong to.
        nodes: Nodes in order, such as those of :func:`fstrt_helpers.graphs.inspect.layer_nodes`.
        title: Stands above the picture.

    Returns:
        Boxes in rows of equal length. Below a box stands the matrix it reads, above it, in small print, what comes
        from outside: inputs of the graph by name, other tensors by the operator that makes them.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    edges = list(dict.fromkeys((maker[i], j) for j, node in enumerate(nodes) for i in node.input if i in maker))
    column, lane = _places(len(nodes), edges)
    rows = -(-(max(column) + 1) // _LONGEST_ROW)
    per_row = -(-(max(column) + 1) // rows)
    lanes = max(lane) + 1
    figure = _figure(f"{len(nodes)} nodes and {len(edges)} edges between them", 11.5, 0.4 + rows * lanes)
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False)[:, 0]):
        axes.set(xlim=(-0.7, per_row - 0.3), ylim=(lanes - 0.35, -0.7))
        axes.axis("off")
        axes.set_title(title if row == 0 else "", loc="left", fontsize=10, color=INK)
        place = [(c - row * per_row, y) for c, y in zip(column, lane, strict=True)]
        here = [0 <= x < per_row for x, _ in place]
        for a, b in edges:
            if here[a] or here[b]:
                _arrow(axes, place[a], place[b], per_row)
        for node, at in (pair for pair, shown in zip(zip(nodes, place, strict=True), here, strict=True) if shown):
            _box(axes, at, node, view, maker)
    return figure


def _places(count: int, edges: Sequence[Edge]) -> tuple[list[int], list[int]]:
    """Column (longest path from a start) and lane (first free one, near the node it follows) of every node."""
    column, lane, used = [0] * count, [0] * count, set()
    sources: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        sources[b].append(a)
    for j in range(count):  # nodes come in an order in which all they read is made
        column[j] = max((column[a] + 1 for a in sources[j]), default=0)
    for j in sorted(range(count), key=lambda n: column[n]):
        wish = min((lane[a] for a in sources[j]), default=0)
        free = (n for n in sorted(range(count), key=lambda n: (abs(n - wish), n)) if (column[j], n) not in used)
        lane[j] = next(free)
        used.add((column[j], lane[j]))
    return column, lane


def _box(axes: Axes, at: Point, node: onnx.NodeProto, view: GraphView, maker: dict[str, int]) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = at
    colour = _COLOURS.get(node.op_type, "#777777")
    axes.add_patch(FancyBboxPatch((x - _HALF + 0.04, y - _HEIGHT / 2 + 0.04), 2 * _HALF - 0.08, _HEIGHT - 0.08,
                                  boxstyle="round,pad=0.04", facecolor=colour, linewidth=0, zorder=2))  # fmt: skip
    name = node.op_type.replace("Normalization", "Norm").replace("Embedding", "")
    axes.text(x, y, name, ha="center", va="center", fontsize=7, color="white", zorder=3)
    weight = view.weight_of(node)
    shape = view.shape(weight) if weight else None
    if weight and shape and len(shape) > 1:
        label = f"{weight.removesuffix('.weight').split('.')[-1]}  {' × '.join(map(str, shape))}"
        axes.text(x, y + _HEIGHT / 2 + 0.03, label, ha="center", va="top", fontsize=6, color=INK)
    outside = [i for i in node.input if i in view.inputs]
    made = [view.producer[i].op_type for i in node.input if i in view.producer and i not in maker]
    notes = [*outside, *(f"from {op}" for op in dict.fromkeys(made))]
    if notes:
        axes.text(x, y - _HEIGHT / 2 - 0.04, ", ".join(notes), ha="center", va="bottom", fontsize=6, color=PURPLE)


def _arrow(axes: Axes, a: Point, b: Point, per_row: int) -> None:
    """From the right edge of one box to the left edge of another; around the boxes between them if there are any."""
    start, end = (a[0] + _HALF, a[1]), (b[0] - _HALF, b[1])
    if a[0] < 0:  # it comes from the row above
        start = (-0.7, a[1])
    if b[0] >= per_row:  # it goes on in the row below
        end = (per_row - 0.3, b[1])
    style = "arc3"
    far = b[0] - a[0] > 1.5
    if far and a[1] > b[1]:
        end = (b[0] - 0.2, b[1] + _HEIGHT / 2)
    if far and a[1] == b[1]:
        start, end = (a[0] + 0.2, a[1] - _HEIGHT / 2), (b[0] - 0.28, b[1] - _HEIGHT / 2)
        style = f"arc3,rad={-0.45 / (b[0] - a[0]) ** 0.5:.2f}"
    line = dict(arrowstyle="-|>", color=INK, linewidth=0.8, shrinkA=0, shrinkB=0, connectionstyle=style)
    axes.annotate("", end, start, arrowprops=line, zorder=1, annotation_clip=False)
