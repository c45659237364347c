"""PyTorch runtimes on a CPU: of `tiny`, which speaks, and of a small checkpoint with random weights, which babbles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fstrt_helpers.checkpoint import Checkpoint, find_checkpoint
from fstrt_helpers.model.frame import legal_rows
from fstrt_helpers.runtimes.loop import FrameLoop, PlainStep
from fstrt_helpers.runtimes.state import FrameState
from fstrt_helpers.runtimes.torch import torch_runtimes
from fstrt_helpers.text.prompt import build_prompt

from ..checkpoints import write_random_checkpoint

SETTINGS = (0.7, 0.7, 1.2)


def opened(checkpoint: Checkpoint) -> SimpleNamespace:
    """Checkpoint, its runtimes, and a prompt [1, 9, S]."""
    tokenizer, dual_ar = checkpoint.tokenizer(), checkpoint.load_dual_ar()
    prompt = build_prompt(tokenizer, "The boat sails at noon.", [], checkpoint.config.num_codebooks)
    runtimes = torch_runtimes(dual_ar, checkpoint.load_codec(), legal_rows(dual_ar, tokenizer.im_end_id))
    return SimpleNamespace(
        checkpoint=checkpoint,
        config=checkpoint.config,
        runtimes=runtimes,
        spec=runtimes["frame"].spec,
        end=tokenizer.im_end_id,
        prompt=torch.from_numpy(prompt)[None],
    )


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return opened(find_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("loops") / "random")))


@pytest.fixture(scope="session")
def tiny_model() -> SimpleNamespace:
    return opened(find_checkpoint("tiny"))


def new_state(model: SimpleNamespace, capacity: int = 128, batch: int = 1) -> FrameState:
    return FrameState(model.spec, model.config, torch.device("cpu"), batch, capacity)


def new_loop(model: SimpleNamespace, capacity: int = 128, batch: int = 1) -> FrameLoop:
    state = new_state(model, capacity, batch)
    return FrameLoop(model.runtimes["prefill"], PlainStep(model.runtimes["frame"].module, state), state)


def begin(loop: FrameLoop, prompt: torch.Tensor, seed: int = 7) -> FrameLoop:
    """Prefills and sets everything for the first frame."""
    prompt = prompt.expand(loop.state.batch, -1, -1)
    loop.prefill(prompt[:, :, :-1])
    loop.begin(prompt[:, :, -1], prompt.shape[2] - 1, SETTINGS, seed)
    return loop


def speak(loop: FrameLoop, prompt: torch.Tensor, frames: int, seed: int = 7) -> torch.Tensor:
    """The first frames, int64 [frames, B, 9]."""
    begin(loop, prompt, seed)
    for _ in range(frames):
        loop.launch()
    return loop.state.history[:frames].clone()
