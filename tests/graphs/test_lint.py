"""Every lint rule on the smallest graph that has its fault, on the mended one, and on the four exported graphs."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from onnx import helper

from fstrt_helpers.checkpoint import DualARConfig
from fstrt_helpers.errors import GraphError, ParameterError
from fstrt_helpers.graphs.bisect import run_tensors
from fstrt_helpers.graphs.lint import lint
from fstrt_helpers.graphs.lint_rules import RULES
from fstrt_helpers.graphs.spec import GRAPHS, graph_spec

from ..checkpoints import RANDOM_CONFIG
from .faults import FAULTS, attention, clean, faulty

SPEC = graph_spec("codec_decode", DualARConfig.from_dict(RANDOM_CONFIG), noise=8193)


def spec_for(rule: str):
    return SPEC if rule == "lost-dynamic-axis" else None


def test_every_rule_has_a_fault():
    assert FAULTS.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_rule_fires_on_its_fault_and_no_other_does(rule):
    model = faulty(rule)
    onnx.checker.check_model(model)
    findings = lint(model, spec=spec_for(rule))
    assert [f.rule for f in findings] == [rule]
    assert findings[0].node and findings[0].what and findings[0].why and findings[0].fix
    assert not lint(model, spec=spec_for(rule), skip=[rule])


@pytest.mark.parametrize("rule", RULES)
def test_mended_graph_is_clean(rule):
    model = clean(rule)
    onnx.checker.check_model(model)
    assert lint(model, spec=spec_for(rule)) == ()


@pytest.mark.parametrize("graph", GRAPHS)
def test_exported_graphs_are_clean(exported, graph):
    findings = lint(exported.paths[graph])
    assert not findings, findings


@pytest.mark.parametrize("graph", GRAPHS)
def test_exported_float16_graphs_have_no_float32_islands(half, graph):
    findings = lint(half.paths[graph])
    assert not findings, findings


@pytest.mark.parametrize("graph", GRAPHS)
def test_an_axis_lost_in_an_exported_graph_is_noticed_through_its_manifest(exported, graph, tmp_path):
    from fstrt_helpers.graphs.manifest import file_sha256, read_manifest

    folder = tmp_path / "float32"
    shutil.copytree(exported.paths[graph].parent, folder)
    path = folder / f"{graph}.onnx"
    model = onnx.load(path, load_external_data=False)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    with pytest.raises(GraphError, match="differs"):
        lint(path)
    manifest = read_manifest(exported.paths[graph])
    object.__setattr__(manifest, "onnx_sha256", file_sha256(path))
    manifest.write(path.with_suffix(".onnx.json"))
    (finding,) = lint(path)
    assert (finding.rule, finding.node) == ("lost-dynamic-axis", model.graph.input[0].name)
    assert "axis 0 should be free (B) and is 1" in finding.what
    assert not lint(path, fixed={"B"})


class TestRules:
    def test_expected_islands_are_not_reported(self):
        model = faulty("float32-island")
        assert "1 of 2 heavy nodes" in lint(model)[0].what
        assert not lint(model, islands=["island"])

    def test_shapes_taken_from_values(self):
        nodes = [
            helper.make_node("ReduceSum", ["n"], ["limit"], keepdims=0),
            helper.make_node("Range", ["zero", "limit", "one"], ["y"], name="range"),
        ]
        for source, fires in (("n", True), ("size", False)):
            model = faulty("data-dependent-shape")
            model.graph.ClearField("node")
            model.graph.ClearField("input")
            model.graph.input.append(helper.make_tensor_value_info("n", onnx.TensorProto.INT64, ["T"]))
            constants = {"zero": np.int64(0), "one": np.int64(1)}
            model.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in constants.items())
            nodes[0].input[0] = source
            model.graph.node.extend([helper.make_node("Shape", ["n"], ["size"]), *nodes])
            model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["N"]))
            assert [f.node for f in lint(model)] == (["range"] if fires else [])

    def test_dropout_that_is_switched_on(self):
        model = faulty("dropout")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.True_, "training"))
        model.graph.node[0].input.append("training")
        assert [f.rule for f in lint(model)] == ["training-mode", "dropout"]  # errors come first

    def test_a_fault_inside_a_branch(self):
        dropout = helper.make_node("Dropout", ["x"], ["r"], name="inner")
        inner = helper.make_graph([dropout], "b", [], [helper.make_empty_tensor_value_info("r")])
        model = faulty("dropout")
        model.graph.ClearField("node")
        model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
        model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner, name="if"))
        assert {(f.rule, f.node) for f in lint(model)} == {("data-dependent-shape", "if"), ("dropout", "inner")}

    def test_large_int64_constants(self):
        model = clean("int64")
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((64, 64), np.int64), "table"))
        assert [(f.node, f.what) for f in lint(model)] == [("table", "a constant int64[64, 64]")]

    def test_unknown_rule(self):
        with pytest.raises(ParameterError, match="no rule 'drop-out'"):
            lint(faulty("dropout"), skip=["drop-out"])


def test_findings_show_themselves():
    findings = lint(faulty("nonpad-kv-seqlen"))
    assert findings and "nonpad-kv-seqlen" in repr(findings) and "attn_mask" in findings._repr_html_()
    none = lint(clean("nonpad-kv-seqlen"))
    assert not none and repr(none) == "no findings" and "no findings" in none._repr_html_()


def test_what_onnx_runtime_makes_of_the_padded_cache():
    """The trap in numbers: with the length or with a mask the padding does not count, without both it does."""
    random = np.random.default_rng(0)
    feed = {name: random.standard_normal((1, 2, n, 4)).astype(np.float32) for name, n in (("q", 1), ("k", 8), ("v", 8))}
    limits = {"length": np.array([3]), "mask": (np.arange(8) < 3)[None, None, None]}
    y = {limit: run_tensors(attention(limit), feed | limits, ["y"])["y"] for limit in ("nonpad", "mask", "none")}
    scores = feed["q"] @ feed["k"][:, :, :3].swapaxes(2, 3) / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    right = weights @ feed["v"][:, :, :3]
    assert np.abs(y["nonpad"] - right).max() < 1e-5
    assert np.abs(y["mask"] - right).max() < 1e-5
    assert np.abs(y["none"] - right).max() > 0.1


@pytest.fixture(scope="module")
def parse():
    """TensorRT's own parser: the network, and the reason if it refuses the graph."""
    trt = pytest.importorskip("tensorrt_rtx")

    class Log(trt.ILogger):
        def log(self, severity, message):
            pass

    log = Log()
    builder = trt.Builder(log)

    def parse(model):
        network = builder.create_network()
        parser = trt.OnnxParser(network, log)
        ok = parser.parse(model.SerializeToString())
        return network, "" if ok else parser.get_error(0).desc()

    return parse


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("attention-outputs", "only supports Attention nodes with one output"),
        ("data-dependent-shape", "NonZero"),
        ("training-mode", "does not support training_mode == 1"),
        ("int64", ""),
    ],
)
def test_tensorrt_refuses_the_fault_and_takes_the_mended_graph(parse, rule, reason):
    _, error = parse(faulty(rule))
    assert error and reason in error
    assert parse(clean(rule))[1] == ""


@pytest.mark.parametrize(("limit", "name"), [("nonpad", "length"), ("mask", "mask")])
def test_tensorrt_drops_the_length_and_keeps_the_mask(parse, limit, name):
    network, error = parse(attention(limit))
    assert error == ""
    layers = [network.get_layer(i) for i in range(network.num_layers)]
    read = {layer.get_input(i).name for layer in layers for i in range(layer.num_inputs) if layer.get_input(i)}
    assert name in [network.get_input(i).name for i in range(network.num_inputs)]
    assert (name in read) == (limit == "mask")
