"""The complete TensorRT path: build, load, run, capture; on the first machine whose GPU TensorRT runs on."""

from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import EngineRefused, ProfileError, RuntimeInputError
from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.graphs.manifest import graph_path
from fstrt_helpers.graphs.parity import compare_graph
from fstrt_helpers.graphs.spec import GRAPHS
from fstrt_helpers.runtimes.buffers import open_memory
from fstrt_helpers.runtimes.loop import FrameLoop
from fstrt_helpers.runtimes.pool import tensorrt_pool
from fstrt_helpers.runtimes.state import FrameState
from fstrt_helpers.runtimes.tensorrt import TrtRuntime, TrtStep
from fstrt_helpers.runtimes.tensorrt_buckets import TrtBuckets, ready_engines, tensorrt_runtimes
from fstrt_helpers.runtimes.tensorrt_files import find_engines, read_engine

from .test_loops import FRAMES, begin, speak

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("trt")]
CAPACITY = 256
PROFILES = {
    "prefill": {"S": (1, 32, 128)},
    "frame": {"B": (1, 1, 4)},
    "codec_decode": {"B": (1, 1, 2), "T": (1, 32, 100)},
    "codec_encode": {"T": (1, 40, 120)},
}
# Least cosine with PyTorch in float32; largest share of codes that the encoder may choose otherwise.
LIMITS = {"float32": (0.9999, 0.02), "float16": (0.999, 0.2), "bfloat16": (0.98, 0.7), "int8": (0.97, 0.8)}


