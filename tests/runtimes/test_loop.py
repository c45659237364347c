"""The frame loop on a CPU, where it must draw what the host-driven loop draws."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.errors import RuntimeInputError
from fstrt_helpers.runtimes.state import HISTORY
from fstrt_helpers.speech.generation import Generation, SamplingSettings

from .conftest import begin, new_loop, speak


def host_driven(model, frames: int, seed: int) -> torch.Tensor:
    """int64 [frames, 1, 9], by :mod:`fstrt_helpers.speech.generation`."""
    prompt = model.prompt[0].numpy()
    columns = list(Generation(model.runtimes, model.config, prompt, SamplingSettings(), frames, seed, model.end))
    return torch.stack([torch.from_numpy(column) for column in columns])[:, None]


def test_draws_what_the_host_driven_loop_draws(tiny_model):
    expected = host_driven(tiny_model, 25, seed=7)
    assert len(expected) == 25 and len(expected.unique()) > 60
    assert torch.equal(speak(new_loop(tiny_model, 128), tiny_model.prompt, 25, seed=7), expected)


def test_a_loop_can_be_used_again(random_model):
    loop = new_loop(random_model)
    first = speak(loop, random_model.prompt, 20, seed=1)
    other = speak(loop, random_model.prompt, 20, seed=2)
    assert torch.equal(speak(loop, random_model.prompt, 20, seed=1), first)
    assert not torch.equal(first, other)


def test_the_capacity_changes_nothing(random_model):
    small, large = (speak(new_loop(random_model, capacity), random_model.prompt, 20) for capacity in (96, 512))
    assert torch.equal(small, large)


def test_each_row_is_what_the_graph_draws_from_its_inputs(random_model):
    loop = begin(new_loop(random_model, batch=3), random_model.prompt)
    for _ in range(5):
        loop.launch()
    loop.state.draw_noise()
    inputs = {name: tensor.clone() for name, tensor in loop.state.inputs.items()}
    loop._step.launch()
    assert not torch.equal(loop.state.next[0], loop.state.next[1])  # each row has noise of its own
    for row in range(3):
        alone = random_model.runtimes["frame"].run({name: t[row : row + 1].clone() for name, t in inputs.items()})
        assert torch.equal(alone["next"][0], loop.state.next[row])


def test_prefill_in_two_pieces(random_model):
    whole, pieces = new_loop(random_model), new_loop(random_model)
    prompt = random_model.prompt
    expected = speak(whole, prompt, 15)
    pieces.prefill(prompt[:, :, :10])
    pieces.prefill(prompt[:, :, 10:-1], start=10)
    pieces.begin(prompt[:, :, -1], prompt.shape[2] - 1, (0.7, 0.7, 1.2), 7)
    for _ in range(15):
        pieces.launch()
    assert torch.equal(pieces.state.history[:15], expected)


def test_growing_in_mid_speech_changes_nothing(random_model):
    expected = speak(new_loop(random_model, 256), random_model.prompt, 40)
    small = begin(new_loop(random_model, 96), random_model.prompt)
    for _ in range(18):
        small.launch()
    large = new_loop(random_model, 256)
    large.continue_from(small)
    for _ in range(22):
        large.launch()
    assert torch.equal(large.state.history[:40], expected)


def test_read_copies_columns_to_the_same_places(random_model):
    loop = begin(new_loop(random_model), random_model.prompt)
    columns, doubt = torch.zeros(HISTORY, 1, 9, dtype=torch.int64), torch.ones(1)
    for _ in range(6):
        loop.launch()
    assert loop.read(2, 6, columns, doubt) is None  # nothing to wait for on a CPU
    assert torch.equal(columns[2:6], loop.state.history[2:6]) and not columns[:2].any()
    assert doubt.item() == 0


def test_nothing_is_captured_on_a_cpu(random_model):
    loop = new_loop(random_model)
    loop.make_ready()
    loop.make_ready()
    assert loop.capture_seconds == 0
    assert loop.describe() == {"batch": 1, "capacity": 128, "captured": "nothing"}
    loop.synchronise()


@pytest.mark.parametrize(
    ("columns", "start", "rows"), [(128, 0, 1), (100, 28, 1), (10, 0, 2)], ids=["too long", "too far on", "other rows"]
)
def test_prefill_that_does_not_fit(random_model, columns, start, rows):
    prompt = torch.zeros(rows, 9, columns, dtype=torch.int64)
    with pytest.raises(RuntimeInputError, match="do not fit 1 rows of 128"):
        new_loop(random_model).prefill(prompt, start)


def test_a_prompt_of_one_column_needs_no_prefill(random_model):
    column = random_model.prompt[:, :, :1]
    assert speak(new_loop(random_model), column, 4).shape == (4, 1, 9)
