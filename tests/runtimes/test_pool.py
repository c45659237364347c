"""Loops are reused, never shared, and handed out in the capacities that can be had."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.errors import ParameterError, ProfileError
from fstrt_helpers.runtimes.pool import LoopPool, torch_pool
from fstrt_helpers.runtimes.tensorrt_files import serving

from .conftest import new_loop, speak


@pytest.fixture
def pool(random_model) -> LoopPool:
    return torch_pool(random_model.runtimes, None)


def test_a_loop_that_was_given_back_is_reused(pool):
    first = pool.take(1, 128)
    second = pool.take(1, 128)
    assert first is not second
    pool.give(first)
    assert pool.take(1, 128) is first
    pool.give(second)
    assert pool.take(1, 256) is not second and pool.take(2, 128) is not second
    assert [(loop.state.batch, loop.state.capacity) for loop in pool.loops] == [(1, 128), (1, 128), (1, 256), (2, 128)]


def test_close_forgets_all_loops(pool):
    loop = pool.take(1, 128)
    pool.give(loop)
    pool.close()
    assert pool.loops == [] and pool.take(1, 128) is not loop


def test_its_loops_speak(pool, random_model):
    expected = speak(new_loop(random_model), random_model.prompt, 10)
    assert torch.equal(speak(pool.take(1, 128), random_model.prompt, 10), expected)
    assert pool.facts["kernels"].startswith("PyTorch's") and not pool.reads_prefix


def test_page_locked_memory_is_ordinary_memory_on_a_cpu(pool):
    tensor = pool.page_locked((3, 2), torch.int64)
    assert tensor.shape == (3, 2) and tensor.dtype == torch.int64 and tensor.device.type == "cpu"


@pytest.mark.parametrize("kernels", ["cuda", "", "Fused"])
def test_unknown_kernels(random_model, kernels):
    with pytest.raises(ParameterError, match="there are no kernels"):
        torch_pool(random_model.runtimes, None, kernels=kernels)


def test_fused_kernels_that_cannot_run(random_model):
    with pytest.raises(ParameterError, match="the fused kernels cannot run: "):  # heads 8 wide, and no Triton as a rule
        torch_pool(random_model.runtimes, None, kernels="fused")


def test_capacities_that_exist_are_handed_out_in_place_of_smaller_ones(random_model):
    pool = LoopPool(
        lambda batch, capacity: new_loop(random_model, capacity, batch),
        reads_prefix=False,
        memory=None,
        facts={},
        serving=lambda columns: serving((128, 512), columns),
    )
    loop = pool.take(1, 100)
    assert loop.state.capacity == 128
    pool.give(loop)
    assert pool.take(1, 60) is loop  # found again, not made again
    assert pool.take(1, 256).state.capacity == 512
    with pytest.raises(ProfileError, match="513 columns of KV cache are wanted; the largest engine there is has 512"):
        pool.take(1, 513)
    assert len(pool.loops) == 2