def build(graphs, trt, precision: str, graph: str, folder: Path, logits: bool = False):
    """An engine of `tiny`, small enough to be quick. Returns what was found and its file."""
    from fstrt_helpers.engines.cache import cached_engine
    from fstrt_helpers.engines.profile import default_profile
    from fstrt_helpers.engines.source import graph_label

    label = graph_label(precision, graph, trt.name) + "-logits" * logits
    root = graphs(label, (graph,))
    path = graph_path(root, "tiny", label, graph)
    capacity = CAPACITY if graph in ("prefill", "frame") else None
    profile = default_profile(path, name=graph, capacity=capacity, sizes=PROFILES[graph])
    return cached_engine(path, profile, precision=precision, flavour=trt, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("engines")


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_equal_to_pytorch_at_min_opt_max_and_an_odd_shape(
    graphs, trt, torch_models, gpu, folder, precision, graph, record_property
):
    """Silent wrong output at other shapes than the likeliest: https://github.com/NVIDIA/TensorRT/issues/4450."""
    reference = torch_models(torch.float32)
    logits = graph == "frame"
    built = build(graphs, trt, precision, graph, folder / ("logits" if logits else "plain"), logits)
    record_property("build_seconds", round(built.report.seconds, 2))
    record_property("engine_mb", round(built.report.bytes / 1e6, 1))
    file = read_engine(built.path, reference.config, fingerprint=reference.checkpoint.fingerprint)
    three = {d: PROFILES[graph][d] for d in PROFILES[graph]}
    odd = {"S": 37, "B": 3, "T": 41}
    sets = [{d: sizes[i] for d, sizes in three.items()} for i in range(3)]
    sets.append({d: min(odd[d], sizes[2]) for d, sizes in three.items()})
    sets = [s | ({"C": CAPACITY} if file.capacity else {}) for s in sets]
    judge = reference.runtimes
    if logits:  # the reference returns its logits too
        from fstrt_helpers.graphs.spec import graph_spec, noise_size
        from fstrt_helpers.runtimes.torch import TorchRuntime

        spec = graph_spec("frame", reference.config, noise=noise_size(reference.config), logits=True)
        judge = {"frame": TorchRuntime(spec, reference.runtimes["frame"].module)}
    runtime = TrtRuntime(file, open_memory(gpu), flavour=trt).open()
    cosine, different = LIMITS[precision]
    try:
        results = compare_graph(
            graph,
            judge,
            {graph: runtime},
            sets,
            max_error=float("inf"),
            min_cosine=cosine,
            max_different=1.0 if graph == "frame" else different,  # draws are never compared across engines
            semantic_begin_id=reference.semantic_begin_id,
        )
    finally:
        runtime.close()
    # Logits of later codes depend on the codes drawn before, which may differ; those of the token do not.
    results = [r for r in results if r.output not in ("code_logits", "next")]
    record_property("cosine", min((round(r.cosine, 6) for r in results if r.cosine is not None), default=None))
    record_property("different", max((r.max_error for r in results if r.cosine is None), default=None))
    assert len(results) >= len(sets) and all(results), results


@pytest.fixture(scope="module")
def tiny_engines(graphs, trt, tiny, folder) -> Path:
    """All four float16 engines of `tiny`, with the small profiles."""
    for graph in GRAPHS:
        build(graphs, trt, "float16", graph, folder / "plain")
    return folder / "plain"


@pytest.fixture
def opened(tiny_engines, tiny, trt, gpu):
    memory = open_memory(gpu)
    runtimes = tensorrt_runtimes(
        tiny_engines,
        "tiny",
        "float16",
        tiny.config,
        memory,
        open_memory(gpu),
        flavour=trt,
        fingerprint=tiny.fingerprint,
    )
    for runtime in runtimes.values():
        runtime.open()
    yield runtimes
    for runtime in runtimes.values():
        runtime.close()


def test_known_graphs_compute_what_they_say(trt, gpu, tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed: no graphs are written by hand")
    from ..runtimes.trt_graphs import CONFIG, FINGERPRINT, write_small_graphs

    graphs, engines = write_small_graphs(tmp_path / "graphs"), tmp_path / "engines"
    ready_engines("small", "float16", CONFIG, trt, graphs=graphs, folder=engines, missing=True)
    memory = (open_memory(gpu), open_memory(gpu))
    runtimes = tensorrt_runtimes(engines, "small", "float16", CONFIG, *memory, flavour=trt, fingerprint=FINGERPRINT)
    for runtime in runtimes.values():
        runtime.open()
    codes = torch.randint(0, 1000, (2, 8, 5), generator=torch.Generator().manual_seed(0))
    wave = runtimes["codec_decode"].run({"codes": codes.to(gpu)})["waveform"].cpu()
    expected = (codes.float().mean(dim=1) / 1024).repeat_interleave(2048, dim=1)[:, None]
    assert wave.shape == (2, 1, 5 * 2048) and (wave - expected).abs().max() < 2e-3
    prefill = runtimes["prefill"]
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(prefill.spec, {"S": 6, "C": 128}, seed=3).items()}
    before = {name: inputs[name].clone() for name in ("k_0", "v_0")}
    out = prefill.run(inputs)
    weight = torch.linspace(-1, 1, 9 * CONFIG.n_local_heads * CONFIG.head_dim).view(9, -1) / 64
    rows = inputs["columns"].cpu().float().mT @ weight.half().float()  # [1, S, H * D]
    rows = rows.view(1, 6, CONFIG.n_local_heads, CONFIG.head_dim).transpose(1, 2)
    for name, old in before.items():
        assert out[name].data_ptr() == inputs[name].data_ptr()
        assert torch.equal(out[name][:, :, 6:], old[:, :, 6:])
        assert torch.allclose(out[name][:, :, :6].cpu().float(), rows, atol=0.3, rtol=5e-3)
    frame = runtimes["frame"]
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(frame.spec, {"B": 3, "C": 128}, seed=4).items()}
    whole = torch.cat([inputs[n] for n in ("noise", "temperature", "top_p", "penalty")], dim=1).amax(dim=1).long()
    expected = inputs["window"][:, :, 15] + inputs["column"][:, :, 0] + whole[:, None]
    assert torch.equal(frame.run(inputs)["next"], expected)
    for runtime in runtimes.values():
        runtime.close()


def test_keys_and_values_are_written_in_place(opened, gpu):
    frame = opened["frame"]
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(frame.spec, {"C": CAPACITY}, seed=1).items()}
    before = {n: t.clone() for n, t in inputs.items() if n.startswith(("k_", "v_"))}
    out = frame.run(inputs)
    slot = inputs["start"].item()
    for name, tensor in before.items():
        assert out[name].data_ptr() == inputs[name].data_ptr()
        assert (inputs[name] != tensor).any(dim=(0, 1, 3)).nonzero().flatten().tolist() == [slot]


