"""Tables, blocks, Polygraphy bridges and the search for a mismatch, on the four exported graphs and on small ones."""

from __future__ import annotations

import copy
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from fstrt_helpers.errors import GraphError
from fstrt_helpers.graphs.bisect import bisect_outputs, run_tensors
from fstrt_helpers.graphs.inspect import (
    cut_out,
    input_table,
    layer_nodes,
    layer_table,
    operator_table,
    polygraphy_runner,
    side_by_side,
)
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.graphs.view import GraphView, dimension, element_bits
from fstrt_helpers.model.dual_ar import causal_mask
from fstrt_helpers.show.graph import plot_nodes

from .conftest import cache
from .faults import clean, faulty

FLOAT = TensorProto.FLOAT


@pytest.fixture(scope="module")
def view(exported) -> GraphView:
    return GraphView(exported.paths["prefill"])


@pytest.fixture(scope="module")
def feed(exported) -> dict[str, np.ndarray]:
    """Prompt columns and an empty cache, as ONNX Runtime takes them."""
    columns = torch.randint(0, 256, (1, 9, 12), generator=torch.Generator().manual_seed(3))
    columns[:, 0, 6:] += 268
    start = torch.tensor([20])
    tensors = {"columns": columns, "start": start, "mask": causal_mask(start, 12, 64)}
    return {k: v.numpy() for k, v in (tensors | cache(exported.checkpoint.config, 1, 64)).items()}


def planted(view: GraphView) -> onnx.ModelProto:
    """A copy to change; its external weights stay where they are."""
    return copy.deepcopy(view.model)


