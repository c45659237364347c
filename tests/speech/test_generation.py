"""Budget and loop detector of the frame loop."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from fstrt_helpers.errors import NonFiniteOutput, PromptTooLong
from fstrt_helpers.speech.generation import find_loop, frame_budget, require_sense


def columns(codes: list[int]) -> list[np.ndarray]:
    return [np.full(9, code) for code in codes]


@pytest.mark.parametrize("period", [1, 3, 16])
def test_a_repeating_tail_is_a_loop(period):
    unit = list(range(period))
    assert find_loop(columns([90, 91] + unit * 80)) == period


def test_varied_or_short_speech_is_no_loop():
    rng = np.random.default_rng(0)
    assert find_loop(columns(rng.integers(0, 1000, 300).tolist())) is None
    assert find_loop(columns([5] * 40)) is None  # a pause of 1.9 s
    assert find_loop(columns([5] * 200 + [6])) is None  # it moved on


def test_the_same_index_everywhere_is_no_speech():
    speech = np.random.default_rng(0).integers(0, 1000, (40, 9))
    require_sense(list(speech))
    still = np.tile(speech[:1], (40, 1))  # a pause repeats its frame, but its codebooks differ
    require_sense(list(still))
    for frames, raises in ((2, False), (3, True)):
        broken = speech.copy()
        broken[-frames:, 2:] = 688
        with pytest.raises(NonFiniteOutput, match="index 688") if raises else contextlib.nullcontext():
            require_sense(list(broken))


def test_budget_counts_prompt_and_frames():
    assert frame_budget(100, 2048, None) == 1024
    assert frame_budget(1900, 2048, None) == 148
    assert frame_budget(100, 2048, 7) == 7
    with pytest.raises(PromptTooLong, match=r"2040 of 2048 columns; 0\.4 s"):
        frame_budget(2040, 2048, None)
    assert frame_budget(1900, 2048, 149) == 148
    assert frame_budget(2040, 2048, 5) == 5
    with pytest.raises(PromptTooLong, match=r"0\.4 s of speech would fit, 0\.6 s are wanted"):
        frame_budget(2040, 2048, 12)
