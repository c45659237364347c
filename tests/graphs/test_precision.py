"""Half-precision graphs against float32, logits within 1e-4, and the comparison itself."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from fstrt_helpers.audio import load_audio, log_mel
from fstrt_helpers.checkpoint import FRAME_SAMPLES, find_checkpoint
from fstrt_helpers.errors import EnvironmentMissing, ParameterError
from fstrt_helpers.graphs.export import export_graphs
from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.graphs.parity import compare_graph, forced_draws, teacher_forced
from fstrt_helpers.graphs.spec import LOGITS, graph_spec
from fstrt_helpers.model.frame import Frame, legal_rows
from fstrt_helpers.runtimes.onnxruntime import OrtRuntime
from fstrt_helpers.runtimes.torch import TorchRuntime
from fstrt_helpers.speech.generation import Generation, SamplingSettings
from fstrt_helpers.speech.voice import shipped_voices
from fstrt_helpers.text.prompt import build_prompt

from ..checkpoints import write_random_checkpoint

INFINITE = float("inf")
SENTENCE = "The old train to the coast was almost empty, so we took the seats beside the window and looked at the sea."


def initializers(path, kind: int) -> int:
    """Bytes of the weights of one element type."""
    model = onnx.load(path)
    return sum(len(t.raw_data) for t in model.graph.initializer if t.data_type == kind)


# float16 on the CPU


@pytest.mark.parametrize("graph", ["prefill", "frame", "codec_decode", "codec_encode"])
def test_float16_graph_really_holds_float16(half, graph):
    narrow, wide = (
        initializers(half.paths[graph], kind) for kind in (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT)
    )
    rope = 2 * 4 * half.checkpoint.config.max_seq_len * half.checkpoint.config.head_dim // 2
    assert narrow > 50_000
    assert wide <= rope + narrow // 100  # the rotary tables, and constants of the sampler
    manifest = read_manifest(half.paths[graph])
    assert manifest.precision == "float16"
    if graph in ("prefill", "frame"):
        assert any(line.startswith("k_0: float16[B,") for line in manifest.inputs)


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        ("prefill", [{"S": 1, "C": 128}, {"S": 33, "C": 512}, {"S": 64, "C": 2048, "B": 3}]),
        ("frame", [{"C": 128}, {"C": 512, "B": 3}, {"C": 1024, "B": 8}]),
        ("codec_decode", [{"T": 1}, {"T": 20, "B": 2}, {"T": 50}]),
    ],
)
def test_float16_is_close_to_float32(half, graph, sizes):
    results = compare_graph(
        graph,
        half.torch,
        half.ort,
        sizes,
        max_error=INFINITE,
        min_cosine=0.999,
        max_different=1,
        semantic_begin_id=half.checkpoint.tokenizer().semantic_begin_id,
    )
    assert all(results), results
    assert {r.output for r in results} == {"prefill": {"kv"}, "frame": {"kv", "next"}}.get(graph, {"waveform"})
    assert any(r.max_error > 0 for r in results)  # not float32 under another name


def test_float16_codec_encodes_a_recording_to_nearly_the_same_codes(half):
    wave = load_audio(shipped_voices()["slt"][0])
    mel = log_mel(torch.from_numpy(np.pad(wave, (0, -len(wave) % FRAME_SAMPLES)))[None])
    ours, theirs = (runtimes["codec_encode"].run({"log_mel": mel})["codes"] for runtimes in (half.torch, half.ort))
    assert ours.shape[2] > 50
    assert (ours == theirs).float().mean() >= 0.97  # rounding to levels turns a small difference into another code


@pytest.fixture(scope="module")
def spoken(half) -> SimpleNamespace:
    """A sentence as the float32 model speaks it, with its prompt and the noise of each frame."""
    if not half.trained:
        pytest.skip("data/tiny has no weights; random ones have almost uniform logits, which any rounding reorders")
    tokenizer, config = half.checkpoint.tokenizer(), half.checkpoint.config
    prompt = build_prompt(tokenizer, SENTENCE, num_codebooks=config.num_codebooks)
    seed, settings = 4, SamplingSettings()
    generation = Generation(half.torch, config, prompt, settings, 300, seed, tokenizer.im_end_id)
    columns = np.stack(list(generation), axis=1)
    assert columns.shape[1] >= 100 and generation.stop_reason == "eos"
    generator = torch.Generator().manual_seed(seed)
    size = next(t.shape[1] for t in half.torch["frame"].spec.inputs if t.name == "noise")
    noise = torch.cat([torch.empty(1, size).exponential_(1, generator=generator) for _ in range(columns.shape[1])])
    return SimpleNamespace(prompt=prompt, columns=columns, noise=noise)


def test_float16_draws_the_same_tokens_when_fed_the_same_speech(half, spoken):
    agreement = teacher_forced(
        half.torch, half.ort, half.checkpoint.config, spoken.prompt, spoken.columns, spoken.noise
    )
    assert agreement.compared[0] == spoken.columns.shape[1]
    assert agreement and agreement.finite and agreement.share >= 0.99, agreement.per_codebook


def test_teacher_forcing_repeats_the_speech_itself(half, spoken):
    """The reference, forced along its own speech with its own noise, draws exactly that speech."""
    size = 30
    drawn, finite = forced_draws(
        half.torch, half.checkpoint.config, spoken.prompt, spoken.columns[:, :size], spoken.noise, (0.7, 0.7, 1.2)
    )
    assert finite and np.array_equal(drawn.T, np.delete(spoken.columns[:, :size], 1, axis=0))


# bfloat16: written here, run elsewhere


def test_bfloat16_graph_is_valid_and_refused_by_the_cpu(exported, tmp_path):
    paths = export_graphs(exported.checkpoint, precision="bfloat16", graphs=["prefill"], folder=tmp_path)
    path = paths["prefill"]
    onnx.checker.check_model(str(path))
    assert initializers(path, onnx.TensorProto.BFLOAT16) > 10 * initializers(path, onnx.TensorProto.FLOAT16)
    model = onnx.load(path)
    kinds = {i.name: i.type.tensor_type.elem_type for i in model.graph.input}
    assert kinds["k_0"] == onnx.TensorProto.BFLOAT16
    norms = [n for n in model.graph.node if n.op_type == "RMSNormalization"]
    assert norms and all(a.i == onnx.TensorProto.FLOAT for n in norms for a in n.attribute if a.name == "stash_type")
    weights = {t.name: t for t in model.graph.initializer}
    full = {t.name: t for t in onnx.load(exported.paths["prefill"]).graph.initializer}
    name = next(n for n in full if n.endswith("codebook_embeddings.weight"))
    rounded = torch.from_numpy(onnx.numpy_helper.to_array(full[name]).copy()).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(np.frombuffer(weights[name].raw_data, np.int16), rounded.ravel())
    with pytest.raises(EnvironmentMissing, match="no bfloat16 MatMul on a CPU"):
        OrtRuntime(path)


# logits


@pytest.fixture(scope="module")
def with_logits(tmp_path_factory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("logits")
    checkpoint = find_checkpoint(write_random_checkpoint(folder / "random", n_layer=1, max_seq_len=2048))
    path = export_graphs(checkpoint, graphs=["frame"], logits=True, folder=folder)["frame"]
    dual_ar, tokenizer = checkpoint.load_dual_ar(), checkpoint.tokenizer()
    frame = Frame(dual_ar, legal_rows(dual_ar, tokenizer.im_end_id))
    spec = graph_spec("frame", checkpoint.config, noise=frame.noise_size, logits=True)
    return SimpleNamespace(ort=OrtRuntime(path).open(), torch=TorchRuntime(spec, frame), tokenizer=tokenizer)


@pytest.mark.parametrize("capacity", [128, 512, 2048])
def test_logits_agree_within_1e_4(with_logits, capacity):
    results = compare_graph(
        "frame",
        with_logits.torch,
        with_logits.ort,
        [{"B": rows, "C": capacity} for rows in (1, 3, 8)],
        semantic_begin_id=with_logits.tokenizer.semantic_begin_id,
    )
    assert all(results), results
    assert {r.output for r in results} == {*LOGITS, "kv", "next"}


def test_drawn_code_0_is_the_likeliest_by_its_logits_when_nothing_else_may_be_drawn(with_logits):
    sizes = {"B": 4, "C": 64}
    inputs = seeded_inputs(with_logits.ort.spec, sizes, semantic_begin_id=with_logits.tokenizer.semantic_begin_id)
    inputs |= {"top_p": torch.full((4, 1), 1e-6), "penalty": torch.ones(4, 1)}
    out = with_logits.ort.run(inputs)
    assert out["token_logits"].shape == (4, 1025) and out["code_logits"].shape == (4, 7, 1024)
    assert torch.equal(out["code_logits"].argmax(-1), out["next"][:, 2:])
    best = out["token_logits"].argmax(-1)
    spoken = best < 1024
    assert spoken.any() and torch.equal(out["next"][spoken, 1], best[spoken])


# the comparison itself


@pytest.fixture
def changed(exported):
    """The PyTorch back end with one weight of the first layer changed, put back afterwards."""
    weight = exported.torch["prefill"].module.layers[0].attention.wqkv.weight.data
    kept = weight.clone()
    yield lambda value: weight[-1].fill_(value)
    weight.copy_(kept)


def test_a_planted_difference_is_found(exported, changed):
    sizes = [{"S": 5, "C": 32}]
    (same,) = compare_graph("prefill", exported.torch, exported.ort, sizes)
    assert same and same.max_error < 1e-5 and repr(same) == "PASS prefill.kv S=5 C=32 (error <= 0.0001)"
    changed(0.3)
    (other,) = compare_graph("prefill", exported.torch, exported.ort, sizes, min_cosine=0.5)
    assert not other and other.cosine < 0.9999 and other.max_error > 1e-3 and repr(other).startswith("FAIL: error")
    assert "FAIL" in other._repr_html_()
    changed(float("nan"))
    (broken,) = compare_graph("prefill", exported.torch, exported.ort, sizes, max_error=INFINITE)
    assert not broken and not broken.finite


def test_teacher_forcing_notices_a_change_and_values_that_are_no_numbers(exported, changed):
    generator = np.random.default_rng(0)
    columns = generator.integers(0, 1000, (9, 12))
    columns[0] = columns[1] + 268
    noise = torch.empty(12, 8193).exponential_(1, generator=torch.Generator().manual_seed(0))
    arguments = (exported.torch, exported.ort, exported.checkpoint.config, columns[:, :3], columns, noise)
    same = teacher_forced(*arguments)
    assert same and same.share == 1 and same.compared == (12,) * 8
    assert "100.0%" in repr(same) and "code 7" in same._repr_html_()
    changed(30.0)
    other = teacher_forced(*arguments)
    assert not other and other.share < 0.99
    assert other.compared[0] == 12 and all(a >= b for a, b in zip(other.compared, other.compared[1:], strict=False))
    changed(float("nan"))
    assert not teacher_forced(*arguments).finite


def test_seeded_inputs(exported):
    spec = exported.torch["frame"].spec
    one, again, other = (seeded_inputs(spec, {"C": 64}, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["noise"], other["noise"])
    with pytest.raises(ParameterError, match=r"needs sizes for \['C'\]"):
        seeded_inputs(spec, {"B": 2})
