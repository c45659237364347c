"""Distances with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import AudioError
from fstrt_helpers.graphs.parity import comparable
from fstrt_helpers.measure.distances import kl_divergence, log_mel_distance

RATE = 44_100


def noise(seconds: float = 0.5, level: float = 0.1) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(int(seconds * RATE)) * level).astype(np.float32)


def test_draws_after_a_difference_do_not_count():
    a = np.zeros((3, 8), dtype=np.int64)
    b = a.copy()
    b[1, 2], b[1, 5], b[2, 0] = 7, 7, 7
    counts = comparable(a, b)
    assert counts[0].all()
    assert counts[1].tolist() == [True] * 3 + [False] * 5
    assert counts[2].tolist() == [True] + [False] * 7


def test_divergence_of_known_distributions():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    expected = 0.5 * np.log(2) + 0.25 * np.log(0.5)
    found = kl_divergence(torch.stack([p.log() + 3, p.log()]), torch.stack([q.log(), p.log() - 5]))
    assert found == pytest.approx([expected, 0], abs=1e-7)
    assert np.isnan(kl_divergence(p.log(), torch.tensor([0.0, float("nan"), 0.0])))


def test_twice_as_loud_is_six_decibels_everywhere():
    steps = log_mel_distance(noise(), 2 * noise())
    assert len(steps) == int(0.5 * RATE) // 512
    assert steps == pytest.approx(20 * np.log10(2), abs=0.02)


def test_equal_is_zero_and_what_nobody_hears_does_not_count():
    wave = noise(1.0)
    wave[RATE // 2 :] = 0
    assert not log_mel_distance(wave, wave).any()
    hiss = wave + noise(1.0, 1e-5)  # 80 dB below
    assert log_mel_distance(wave, hiss).max() < 0.05
    crackle = wave + noise(1.0, 1e-2) * (np.arange(RATE) > RATE // 2)
    assert log_mel_distance(wave, crackle).max() > 20


def test_no_numbers_and_unequal_lengths():
    wave = noise()
    broken = wave.copy()
    broken[100] = np.nan
    assert np.isnan(log_mel_distance(wave, broken)).all()
    with pytest.raises(AudioError, match="22050 samples, the other 22049"):
        log_mel_distance(wave, wave[:-1])