def test_a_long_prompt_in_pieces_is_the_same_prompt(opened, torch_models, gpu):
    prefill = opened["prefill"]
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(prefill.spec, {"S": 200, "C": CAPACITY}, seed=2).items()}
    assert prefill.at(CAPACITY).file.tensors["columns"].max[2] == 128 < 200
    reference = torch_models(torch.float16).runtimes["prefill"]
    theirs = {name: tensor.clone() for name, tensor in inputs.items()}
    prefill.run(inputs)
    reference.run(theirs)
    for name in theirs:
        if name.startswith(("k_", "v_")):
            a, b = (t[name][:, :, :200].double().flatten() for t in (inputs, theirs))
            assert torch.dot(a, b) / (a.norm() * b.norm()) >= 0.999


def test_what_does_not_fit_is_named_before_anything_runs(opened, gpu):
    decode = opened["codec_decode"]
    with pytest.raises(
        ProfileError, match=r"'codes' is 1x8x101; the profile of codec_decode\.engine takes 1x8x1 to 2x8x100"
    ):
        decode.run({"codes": torch.zeros(1, 8, 101, dtype=torch.int64, device=gpu)})
    with pytest.raises(RuntimeInputError, match="tensor 'codes' lies on cpu"):
        decode.run({"codes": torch.zeros(1, 8, 4, dtype=torch.int64)})
    frame = opened["frame"]
    with pytest.raises(RuntimeInputError, match="no engine has a KV cache of 128 columns"):
        frame.run({n: t.to(gpu) for n, t in seeded_inputs(frame.spec, {"C": 128}).items()})
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(frame.spec, {"C": CAPACITY}).items()}
    inputs["k_0"] = torch.cat([inputs["k_0"]] * 2)[1:]  # contiguous, but a view of another tensor
    frame.run(inputs)
    inputs["k_0"] = inputs["k_0"].mT.contiguous().mT
    with pytest.raises(RuntimeInputError, match="'k_0' is written in place, and is not contiguous"):
        frame.run(inputs)
    odd = torch.zeros(1, 8, 9, dtype=torch.int64, device=gpu).flatten()[5:69].view(1, 8, 8)  # 40 bytes off
    assert decode.run({"codes": odd})["waveform"].shape == (1, 1, 8 * 2048)


def new_loop(opened, tiny, capture: bool, batch: int = 1) -> FrameLoop:
    runtime = opened["frame"].at(CAPACITY)
    state = FrameState(runtime.spec, tiny.config, runtime.device, batch, CAPACITY, runtime.memory.empty)
    step = TrtStep(runtime, state)
    if not capture:
        step.capture = "nothing"
    return FrameLoop(opened["prefill"], step, state, torch.cuda.Stream(runtime.device))


@pytest.mark.parametrize("batch", [1, 3])
def test_capturing_changes_no_frame(opened, tiny, torch_models, batch, record_property):
    prompt = torch_models(torch.float16).prompt
    plain, captured = (new_loop(opened, tiny, capture, batch) for capture in (False, True))
    expected = speak(plain, prompt)
    assert len(expected.unique()) > 100
    assert torch.equal(speak(captured, prompt), expected)
    assert torch.equal(speak(captured, prompt), expected)
    record_property("captured", captured.describe()["captured"])
    record_property("capture_seconds", round(captured.capture_seconds, 3))
    assert captured.describe()["captured"] == "all"


def test_a_captured_loop_and_single_runs_do_not_mix(opened, tiny, torch_models, gpu):
    prompt = torch_models(torch.float16).prompt
    loop = new_loop(opened, tiny, capture=True)
    expected = speak(loop, prompt, 20)
    begin(loop, prompt)
    for _ in range(20):
        loop.launch()
        inputs = {n: t.to(gpu) for n, t in seeded_inputs(opened["frame"].spec, {"C": CAPACITY}, seed=5).items()}
        opened["frame"].run(inputs)
    loop.synchronise()
    assert torch.equal(loop.state.history[:20].cpu(), expected)


