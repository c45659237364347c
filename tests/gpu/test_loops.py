"""The frame loop on a GPU: eager, captured, and through the Triton kernels it draws the same frames."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from fstrt_helpers.runtimes.buffers import open_memory
from fstrt_helpers.runtimes.fused import FusedFrame, fused_missing
from fstrt_helpers.runtimes.loop import FrameLoop, PlainStep
from fstrt_helpers.runtimes.pool import LoopPool, torch_pool
from fstrt_helpers.runtimes.state import HISTORY, FrameState
from fstrt_helpers.speech.device_generation import DeviceGeneration
from fstrt_helpers.speech.generation import SamplingSettings

pytestmark = pytest.mark.gpu
FRAMES = 60


def new_loop(model, kind: str, batch: int = 1, capacity: int = 256) -> FrameLoop:
    """``eager``, ``plain`` (captured) or ``fused`` (captured)."""
    device = model.runtimes["frame"].device
    state = FrameState(model.spec, model.config, device, batch, capacity, open_memory(device).empty)
    frame = model.runtimes["frame"].module
    if kind == "fused":
        if missing := fused_missing(model.config):
            pytest.skip(missing)
        step = FusedFrame(frame, state)
    else:
        step = PlainStep(frame, state, "all" if kind == "plain" else "nothing")
    return FrameLoop(model.runtimes["prefill"], step, state, torch.cuda.Stream(device))


def begin(loop: FrameLoop, prompt: torch.Tensor, seed: int = 3) -> FrameLoop:
    prompt = prompt.expand(loop.state.batch, -1, -1)
    loop.prefill(prompt[:, :, :-1])
    loop.begin(prompt[:, :, -1], prompt.shape[2] - 1, (0.7, 0.7, 1.2), seed)
    return loop


def speak(loop: FrameLoop, prompt: torch.Tensor, frames: int = FRAMES, seed: int = 3) -> torch.Tensor:
    begin(loop, prompt, seed)
    for _ in range(frames):
        loop.launch()
    loop.synchronise()
    return loop.state.history[:frames].cpu()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_capturing_changes_no_frame(torch_models, dtype, batch, record_property):
    model = torch_models(dtype)
    eager, plain = (new_loop(model, kind, batch) for kind in ("eager", "plain"))
    expected = speak(eager, model.prompt)
    assert len(expected.unique()) > 100
    assert torch.equal(speak(plain, model.prompt), expected)
    assert torch.equal(speak(plain, model.prompt), expected)  # a second time, through the same captured graph
    assert not torch.equal(speak(plain, model.prompt, seed=4), expected)
    assert eager.describe()["captured"] == "nothing" and plain.describe()["captured"] == "all"
    record_property("capture_seconds", round(plain.capture_seconds, 3))


@pytest.mark.parametrize("batch", [1, 3])
def test_fused_kernels_draw_the_same_frames_in_float32(torch_models, batch):
    model = torch_models(torch.float32)
    expected = speak(new_loop(model, "plain", batch), model.prompt)
    fused = new_loop(model, "fused", batch)
    assert torch.equal(speak(fused, model.prompt), expected)
    assert torch.equal(speak(fused, model.prompt), expected)


@pytest.mark.parametrize(
    ("dtype", "batch", "least"),
    [(torch.float32, 16, 0.99), (torch.float16, 3, 0.9), (torch.bfloat16, 3, 0.75)],
    ids=["float32", "float16", "bfloat16"],
)
def test_fused_kernels_agree_frame_by_frame(torch_models, dtype, batch, least, record_property):
    """Sums in another order are other roundings, so a draw may fall differently; so each frame begins alike."""
    model = torch_models(dtype)
    plain, fused = (begin(new_loop(model, kind, batch), model.prompt) for kind in ("plain", "fused"))
    tokens = frames = 0
    for _ in range(FRAMES):
        fused.continue_from(plain)
        plain.launch()
        fused.launch()
        plain.synchronise()
        fused.synchronise()
        same = plain.state.next == fused.state.next
        tokens, frames = tokens + same[:, 0].sum().item(), frames + same.all(dim=1).sum().item()
    record_property("equal_tokens", round(tokens / (batch * FRAMES), 4))
    record_property("equal_frames", round(frames / (batch * FRAMES), 4))
    assert tokens / (batch * FRAMES) >= least


@pytest.mark.parametrize("kind", ["eager", "plain", "fused"])
def test_growing_in_mid_speech_changes_nothing(torch_models, kind):
    model = torch_models(torch.float32)
    expected = speak(new_loop(model, kind, capacity=512), model.prompt)
    small, large = begin(new_loop(model, kind, capacity=256), model.prompt), new_loop(model, kind, capacity=512)
    for _ in range(25):
        small.launch()
    large.continue_from(small)
    for _ in range(FRAMES - 25):
        large.launch()
    large.synchronise()
    assert torch.equal(large.state.history[:FRAMES].cpu(), expected)


def test_readying_a_loop_in_mid_speech_keeps_its_contents(torch_models):
    model = torch_models(torch.float32)
    expected = speak(new_loop(model, "plain"), model.prompt, 30)
    first, second = begin(new_loop(model, "eager"), model.prompt), new_loop(model, "plain")
    for _ in range(10):
        first.launch()
    second._ready = True  # takes over first, captures after
    second.continue_from(first)
    second._ready = False
    second.make_ready()
    for _ in range(20):
        second.launch()
    second.synchronise()
    assert torch.equal(second.state.history[:30].cpu(), expected)


def test_columns_are_read_while_frames_run(torch_models, gpu):
    model = torch_models(torch.float16)
    memory = open_memory(gpu)
    columns, doubt = memory.page_locked((HISTORY, 1, 9), torch.int64), memory.page_locked((1,), torch.float32)
    loop = begin(new_loop(model, "plain"), model.prompt)
    events = []
    for block in range(5):
        for _ in range(4):
            loop.launch()
        events.append(loop.read(4 * block, 4 * block + 4, columns, doubt))
    for event in events:
        event.synchronize()
    assert torch.equal(columns[:20], loop.state.history[:20].cpu()) and doubt.item() == 0


def test_a_number_that_is_none_is_noticed(torch_models):
    model = torch_models(torch.float16)
    loop = begin(new_loop(model, "plain"), model.prompt)
    loop.launch()
    loop.synchronise()
    assert torch.isfinite(loop.state.doubt).item()
    for tensor in loop.state.kv.values():
        tensor.fill_(float("nan"))
    loop.launch()
    loop.synchronise()
    assert not torch.isfinite(loop.state.doubt).item()


def said(model, pool: LoopPool, budget: int, seed: int) -> np.ndarray:
    speaker = DeviceGeneration(pool, model.config, model.prompt[0].numpy(), SamplingSettings(), budget, seed, model.end)
    return np.array(list(speaker)).reshape(-1, 9)


@pytest.mark.parametrize("kernels", ["plain", "fused"])
def test_speech_is_the_same_at_every_capacity(torch_models, gpu, kernels):
    model = torch_models(torch.float32)
    if kernels == "fused" and (missing := fused_missing(model.config)):
        pytest.skip(missing)
    pool = torch_pool(model.runtimes, open_memory(gpu), kernels=kernels)
    expected = said(model, pool, 150, 5)
    assert len(expected) > 10
    for capacity in (512, 2048):
        larger = torch_pool(model.runtimes, open_memory(gpu), kernels=kernels)
        larger._serving = lambda columns, least=capacity: max(columns, least)
        assert np.array_equal(said(model, larger, 150, 5), expected)
        assert {loop.state.capacity for loop in larger.loops} == {capacity}


def test_loops_are_captured_while_others_speak(torch_models, gpu):
    """Eight threads on one pool: each captures its loop while the others run theirs."""
    model = torch_models(torch.float32)
    alone = torch_pool(model.runtimes, open_memory(gpu))
    expected = [said(model, alone, 40, seed) for seed in range(8)]
    assert len(alone.loops) == 1
    pool = torch_pool(model.runtimes, open_memory(gpu))
    together: list[np.ndarray | None] = [None] * 8

    def run(seed: int) -> None:
        together[seed] = said(model, pool, 40, seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(expected, together, strict=True))
    assert len(pool.loops) <= 8