def small(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """A graph from x [B, 4] to y."""
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["B", 4])]
    outputs = [helper.make_empty_tensor_value_info("y")]
    constants = [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


X = {"x": np.array([[0.1, 0.9, 0.3, 0.2], [0.5, 0.1, 0.2, 0.4]], np.float32)}


class TestTables:
    @pytest.mark.parametrize("graph", ["prefill", "frame", "codec_decode", "codec_encode"])
    def test_total_counts_every_node_and_every_byte(self, exported, graph):
        path = exported.paths[graph]
        total = operator_table(path).rows[-1]
        model = onnx.load(path)  # with its weights
        read = {i for node in model.graph.node for i in node.input}
        size = sum(numpy_helper.to_array(t).nbytes for t in model.graph.initializer if t.name in read)
        assert total["operator"] == "total" and total["nodes"] == len(model.graph.node)
        listed = sum(v for k, v in total.items() if k.endswith("weights (MB)"))
        assert listed == pytest.approx(size / 1e6, abs=2e-3)
        assert listed <= sum(read_manifest(path).data_bytes.values()) / 1e6 + 0.1

    def test_written_bytes_of_a_graph_counted_by_hand(self):
        model = small([helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Shape", ["h"], ["y"])])
        rows = {row["operator"]: row for row in operator_table(model, {"B": 1000}).rows}
        assert rows["Relu"]["written (MB)"] == 0.016  # 1000 rows of 4 floats
        assert rows["total"]["unsized"] == 0
        assert operator_table(model, {}).rows[-1]["unsized"] == 1
        assert "unsized" not in operator_table(model).rows[-1]

    def test_all_activations_of_frame_have_a_size(self, exported):
        total = operator_table(exported.paths["frame"], {"B": 1, "C": 128}).rows[-1]
        assert total["unsized"] == 0 and total["written (MB)"] > 0.1

    def test_inputs_are_grouped(self, exported):
        config = exported.checkpoint.config
        text = str(input_table(exported.paths["frame"]))
        assert "k_0 … k_1 (2)" in text and f"float32[B, 2, C, {config.head_dim}]" in text and "next" in text

    def test_side_by_side(self, exported):
        path = exported.paths["prefill"]
        assert [row["property"] for row in side_by_side(path, path).rows] == ["nodes"]
        other = planted(GraphView(path))
        other.graph.node[-1].op_type = "Neg"
        other.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
        rows = {r["property"]: r for r in side_by_side(path, other, ("right", "wrong")).rows}
        assert rows["operator Neg"] == {"property": "operator Neg", "right": "", "wrong": "1"}
        assert rows["input columns"]["wrong"].startswith("int32[")


class TestLayers:
    def test_every_slow_layer_of_frame_is_the_same_block(self, exported):
        view = GraphView(exported.paths["frame"])
        (row,) = layer_table(view).rows
        assert row["slow layer"] == "0 … 1" and row["nodes in each"] <= 26
        blocks = [layer_nodes(view, layer) for layer in range(exported.checkpoint.config.n_layer)]
        assert [n.op_type for n in blocks[0]] == [n.op_type for n in blocks[1]]
        assert not {n.name for n in blocks[0]} & {n.name for n in blocks[1]}
        assert blocks[0][0].op_type == "RMSNormalization" and blocks[0][-1].op_type == "Add"
        assert blocks[1][0].input[0] == blocks[0][-1].output[0]

    def test_prefill_ends_where_the_last_cache_is_written(self, exported):
        rows = layer_table(exported.paths["prefill"]).rows
        assert rows[-1]["slow layer"] == "1" and rows[-1]["nodes in each"] < rows[0]["nodes in each"]

    def test_a_layer_that_is_not_there(self, view):
        with pytest.raises(GraphError, match="no weight belongs to layer 2"):
            layer_nodes(view, 2)

    def test_the_picture_has_a_box_per_node_and_an_arrow_per_edge(self, view):
        from matplotlib.patches import FancyBboxPatch

        nodes = layer_nodes(view, 0)
        figure = plot_nodes(view, nodes, "layer 0")
        boxes = [p for axes in figure.axes for p in axes.patches if isinstance(p, FancyBboxPatch)]
        assert len(boxes) == len(nodes)
        words = [t.get_text() for axes in figure.axes for t in axes.texts]
        shape = view.shape("frame.model.layers.0.attention.wqkv.weight")
        assert words.count("MatMul") == 5 and "Attention" in words and f"wqkv  {shape[0]} × {shape[1]}" in words
        made = {o: i for i, n in enumerate(nodes) for o in n.output}
        edges = {(made[i], j) for j, n in enumerate(nodes) for i in n.input if i in made}
        assert repr(figure) == f"Figure: {len(nodes)} nodes and {len(edges)} edges between them"
        arrows = [t for axes in figure.axes for t in axes.texts if getattr(t, "arrow_patch", None) is not None]
        assert len(edges) <= len(arrows) <= 2 * len(edges)  # one that crosses rows is drawn in both
        assert figure._repr_png_()[:4] == b"\x89PNG"


class TestPolygraphy:
    def test_comparator_takes_our_back_ends_and_leaves_the_inputs_alone(self, exported, feed):
        from polygraphy.comparator import Comparator, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER

        before = {k: v.copy() for k, v in feed.items()}
        runners = [polygraphy_runner(getattr(exported, name)["prefill"], name) for name in ("torch", "ort")]
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            results = Comparator.run(runners, data_loader=[feed])
            strict = SimpleCompareFunc(atol=1e-4, rtol=0)
            (accuracy,) = Comparator.compare_accuracy(results, compare_func=strict)
        assert accuracy
        compared = accuracy[("torch", "ort")][0]
        assert set(compared) == {f"{k}_{i}_out" for i in range(2) for k in "kv"}
        assert all(np.array_equal(feed[k], before[k]) for k in feed)
        assert np.abs(results[0][1][0]["k_1_out"]).max() > 1e-3
        exported.ort["prefill"].open()  # the comparator closed it

    def test_a_block_cut_out_computes_what_it_computes_inside(self, exported, view, feed, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        nodes = layer_nodes(view, 0)
        inside = {o for n in nodes for o in n.output}
        entering = list(
            dict.fromkeys(i for n in nodes for i in n.input if i and i not in inside and i not in view.weights)
        )
        part = cut_out(exported.paths["prefill"], entering, [nodes[-1].output[0]])
        assert len(part.graph.node) == len(nodes)
        values = run_tensors(view, feed, [n for n in entering if n in view.producer] + [nodes[-1].output[0]])
        alone = run_tensors(part, feed | values, [nodes[-1].output[0]])
        assert np.array_equal(alone[nodes[-1].output[0]], values[nodes[-1].output[0]])

    def test_cutting_where_there_is_nothing(self, exported, view):
        with pytest.raises(GraphError, match="there is no tensor 'hidden'"):
            cut_out(exported.paths["prefill"], ["columns"], ["hidden"])
        with pytest.raises(GraphError, match=r"the part needs '.+' too"):
            cut_out(exported.paths["prefill"], ["columns"], [layer_nodes(view, 0)[-1].output[0]])


class TestBisect:
    def test_equal_graphs(self, view, feed):
        assert bisect_outputs(view, planted_view(view), feed) is None

    def test_unrounded_rotary_table(self, exported, view, feed):
        model = planted(view)
        config = exported.checkpoint.config
        shape = [config.max_seq_len, config.head_dim // 2]
        angles = np.arange(shape[0])[:, None] * config.rope_base ** (-np.arange(shape[1]) * 2 / config.head_dim)
        table = next(t for t in model.graph.initializer if list(t.dims) == shape)
        for function in (np.cos, np.sin):
            wanted = function(angles).astype(np.float32)
            if np.abs(view.value(table.name) - wanted).max() < 0.01:
                table.CopyFrom(numpy_helper.from_array(wanted, table.name))
                break
        found = bisect_outputs(view, GraphView(model, view.folder), feed)
        assert found and found.operator == "GatherND" and 0 < found.difference < 0.01
        assert len(found.changed) == 1 and found.changed[0].startswith(f"constant {table.name} {shape}")
        assert found.runs <= 2 * np.log2(found.nodes) and found.nodes == len(view.nodes)
        assert table.name in str(found) and not found.between

    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_changed_epsilon(self, view, feed, which):
        model = planted(view)
        norms = [n for n in model.graph.node if n.op_type == "RMSNormalization"]
        next(a for a in norms[which].attribute if a.name == "epsilon").f = 0.3
        found = bisect_outputs(view, GraphView(model, view.folder), feed)
        assert found.node == norms[which].name
        assert found.changed == ("attribute epsilon: 1e-06 -> 0.3",)

    def test_a_difference_that_hides_on_the_way(self):
        def graph(scale: float) -> onnx.ModelProto:
            nodes = [
                helper.make_node("Mul", ["x", "s"], ["scaled"], "scale"),
                helper.make_node("ArgMax", ["scaled"], ["best"], "pick", axis=1),
                helper.make_node("Cast", ["best"], ["index"], "cast", to=FLOAT),
                helper.make_node("ReduceSum", ["scaled", "axes"], ["sum"], "total"),
                helper.make_node("Add", ["index", "sum"], ["y"], "add"),
            ]
            return small(nodes, {"s": np.float32(scale), "axes": np.array([1])})

        found = bisect_outputs(graph(1.0), graph(1.5), X)
        assert found.node == "scale" and found.changed == ("constant s []: largest difference 5.0e-01",)

    def test_the_nodes_before_it_are_others(self):
        def exp(of: str) -> onnx.NodeProto:
            return helper.make_node("Exp", [of], ["y"], "exp")

        negated = [helper.make_node("Neg", ["x"], ["n"], "neg"), helper.make_node("Sub", ["one", "n"], ["b"], "sub")]
        left = small([helper.make_node("Add", ["x", "one"], ["a"], "add"), exp("a")], {"one": np.float32(1)})
        right = small([*negated, exp("b")], {"one": np.float32(2)})
        found = bisect_outputs(left, right, X)
        assert found.node == "exp" and found.between == ("neg", "sub") and "not in the reference" in str(found)
        assert "input a -> b" in found.changed

    def test_not_a_number_and_other_shapes_are_differences(self):
        plain = small([helper.make_node("Relu", ["x"], ["y"], "relu")])
        wrong = small([helper.make_node("Div", ["x", "z"], ["y"], "div")], {"z": np.float32(0)})
        assert bisect_outputs(plain, wrong, X).difference == np.inf
        turned = small([helper.make_node("Transpose", ["x"], ["y"], "turn", perm=[1, 0])])
        assert bisect_outputs(plain, turned, X).changed[0] == "operator Relu -> Transpose"

    def test_graphs_of_two_precisions_take_the_same_inputs(self):
        wide = small([helper.make_node("Mul", ["x", "s"], ["h"], "mul"), helper.make_node("Exp", ["h"], ["y"], "exp")],
                     {"s": np.float32(9)})  # fmt: skip
        half = planted(GraphView(wide))
        half.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
        half.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float16(9), "s"))
        assert run_tensors(half, X, ["y"])["y"].dtype == np.float16
        assert bisect_outputs(wide, half, X, rtol=1e-2) is None
        assert bisect_outputs(wide, half, X).node == "mul"

    def test_nothing_in_common(self):
        other = small([helper.make_node("Relu", ["x"], ["y"])])
        other.graph.output[0].name = other.graph.node[0].output[0] = "z"
        with pytest.raises(GraphError, match="no output in common"):
            bisect_outputs(small([helper.make_node("Relu", ["x"], ["y"])]), other, X)


def planted_view(view: GraphView) -> GraphView:
    return GraphView(planted(view), view.folder)


class TestRunTensors:
    def test_any_tensor_from_any_working_directory(self, view, feed, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        first = layer_nodes(view, 0)[1]
        (value,) = run_tensors(view, feed, first.output).values()
        assert value.shape[:2] == (1, 12) and np.isfinite(value).all() and value.std() > 0

    def test_what_cannot_be_run(self, view, feed):
        with pytest.raises(GraphError, match="no node makes 'nothing'"):
            run_tensors(view, feed, ["nothing"])
        with pytest.raises(GraphError, match="input 'columns' is missing"):
            run_tensors(view, {}, [layer_nodes(view, 0)[0].output[0]])
        with pytest.raises(GraphError, match="cannot run the part"):
            run_tensors(view, feed | {"start": np.zeros((1, 1, 1), np.int64)}, list(view.outputs))

    def test_constants_and_branches(self):
        branch = helper.make_graph(
            [helper.make_node("Mul", ["x", "two"], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")]
        )
        two = helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2)))
        nodes = [
            two,
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Greater", ["m", "two"], ["c"]),
            helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
        ]
        model = small(nodes)
        assert np.array_equal(run_tensors(model, X, ["y"])["y"], X["x"] * 2)
        assert [n.op_type for n in GraphView(model).every_node()].count("Mul") == 2


class TestView:
    def test_files_that_are_no_graphs(self, exported, tmp_path):
        with pytest.raises(GraphError, match=r"frame\.onnx is missing"):
            GraphView(tmp_path / "frame.onnx")
        (tmp_path / "frame.onnx").write_bytes(b"\xff" * 100)
        with pytest.raises(GraphError, match="is no ONNX graph"):
            GraphView(tmp_path / "frame.onnx")
        shutil.copy(exported.paths["prefill"], tmp_path)
        alone = GraphView(tmp_path / "prefill.onnx")
        weight = next(n for n, t in alone.weights.items() if t.external_data)
        with pytest.raises(GraphError, match="cannot be read"):
            alone.value(weight)
        with pytest.raises(GraphError, match="lies in a file"):
            GraphView(alone.model).value(weight)

    def test_types_and_shapes_are_worked_out_where_the_file_does_not_say(self):
        model = faulty("float32-island")
        assert not model.graph.value_info
        assert GraphView(model).describe("wide") == "float32[B, 4]"
        assert GraphView(clean("weight-norm")).describe("nowhere") == "?[?]"

    @pytest.mark.parametrize(
        ("size", "value"), [("2048*T + 2", 20482), ("T", 10), (7, 7), ("U", None), (None, None), ("f(T)", None)]
    )
    def test_dimension(self, size, value):
        assert dimension(size, {"T": 10}) == value

    @pytest.mark.parametrize(
        ("kind", "bits"), [("float32", 32), ("bfloat16", 16), ("int4", 4), ("bool", 8), ("float8e4m3fn", 8)]
    )
    def test_bits(self, kind, bits):
        assert element_bits(kind) == bits