def test_the_pool_hands_out_what_there_are_engines_for(opened, tiny, torch_models):
    pool = tensorrt_pool(opened["prefill"], opened["frame"], opened["frame"].at(CAPACITY).memory)
    loop = pool.take(1, 100)
    assert loop.state.capacity == CAPACITY and pool.facts["capacities"] == [CAPACITY]
    assert speak(loop, torch_models(torch.float16).prompt, FRAMES).shape == (FRAMES, 1, 9)
    with pytest.raises(ProfileError, match=f"the largest engine there is has {CAPACITY}"):
        pool.take(1, CAPACITY + 1)
    with pytest.raises(ProfileError, match="input 'column' is 5x9x1"):
        pool.take(5, CAPACITY)


def test_eight_threads_get_what_one_caller_gets(opened, gpu):
    decode = opened["codec_decode"]
    codes = [torch.randint(0, 1000, (1, 8, 10 + 7 * i), device=gpu) for i in range(8)]
    alone = [decode.run({"codes": c})["waveform"].cpu() for c in codes]
    wrong: list[int] = []

    def run(i: int) -> None:
        for _ in range(20):
            if not torch.equal(decode.run({"codes": codes[i]})["waveform"].cpu(), alone[i]):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and 1 <= len(decode._idle) <= 8


def test_fifty_runs_hold_no_more_memory_than_ten(opened, gpu, driver_mb, record_property):
    def run(count: int) -> float:
        for i in range(count):
            opened["codec_decode"].run({"codes": torch.randint(0, 1000, (1, 8, 20 + i % 10), device=gpu)})
            inputs = {n: t.to(gpu) for n, t in seeded_inputs(opened["frame"].spec, {"C": CAPACITY}, seed=i).items()}
            opened["frame"].run(inputs)
        return driver_mb()

    after_ten = run(10)
    growth = run(50) - after_ten
    record_property("growth_mb", round(growth, 1))
    assert growth <= 16


def test_closing_gives_the_memory_back(tiny_engines, tiny, trt, gpu, driver_mb, record_property):
    def open_and_close() -> tuple[float, float]:
        files = find_engines(tiny_engines, "tiny", "float16", "frame", tiny.config, fingerprint=tiny.fingerprint)
        buckets = TrtBuckets(files, open_memory(gpu), flavour=trt).open()
        held = driver_mb()
        buckets.close()
        buckets.close()
        del buckets
        gc.collect()
        return held, driver_mb()

    open_and_close()  # libraries and kernels that stay
    runs = [open_and_close() for _ in range(5)]
    record_property("held_mb", round(runs[0][0] - runs[0][1], 1))
    assert runs[-1][1] - runs[0][1] <= 16
    assert runs[0][0] - runs[0][1] > 10  # the weights alone are more


def test_an_engine_that_was_changed_is_not_loaded(tiny_engines, tiny, trt, gpu, tmp_path):
    place = Path(shutil.copytree(tiny_engines / "tiny" / "float16", tmp_path / "copy"))
    path = place / "codec_decode.engine"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(EngineRefused, match="its hash differs"):
        TrtRuntime(read_engine(path, tiny.config), open_memory(gpu), flavour=trt).open()


def test_streamed_pieces_are_the_whole(opened, tiny, gpu):
    from fstrt_helpers.speech.decoding import CodecStream, left_context

    codes = np.random.default_rng(0).integers(0, 1000, (8, 90))
    stream = CodecStream(opened["codec_decode"], left_context(tiny.codec_config), (10, 24))
    pieces = [piece() for column in codes.T if (piece := stream.push(column))]
    if last := stream.flush():
        pieces.append(last())
    whole = opened["codec_decode"].run({"codes": torch.from_numpy(codes)[None].to(gpu)})["waveform"][0, 0].cpu()
    streamed = torch.from_numpy(np.concatenate(pieces)).double()
    assert len(streamed) == len(whole)
    assert torch.dot(streamed, whole.double()) / (streamed.norm() * whole.double().norm()) >= 0.999
