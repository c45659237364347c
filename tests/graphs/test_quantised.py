"""Quantised graphs against those they were made from: on ONNX Runtime, and through TensorRT's parser and builder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from fstrt_helpers.errors import EnvironmentMissing, GraphError, ParameterError
from fstrt_helpers.graphs.export import export_graphs
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.graphs.parity import compare_graph, teacher_forced
from fstrt_helpers.graphs.precision import graph_label, groups, main, quantise_graphs
from fstrt_helpers.runtimes.onnxruntime import OrtRuntime
from fstrt_helpers.speech.backends import open_backend
from fstrt_helpers.speech.generation import Generation, SamplingSettings
from fstrt_helpers.text.prompt import build_prompt

from .test_tensorrt_parse import build, fixed_file

TRANSFORMERS = ("prefill", "frame")
SENTENCE = "The old train to the coast was almost empty, so we took the seats beside the window and looked at the sea."


def kinds(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def size(path: Path) -> int:
    """Bytes of a graph with the data it reads."""
    return path.stat().st_size + sum(read_manifest(path).data_bytes.values())


def open_all(paths: dict[str, Path]) -> dict[str, OrtRuntime]:
    return {graph: OrtRuntime(path, threads=1).open() for graph, path in paths.items()}


@pytest.fixture(scope="module")
def tiny(half, tmp_path_factory) -> SimpleNamespace:
    """The transformers of `tiny`, or of random weights, in all quantised forms, from graphs exported once."""
    root = half.paths["frame"].parents[2]
    made = {}
    for precision, form in (("int8", "qdq"), ("int8", "nbits"), ("int4", "nbits")):
        label = graph_label(precision, form)
        made[label] = quantise_graphs(half.checkpoint, precision=precision, form=form, graphs=TRANSFORMERS, folder=root)
    return SimpleNamespace(**vars(half) | {"root": root, "half": half.paths, "paths": made})


# weight-only int8 for TensorRT


def test_int8_graph_holds_int8_and_little_else(tiny):
    path = tiny.paths["int8"]["frame"]
    model = onnx.load(path)
    onnx.checker.check_model(str(path))
    sizes = Counter()
    for tensor in model.graph.initializer:
        sizes[tensor.data_type] += len(tensor.raw_data)
    narrow = sizes[onnx.TensorProto.INT8]
    rope = 2 * 4 * tiny.checkpoint.config.max_seq_len * tiny.checkpoint.config.head_dim // 2
    assert narrow > 500_000
    assert sizes[onnx.TensorProto.FLOAT16] <= narrow // 50  # scales and norms
    assert sizes[onnx.TensorProto.FLOAT] <= rope + narrow // 100
    assert size(path) <= 0.55 * size(tiny.half["frame"])


def test_int8_scales_are_per_channel_and_the_error_is_half_a_step(tiny):
    model, base = onnx.load(tiny.paths["int8"]["frame"]), onnx.load(tiny.half["frame"])
    found = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    whole = {t.name: onnx.numpy_helper.to_array(t).astype(np.float32) for t in base.graph.initializer}
    for name, axis in (("frame.model.layers.0.attention.wo.weight", 1), ("frame.model.embeddings.weight", 0)):
        int8, scale = found[f"{name}_int8"], found[f"{name}_scale"].astype(np.float32)
        assert int8.dtype == np.int8 and scale.shape == (whole[name].shape[axis],)
        assert np.abs(int8).max(axis=1 - axis).min() == 127  # every channel uses its range
        step = scale if axis else scale[:, None]
        assert np.abs(int8 * step - whole[name]).max() <= 0.51 * scale.max()
    (node,) = [n for n in model.graph.node if n.output[0] == "frame.model.embeddings.weight_dequantized"]
    assert onnx.helper.get_node_attr_value(node, "axis") == 0


def test_int8_prefill_and_frame_share_one_copy_of_the_slow_layers(tiny):
    for label in ("int8", "int8-nbits", "int4-nbits"):
        data = {g: read_manifest(p).data_bytes for g, p in tiny.paths[label].items()}
        (shared,) = data["prefill"]
        assert shared in data["frame"] and len(data["frame"]) == 2
        own = next(n for name, n in data["frame"].items() if name != shared)
        assert own < data["prefill"][shared]


@pytest.fixture(scope="module")
def spoken(half) -> SimpleNamespace:
    """Three seconds as the float32 model speaks them."""
    if not half.trained:
        pytest.skip("data/tiny has no weights; random ones have almost uniform logits, which any rounding reorders")
    tokenizer, config = half.checkpoint.tokenizer(), half.checkpoint.config
    prompt = build_prompt(tokenizer, SENTENCE, num_codebooks=config.num_codebooks)
    columns = np.stack(
        list(Generation(half.torch, config, prompt, SamplingSettings(), 64, 4, tokenizer.im_end_id)), axis=1
    )
    generator = torch.Generator().manual_seed(4)
    wide = next(t.shape[1] for t in half.torch["frame"].spec.inputs if t.name == "noise")
    noise = torch.cat([torch.empty(1, wide).exponential_(1, generator=generator) for _ in range(columns.shape[1])])
    return SimpleNamespace(prompt=prompt, columns=columns, noise=noise)


@pytest.mark.parametrize(("label", "least"), [("int8", 0.97), ("int8-nbits", 0.97), ("int4-nbits", 0.70)])
def test_tokens_when_fed_the_same_speech(tiny, spoken, label, least):
    agreement = teacher_forced(
        tiny.torch,
        open_all(tiny.paths[label]),
        tiny.checkpoint.config,
        spoken.prompt,
        spoken.columns,
        spoken.noise,
    )
    assert agreement.finite and least <= agreement.share < 1, agreement.per_codebook


@pytest.fixture(scope="module")
def trt():
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")


@pytest.mark.parametrize("graph", TRANSFORMERS)
def test_int8_builds(tiny, trt, graph):
    engine = build(trt, fixed_file(tiny.paths["int8"][graph]))
    assert engine.problems == []
    manifest = read_manifest(tiny.paths["int8"][graph])
    assert engine.kinds["DEQUANTIZE"] == sum(manifest.quantised.values())
    assert {d for n, d in engine.outputs.items() if n.startswith("k_")} == {trt.DataType.HALF}


# MatMulNBits


@pytest.mark.parametrize(("label", "share"), [("int8-nbits", 0.33), ("int4-nbits", 0.2)])
def test_nbits_graph_has_no_other_products_left(tiny, label, share):
    path = tiny.paths[label]["frame"]
    found = kinds(path)
    c = tiny.checkpoint.config
    products = 4 * (c.n_layer + 7 * c.n_fast_layer) + 8  # qkv, o, gate and up joined, down; heads
    assert found["MatMulNBits"] == products and not found["MatMul"]
    assert found["GatherBlockQuantized"] == 9
    manifest = read_manifest(path)
    block = 32 if label.startswith("int8") else 128
    assert (manifest.form, manifest.activations, manifest.block_size) == ("nbits", "float32", block)
    assert manifest.quantised == {"Gather": 3, "MatMul": 4 * (c.n_layer + c.n_fast_layer) + 2}
    assert size(path) < share * 2 * size(tiny.half["frame"])
    bits = {
        (node.input[1], onnx.helper.get_node_attr_value(node, "bits"))
        for node in onnx.load(path, load_external_data=False).graph.node
        if node.op_type == "MatMulNBits"
    }
    heads = {b for name, b in bits if "_output" in name or not name.startswith("frame.")}
    assert heads == {8} and {b for name, b in bits if "layers" in name} == {8 if label.startswith("int8") else 4}


def test_nbits_prefill_is_close(tiny):
    results = compare_graph(
        "prefill",
        tiny.torch,
        open_all(tiny.paths["int8-nbits"]),
        [{"S": 7, "C": 64}, {"S": 33, "C": 128, "B": 2}],
        max_error=float("inf"),
        min_cosine=0.999,
        semantic_begin_id=tiny.checkpoint.tokenizer().semantic_begin_id,
    )
    assert all(results) and all(r.max_error > 1e-4 for r in results), results


def test_the_same_names_on_every_back_end(exported):
    root, checkpoint = exported.root, exported.checkpoint
    with pytest.raises(GraphError, match=r"prefill\.onnx is missing") as caught:
        open_backend(checkpoint, "onnxruntime", "int8", root)
    assert "graphs.precision" in caught.value.fix
    paths = quantise_graphs(checkpoint, precision="int8", form="nbits", folder=root)
    assert tuple(paths) == ("prefill", "frame", "codec_decode", "codec_encode")
    opened = open_backend(checkpoint, "onnxruntime", "int8", root).runtimes
    assert opened["frame"].describe()["precision"] == "int8"
    assert opened["codec_decode"].describe()["precision"] == "float32"  # taken over as it was exported
    codes = torch.randint(0, 1000, (1, 8, 3), generator=torch.Generator().manual_seed(0))
    ours, theirs = (r["codec_decode"].run({"codes": codes})["waveform"] for r in (exported.ort, opened))
    assert torch.equal(ours, theirs)
    with pytest.raises((EnvironmentMissing, ParameterError), match="int8"):
        open_backend(checkpoint, "torch", "int8", root)


# what stays, and what is refused


def test_kept_weights_stay_as_they_were(tiny, tmp_path):
    keep = ["layers.0", "token_head", "fast_layers.0.feed_forward.w1"]
    paths = quantise_graphs(tiny.checkpoint, graphs=["frame"], keep=keep, folder=tiny.root, into=tmp_path)
    manifest = read_manifest(paths["frame"])
    assert "layers.0.attention.wqkv" in manifest.kept and "token_head" in manifest.kept
    assert not any(label.startswith("layers.1.") for label in manifest.kept)
    names = {t.name for t in onnx.load(paths["frame"], load_external_data=False).graph.initializer}
    assert {"frame.model.layers.0.attention.wqkv.weight", "frame.model.layers.0.feed_forward.w1.weight"} <= names
    assert "frame.model.layers.1.feed_forward.w13.weight_int8" in names
    fast = "frame.model.fast_layers.0.feed_forward"
    assert {f"{fast}.w1.weight", f"{fast}.w3.weight_int8"} <= names  # half a pair is not joined


def test_other_settings_never_change_weights_under_an_old_graph(tiny, tmp_path):
    first = quantise_graphs(tiny.checkpoint, graphs=["prefill"], folder=tiny.root, into=tmp_path)["prefill"]
    (data,) = read_manifest(first).data_bytes
    before = (first.parent / data).read_bytes()
    quantise_graphs(tiny.checkpoint, graphs=["prefill"], keep=["layers.0"], folder=tiny.root, into=tmp_path)
    assert (first.parent / data).read_bytes() == before
    assert set(read_manifest(first).data_bytes) != {data}
    assert not [p for p in first.parent.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({"precision": "int3"}, "no quantised precision"),
        ({"precision": "int4"}, "ONNX Runtime only"),
        ({"form": "gguf"}, "no form"),
        ({"graphs": ["vocoder"]}, "no graph"),
        ({"graphs": ["prefill"], "keep": ["layers.99"]}, "cannot be kept"),
        ({"graphs": ["prefill"], "keep": ["layers", "embeddings", "codebook_embeddings"]}, "nothing to quantise"),
        ({"form": "nbits", "block_size": 24}, "block size"),
    ],
    ids=str,
)
def test_unknown_choices(tiny, tmp_path, choice, what):
    with pytest.raises(ParameterError, match=what):
        quantise_graphs(tiny.checkpoint, folder=tiny.root, into=tmp_path, **choice)
    assert not list(tmp_path.iterdir())


def test_export_says_who_makes_int8(exported, tmp_path):
    with pytest.raises(ParameterError, match="not exported") as caught:
        export_graphs(exported.checkpoint, precision="int8", folder=tmp_path)
    assert "graphs.precision" in caught.value.fix


def test_an_embedding_that_blocks_do_not_divide(exported, tmp_path):
    paths = quantise_graphs(
        exported.checkpoint, precision="int4", form="nbits", graphs=["prefill"], folder=exported.root, into=tmp_path
    )
    assert read_manifest(paths["prefill"]).block_size == 32  # embeddings are 32 wide
    with pytest.raises(GraphError, match="no multiple of the block size 64"):
        quantise_graphs(
            exported.checkpoint, form="nbits", graphs=["prefill"], block_size=64, folder=exported.root, into=tmp_path
        )


def test_graphs_of_another_checkpoint_are_refused(exported, tiny, tmp_path):
    source = exported.root / exported.checkpoint.name / "float32"
    stranger = tmp_path / tiny.checkpoint.name / "float32"
    stranger.parent.mkdir(parents=True)
    stranger.symlink_to(source)
    with pytest.raises(GraphError, match="another checkpoint"):
        quantise_graphs(tiny.checkpoint, form="nbits", graphs=["prefill"], folder=tmp_path)


def test_groups(tiny):
    c = tiny.checkpoint.config
    found = groups(tiny.checkpoint, "frame", folder=tiny.root)
    assert found[:3] == ["codebook_embeddings", "embeddings", "layers.0"]
    assert len(found) == 5 + c.n_layer + c.n_fast_layer
    assert "codec.head.ups.0" in groups(tiny.checkpoint, "codec_decode", folder=tiny.root)


def test_command_line(tiny, capsys):
    if tiny.checkpoint.name != "tiny":
        pytest.skip("the command line takes a checkpoint by name")
    main(["tiny", "--precision", "int4", "--graphs", "prefill", "--folder", str(tiny.root)])
    out = capsys.readouterr().out
    assert "[1/1] done" in out and "2 Gather" in out and "int4-nbits" in out
