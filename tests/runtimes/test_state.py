"""What leads from one frame to the next: window, penalty, mask, history, noise, and the watch for bad numbers."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.errors import RuntimeInputError

from .conftest import SETTINGS, new_state

DRAWN = [torch.arange(9)[None] + 100 * k for k in range(1, 5)]


def begun(model, start: int = 5, capacity: int = 32):
    state = new_state(model, capacity)
    state.begin(torch.full((1, 9), 3), torch.tensor([start]), *SETTINGS, seed=1)
    return state


def test_begin_sets_column_position_mask_and_sampler(random_model):
    state = begun(random_model)
    i = state.inputs
    assert i["column"].shape == (1, 9, 1) and (i["column"] == 3).all() and i["start"].tolist() == [5]
    assert i["mask"][0, 0, 0].tolist() == [slot <= 5 for slot in range(32)]
    assert i["temperature"].item() == pytest.approx(0.7) and i["top_p"].item() == pytest.approx(0.7)
    assert i["penalty"].item() == 1.0 and not i["window"].any()  # the first frame after the prompt has no penalty
    assert state.step.item() == 0 and state.doubt.item() == 0


def test_advance_leads_to_the_next_frame(random_model):
    state = begun(random_model)
    for number, drawn in enumerate(DRAWN, start=1):
        state.next.copy_(drawn)
        state.advance()
        assert torch.equal(state.inputs["column"][:, :, 0], drawn)
        assert torch.equal(state.history[number - 1], drawn)
        assert state.inputs["start"].tolist() == [5 + number]
        assert state.inputs["mask"].sum().item() == 6 + number
        assert state.inputs["penalty"].item() == pytest.approx(1.2)
    window = state.inputs["window"][0]
    assert torch.equal(window[:, -3:], torch.cat(DRAWN[1:]).T) and not window[:, :-3].any()  # never the first frame


def test_noise_follows_the_seed(random_model):
    draws = []
    for _ in range(2):
        state = begun(random_model)
        state.draw_noise()
        first = state.inputs["noise"].clone()
        state.draw_noise()
        draws.append((first, state.inputs["noise"].clone()))
    assert torch.equal(draws[0][0], draws[1][0]) and torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(*draws[0]) and (draws[0][0] > 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_key_in_the_new_slot_is_remembered(random_model, bad):
    state = begun(random_model)
    name = [n for n in state.kv if n.startswith("k_")][-1]
    state.kv[name][0, 0, 20, 0] = bad  # beyond the filled part: not looked at
    state.advance()
    assert state.doubt.item() == 0
    state.kv[name][0, 1, 6, 3] = bad
    state.advance()
    state.advance()
    assert not torch.isfinite(state.doubt).item()
    state.begin(torch.full((1, 9), 3), torch.tensor([5]), *SETTINGS, seed=1)
    assert state.doubt.item() == 0


def test_take_over_continues_at_a_larger_capacity(random_model):
    small, large = begun(random_model, start=20), new_state(random_model, 64)
    for tensor in small.kv.values():
        tensor.normal_()
    for tensor in large.kv.values():
        tensor.fill_(9.0)
    small.draw_noise()
    small.next.copy_(DRAWN[0])
    small.advance()
    large.take_over(small)
    for name, tensor in small.inputs.items():
        if name in small.kv:
            assert torch.equal(large.inputs[name][:, :, :32], tensor)
        elif name == "mask":
            assert large.inputs[name][0, 0, 0].tolist() == [slot <= 21 for slot in range(64)]
        else:
            assert torch.equal(large.inputs[name], tensor)
    assert torch.equal(large.history, small.history) and large.step.item() == 1
    for state in (small, large):
        state.draw_noise()
        state.next.copy_(DRAWN[1])
        state.advance()
    assert torch.equal(small.inputs["noise"], large.inputs["noise"])
    assert torch.equal(small.inputs["window"], large.inputs["window"])


def test_take_over_refuses_less_room_and_other_rows(random_model):
    with pytest.raises(RuntimeInputError, match="1 rows of 64 columns do not fit 1 of 32"):
        new_state(random_model, 32).take_over(new_state(random_model, 64))
    with pytest.raises(RuntimeInputError, match="do not fit"):
        new_state(random_model, 64, batch=2).take_over(new_state(random_model, 64))


def test_begin_beyond_the_capacity(random_model):
    with pytest.raises(RuntimeInputError, match="fills 32 columns, the cache has 32"):
        begun(random_model, start=32)


def test_all_tensors_that_a_graph_reads_come_from_the_allocator_given(random_model):
    from fstrt_helpers.runtimes.state import FrameState

    made: list[int] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        made.append(tensor.data_ptr())
        return tensor

    state = FrameState(random_model.spec, random_model.config, torch.device("cpu"), 2, 64, empty)
    assert {t.data_ptr() for t in (*state.inputs.values(), state.next, state.history, state.step)} <= set(made)
    before = {name: tensor.data_ptr() for name, tensor in state.inputs.items()}
    state.begin(torch.zeros(2, 9, dtype=torch.int64), torch.tensor([1, 2]), *SETTINGS, seed=0)
    state.draw_noise()
    state.advance()
    assert {name: tensor.data_ptr() for name, tensor in state.inputs.items()} == before
