"""Pictures of graphs, drawn from their nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..graphs.view import GraphView
from .plots import BLUE, GREEN, INK, ORANGE, PURPLE, _figure as new_figure

if TYPE_CHECKING:
    import onnx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_nodes"]

_COLOURS = {
    "MatMul": BLUE,
    "Conv": BLUE,
    "Attention": ORANGE,
    "RotaryEmbedding": ORANGE,
    "TensorScatter": PURPLE,
    "RMSNormalization": GREEN,
    "LayerNormalization": GREEN,
}


def plot_nodes(view: GraphView, nodes: Sequence[onnx.NodeProto], title: str = "") -> Figure:
    """Draws nodes as boxes and tensors as arrows; data flows from left to right.

    Args:
        view: The graph they belong to.
        nodes: Nodes in order, such as those of :func:`fstrt_helpers.graphs.inspect.layer_nodes`.
        title: Stands above the picture.

    Returns:
        Boxes in two rows of equal length where there are many. Under an operator stands the weight it reads and that
        weight's shape. Thin arrows come from, or lead to, nodes that are not drawn.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    edges = [(maker[i], j, i) for j, node in enumerate(nodes) for i in dict.fromkeys(node.input) if i in maker]
    column, lane = _places(len(nodes), edges)
    columns = max(column) + 1
    rows = 1 if columns < 14 else 2
    per_row = -(-columns // rows)
    lanes = max(lane) + 1
    figure = new_figure(f"{len(nodes)} nodes and {len(edges)} edges between them", 11.5, 0.6 + rows * (0.75 * lanes + 0.7))
    panels = [figure.subplots()] if rows == 1 else list(figure.subplots(rows, 1))
    for row, axes in enumerate(panels):
        axes.set_xlim(-0.75, per_row - 0.25)
        axes.set_ylim(lanes - 0.4, -0.75)
        axes.axis("off")
        axes.set_title(title if row == 0 else "", loc="left", fontsize=10, color=INK)
        here = [i for i in range(len(nodes)) if column[i] // per_row == row]
        place = {i: (column[i] - row * per_row, lane[i]) for i in range(len(nodes))}
        for i in here:
            _box(axes, *place[i], nodes[i], view)
        for a, b, _ in edges:
            if a in here or b in here:
                _arrow(axes, place[a], place[b], a in here and b in here, per_row)
        for i in here:
            _dangling(axes, place[i], nodes[i], view, maker)
    return figure


def _places(count: int, edges: Sequence[tuple[int, int, str]]) -> tuple[list[int], list[int]]:
    """Column (longest path from a start) and lane (first free one, near the node it follows) of every node."""
    column, lane, used = [0] * count, [0] * count, set()
    for j in range(count):
        sources = [a for a, b, _ in edges if b == j]
        column[j] = max((column[a] + 1 for a in sources), default=0)
    for j in sorted(range(count), key=lambda n: column[n]):
        sources = [a for a, b, _ in edges if b == j]
        wish = lane[max(sources, key=lambda a: column[a])] if sources else 0
        lane[j] = next(n for n in sorted(range(count), key=lambda n: (abs(n - wish), n)) if (column[j], n) not in used)
        used.add((column[j], lane[j]))
    return column, lane


def _box(axes: Axes, x: float, y: float, node: onnx.NodeProto, view: GraphView) -> None:
    weight = view.weight_of(node)
    matrix = weight is not None and len(view.shape(weight) or ()) > 1
    name = node.op_type.replace("Normalization", "Norm").replace("Embedding", "").replace("Scatter", "\nScatter")
    axes.text(x, y, name, ha="center", va="center", fontsize=7, color="white",
              bbox=dict(boxstyle="round,pad=0.35", facecolor=_COLOURS.get(node.op_type, "#777777"), linewidth=0))  # fmt: skip
    if matrix:
        short = ".".join(weight.removesuffix(".weight").split(".")[-1:])
        shape = "×".join(map(str, view.shape(weight) or ()))
        axes.text(x, y + 0.34, f"{short}\n{shape}", ha="center", va="center", fontsize=6, color=INK)


def _arrow(axes: Axes, a: tuple[float, float], b: tuple[float, float], whole: bool, per_row: int) -> None:
    if not whole:  # it goes on in the other row
        a = a if 0 <= a[0] < per_row else (-0.75, a[1])
        b = b if 0 <= b[0] < per_row else (per_row - 0.25, b[1])
    far = b[0] - a[0] > 1.5
    bend = f"arc3,rad={-0.25 if a[1] == b[1] else 0.0}" if far else "arc3"
    axes.annotate("", b, a, arrowprops=dict(arrowstyle="-|>", color=INK, linewidth=0.8, shrinkA=13, shrinkB=15,
                                            connectionstyle=bend))  # fmt: skip


def _dangling(
    axes: Axes, at: tuple[float, float], node: onnx.NodeProto, view: GraphView, maker: dict[str, int]
) -> None:
    """Names of graph inputs that a node reads, above its box."""
    names = [i for i in node.input if i in view.inputs] + [o for o in node.output if o in view.outputs]
    if names:
        axes.text(at[0], at[1] - 0.36, "\n".join(names), ha="center", va="bottom", fontsize=6, color=PURPLE)
