"""ONNX Runtime on the GPU: equal to PyTorch, in place, and the same frames with and without CUDA graphs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest
import torch

from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.graphs.parity import compare_graph
from fstrt_helpers.runtimes.buffers import open_memory
from fstrt_helpers.runtimes.pool import LoopPool, onnxruntime_pool

from .test_loops import FRAMES, begin, speak

pytestmark = pytest.mark.gpu
SIZES = {
    "prefill": [{"S": s, "C": c} for s, c in ((1, 128), (33, 512), (64, 2048))],
    "frame": [{"B": b, "C": c} for b, c in ((1, 128), (3, 512), (8, 2048))],
    "codec_decode": [{"T": t} for t in (1, 21, 200)],
    "codec_encode": [{"T": t} for t in (5, 43)],
}
LIMITS = {"float32": (0.9999, 0.02), "float16": (0.999, 0.2)}  # least cosine, largest share of ids that differ


@pytest.fixture(scope="module")
def provider(gpu: torch.device) -> str:
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed")
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no CUDA provider (requirements-gpu.txt)")
    return "CUDAExecutionProvider"


def opened(folder, fingerprint: str, **choices) -> dict:
    from fstrt_helpers.runtimes.onnxruntime import onnxruntime_runtimes

    runtimes = onnxruntime_runtimes(folder, device="cuda", fingerprint=fingerprint, **choices)
    return {name: runtime.open() for name, runtime in runtimes.items()}


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("graph", SIZES)
def test_equal_to_pytorch(provider, graphs, torch_models, precision, graph, record_property):
    reference = torch_models(torch.float32)
    folder = graphs(precision) / "tiny" / precision
    ours = opened(folder, reference.checkpoint.fingerprint)[graph]
    cosine, different = LIMITS[precision]
    results = compare_graph(
        graph,
        reference.runtimes,
        ours,
        SIZES[graph],
        max_error=float("inf"),
        min_cosine=cosine,
        max_different=1.0 if graph == "frame" and precision != "float32" else different,
        semantic_begin_id=reference.semantic_begin_id,
    )
    record_property("cosine", min((r.cosine for r in results if r.cosine is not None), default=None))
    record_property("different", max((r.max_error for r in results if r.cosine is None), default=None))
    assert results and all(results), results


def test_keys_and_values_are_written_in_place(provider, graphs, torch_models, gpu):
    model = torch_models(torch.float32)
    frame = opened(graphs("float16") / "tiny" / "float16", model.checkpoint.fingerprint)["frame"]
    inputs = {n: t.to(gpu) for n, t in seeded_inputs(frame.spec, {"C": 256}, seed=1).items()}
    before = {n: t.clone() for n, t in inputs.items() if n.startswith(("k_", "v_"))}
    out = frame.run(inputs)
    slot = inputs["start"].item()
    for name, tensor in before.items():
        assert out[name].data_ptr() == inputs[name].data_ptr()
        assert (inputs[name] != tensor).any(dim=(0, 1, 3)).nonzero().flatten().tolist() == [slot]


@pytest.fixture
def pools(provider, graphs, torch_models, gpu) -> Iterator[Callable[[bool], LoopPool]]:
    model = torch_models(torch.float32)
    folder = graphs("float16") / "tiny" / "float16"
    made: list[LoopPool] = []

    def pool(cuda_graph: bool) -> LoopPool:
        memory = open_memory(gpu)
        runtimes = opened(folder, model.checkpoint.fingerprint, stream=memory.stream, cuda_graph=cuda_graph)
        made.append(onnxruntime_pool(runtimes["prefill"], runtimes["frame"], memory, cuda_graph=cuda_graph))
        return made[-1]

    yield pool
    for one in made:
        one.close()


def test_cuda_graphs_change_no_frame(pools, torch_models, record_property):
    prompt = torch_models(torch.float32).prompt
    plain, captured = pools(False).take(1, 256), pools(True).take(1, 256)
    expected = speak(plain, prompt)
    assert len(expected.unique()) > 100
    assert torch.equal(speak(captured, prompt), expected)
    assert torch.equal(speak(captured, prompt), expected)
    assert captured.describe()["captured"] == "around"
    record_property("capture_seconds", round(captured.capture_seconds, 3))


def test_two_loops_of_one_session_do_not_mix(pools, torch_models):
    prompt, pool = torch_models(torch.float32).prompt, pools(True)
    first, second, larger = pool.take(1, 256), pool.take(1, 256), pool.take(1, 512)
    expected = [speak(first, prompt, 20, seed) for seed in (1, 2)]
    begin(first, prompt, 1)
    begin(second, prompt, 2)
    for _ in range(20):
        first.launch()
        second.launch()
    first.synchronise()
    assert torch.equal(first.state.history[:20].cpu(), expected[0])
    assert torch.equal(second.state.history[:20].cpu(), expected[1])
    assert speak(larger, prompt, FRAMES, 1).shape == (FRAMES, 1, 9)
