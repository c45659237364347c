"""Pitch of known signals, and voices told apart."""

from __future__ import annotations

import numpy as np
import pytest

from fstrt_helpers.errors import AudioError
from fstrt_helpers.measure.voice import VoiceJudge, describe_voice, pitch


def buzz(hz: float, formant: float, seconds: float = 1.0, rate: int = 22050, seed: int = 0) -> np.ndarray:
    """A pulse train through one resonance, with a little noise: a vowel of a very simple speaker."""
    rng = np.random.default_rng(seed)
    n = int(seconds * rate)
    drift = hz * (1 + 0.03 * np.sin(2 * np.pi * 3 * np.arange(n) / rate + rng.uniform(0, 6)))
    phase = np.cumsum(drift / rate)
    pulses = (np.diff(np.floor(phase), prepend=0) > 0).astype(float)
    t = np.arange(400) / rate
    ring = np.exp(-t * 300) * np.cos(2 * np.pi * formant * t)
    return (np.convolve(pulses, ring)[:n] + 0.003 * rng.standard_normal(n)).astype(np.float32) * 0.2


@pytest.mark.parametrize("hz", [80, 120, 200, 330])
def test_pitch_of_a_known_vowel(hz):
    found = pitch(buzz(hz, 700), 22050)
    assert len(found) > 50
    assert np.median(found) == pytest.approx(hz, rel=0.03)


def test_noise_and_silence_have_no_pitch():
    noise = np.random.default_rng(0).standard_normal(22050).astype(np.float32) * 0.1
    assert len(pitch(noise, 22050)) < 5
    assert len(pitch(np.zeros(22050, np.float32), 22050)) == 0
    for wave in (noise, np.zeros(22050, np.float32), np.zeros(0, np.float32)):
        with pytest.raises(AudioError):
            describe_voice(wave, 22050)


def test_the_judge_tells_voices_apart_by_pitch_and_by_timbre():
    voices = {"low": (100, 700), "high": (190, 700), "bright": (100, 1500)}
    recordings = {name: [buzz(*shape, seed=s) for s in range(5)] for name, shape in voices.items()}
    judge = VoiceJudge(recordings, 22050)
    for name, shape in voices.items():
        for seed in range(10, 15):
            verdict = judge.judge(buzz(*shape, seconds=0.7, seed=seed), 22050)
            assert verdict.name == name
            assert verdict.margin > 1.5
