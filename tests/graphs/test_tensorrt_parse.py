"""Every graph through TensorRT-RTX's parser and builder. Neither needs a GPU; running the engines does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest
import torch

from fstrt_helpers.engines.flavour import load_trt
from fstrt_helpers.engines.listen import collect_log, trt_logger
from fstrt_helpers.errors import GraphError, ParameterError
from fstrt_helpers.graphs.capacity import fix_capacity, free_dimensions
from fstrt_helpers.graphs.export import export_graphs
from fstrt_helpers.graphs.inputs import seeded_inputs

CAPACITY = 64
RANGES = {"B": (1, 1, 2), "S": (1, 8, 16), "T": (1, 4, 8), "4*T": (4, 16, 32)}  # least, likely, most


@pytest.fixture(scope="module")
def trt():
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")


def fixed_file(path: Path, capacity: int = CAPACITY) -> Path:
    """Writes the graph with a fixed capacity beside the original, where its data is."""
    target = path.with_name(f"{path.stem}.c{capacity}.onnx")
    onnx.save(fix_capacity(onnx.load(path, load_external_data=False), capacity), target)
    return target


def build(trt, path: Path, target: str = "SM86") -> SimpleNamespace:
    """Parses a graph by its path and builds it; every complaint ends up in an AssertionError."""

    flavour = load_trt("tensorrt_rtx")
    with collect_log(flavour) as problems:
        return _build(trt, path, target, trt_logger(flavour), problems)


def _build(trt, path: Path, target: str, log, problems: list[tuple[str, str]]) -> SimpleNamespace:
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    parsed = parser.parse_from_file(str(path))
    errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
    assert parsed and not errors, f"{path.name} does not parse: {errors} {problems}"
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, target), 0)
    model = onnx.load(path, load_external_data=False)
    free = free_dimensions(model)
    for value in model.graph.input:
        if value.name in free:
            dims = value.type.tensor_type.shape.dim
            profile.set_shape(value.name, *([d.dim_value or RANGES[d.dim_param][i] for d in dims] for i in range(3)))
    assert config.add_optimization_profile(profile) >= 0
    kinds = Counter(str(network.get_layer(i).type).rpartition(".")[2] for i in range(network.num_layers))
    outputs = {network.get_output(i).name: network.get_output(i).dtype for i in range(network.num_outputs)}
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, f"{path.name} does not build: {problems}"
    return SimpleNamespace(
        bytes=plan.nbytes, kinds=kinds, outputs=outputs, problems=[message for _, message in problems]
    )


@pytest.mark.parametrize("graph", ["codec_decode", "codec_encode"])
def test_codec_graphs_build_with_a_free_length(half, trt, graph):
    engine = build(trt, half.paths[graph])
    assert engine.problems == []
    assert engine.bytes > 500_000
    assert engine.kinds["CONVOLUTION"] >= 10


@pytest.mark.parametrize("graph", ["prefill", "frame"])
def test_transformer_graphs_build_and_their_operators_are_single_layers(half, trt, graph):
    engine = build(trt, fixed_file(half.paths[graph]))
    assert engine.problems == []
    c = half.checkpoint.config
    layers = c.n_layer + (7 * c.n_fast_layer if graph == "frame" else 0)
    found = {kind: engine.kinds[kind] for kind in ("ROTARY_EMBEDDING", "KV_CACHE_UPDATE")}
    assert found == {"ROTARY_EMBEDDING": layers, "KV_CACHE_UPDATE": 2 * c.n_layer}, engine.kinds
    kv = {dtype for name, dtype in engine.outputs.items() if name[:2] in ("k_", "v_")}
    assert kv == {trt.DataType.HALF}  # asked for float16 and got it


def test_float32_prefill_builds_with_decomposed_attention(exported, trt, tmp_path):
    paths = export_graphs(exported.checkpoint, graphs=["prefill"], attention="decomposed", folder=tmp_path)
    engine = build(trt, fixed_file(paths["prefill"]))
    assert engine.problems == []
    assert {dtype for name, dtype in engine.outputs.items() if name.startswith("k_")} == {trt.DataType.FLOAT}


def test_builds_from_another_working_directory(half, trt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert build(trt, fixed_file(half.paths["prefill"], 32)).bytes > 100_000


def test_a_free_capacity_is_what_tensorrt_refuses(half, trt):
    with pytest.raises(AssertionError, match="must have a static sequence length"):
        build(trt, half.paths["frame"])


# fix_capacity


def test_fixed_capacity_leaves_the_original_alone_and_every_name_but_c(exported):
    model = onnx.load(exported.paths["frame"], load_external_data=False)
    before = model.SerializeToString()
    fixed = fix_capacity(model, 96)
    assert model.SerializeToString() == before
    named = {name for axes in free_dimensions(fixed).values() for name in axes.values()}
    assert named == {"B"} and "C" in {n for axes in free_dimensions(model).values() for n in axes.values()}
    values = [*fixed.graph.input, *fixed.graph.output, *fixed.graph.value_info]
    dims = [d for v in values for d in v.type.tensor_type.shape.dim]
    assert not any("C" in d.dim_param for d in dims)
    kv = next(v for v in fixed.graph.output if v.name == "k_0_out")
    assert kv.type.tensor_type.shape.dim[2].dim_value == 96


def test_fixed_graph_computes_the_same(exported):
    import onnxruntime

    path = fixed_file(exported.paths["frame"], 80)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = seeded_inputs(exported.ort["frame"].spec, {"B": 2, "C": 80}, seed=3, semantic_begin_id=268)
    got = session.run(["next"], {k: v.numpy() for k, v in inputs.items()})[0]
    assert torch.equal(torch.from_numpy(got), exported.ort["frame"].run(inputs)["next"])


def test_fixing_what_cannot_be_fixed(exported):
    model = onnx.load(exported.paths["prefill"], load_external_data=False)
    with pytest.raises(GraphError, match="no input has a free dimension C"):
        fix_capacity(fix_capacity(model, 64), 128)
    with pytest.raises(GraphError, match="no input has a free dimension C"):
        fix_capacity(onnx.load(exported.paths["codec_decode"], load_external_data=False), 64)
    for wrong in (0, -1, 64.0, True, "64"):
        with pytest.raises(ParameterError):
            fix_capacity(model, wrong)
