"""Whose voice is it? Pitch and the average spectral envelope, compared with recordings of each candidate.

It downloads nothing and knows only the voices it is given; before it judges synthetic speech it should be seen to
tell the candidates' own recordings apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..audio import log_mel, resample
from ..checkpoint import SAMPLE_RATE
from ..errors import AudioError

__all__ = ["VoiceJudge", "VoiceVerdict", "describe_voice", "pitch"]

_RATE = 16_000
_WINDOW, _STEP = 640, 160  # 40 ms, 10 ms
_LOWEST, _HIGHEST = 60.0, 400.0  # Hz
_CEPSTRA = 20
_SPEECH_BINS = 80  # of 160 mel bins: up to 4.7 kHz, where a telephone recording still has something


def pitch(wave: np.ndarray, rate: int) -> np.ndarray:
    """Fundamental frequency of the voiced parts by normalised autocorrelation (Boersma 1993, without its path search).

    Args:
        wave: float [N], mono.
        rate: Hz.

    Returns:
        Hz, one value per voiced step of 10 ms; empty if nothing is voiced.
    """
    x = resample(np.asarray(wave, dtype=np.float32), rate, _RATE)
    if len(x) < _WINDOW:
        return np.zeros(0)
    frames = np.lib.stride_tricks.sliding_window_view(x, _WINDOW)[::_STEP]
    loud = np.sqrt((frames**2).mean(1)) > 0.2 * np.sqrt((x**2).mean())
    window = np.hanning(_WINDOW)
    size = 2 * _WINDOW

    def autocorrelation(rows: np.ndarray) -> np.ndarray:
        return np.fft.irfft(np.abs(np.fft.rfft(rows, size)) ** 2)[..., :_WINDOW]

    scores = autocorrelation((frames - frames.mean(1, keepdims=True)) * window) / autocorrelation(window)
    scores /= np.maximum(scores[:, :1], 1e-12)
    low, high = int(_RATE / _HIGHEST), int(_RATE / _LOWEST)
    section = scores[:, low : high + 1]
    # Of nearly equal peaks the shorter period is the fundamental; longer ones are its multiples.
    section = section - 0.01 * np.log2(np.arange(low, high + 1) / low)
    best = section.argmax(1)
    voiced = loud & (section.max(1) > 0.5)
    return _RATE / (best[voiced] + low)


def describe_voice(wave: np.ndarray, rate: int) -> np.ndarray:
    """Numbers that tell voices apart: mean and spread of log2 pitch, and mean mel-cepstra 1 to 20 of the loud parts.

    Cepstra: type-II cosine transform of the log-mel spectrum (Davis and Mermelstein 1980).

    Args:
        wave: float [N], mono, at least 0.3 s of speech.
        rate: Hz.

    Returns:
        float64 [22].

    Raises:
        AudioError: Nothing in it is voiced.
    """
    hz = np.log2(pitch(wave, rate)) if len(wave) else np.zeros(0)
    if len(hz) < 5:
        raise AudioError("there is no voiced speech in it", fix="give at least 0.3 s of speech")
    x = resample(np.asarray(wave, dtype=np.float32), rate, SAMPLE_RATE)
    mel = log_mel(torch.from_numpy(np.ascontiguousarray(x))[None])[0, :_SPEECH_BINS].double().numpy()  # [80, T]
    loud = mel.mean(0) > np.median(mel.mean(0))
    bins = (np.arange(_SPEECH_BINS) + 0.5) / _SPEECH_BINS
    basis = np.cos(np.pi * np.arange(1, _CEPSTRA + 1)[:, None] * bins) * np.sqrt(2 / _SPEECH_BINS)
    middle = np.median(hz)
    return np.concatenate([[middle, np.abs(hz - middle).mean()], basis @ mel[:, loud].mean(1)])


@dataclass(frozen=True)
class VoiceVerdict:
    """How far a recording is from each candidate.

    Attributes:
        name: The closest voice.
        distances: Root mean square of the differences in units of each feature's spread, by voice.
    """

    name: str
    distances: Mapping[str, float]

    @property
    def margin(self) -> float:
        """Distance of the second closest divided by that of the closest; 1 is a coin toss."""
        first, second = sorted(self.distances.values())[:2]
        return second / max(first, 1e-9)


class VoiceJudge:
    """Tells which of some voices a recording is closest to.

    Args:
        recordings: For each voice a few recordings, float [N], of different sentences.
        rate: Their sample rate in Hz.
    """

    def __init__(self, recordings: Mapping[str, Sequence[np.ndarray]], rate: int) -> None:
        features = {name: np.stack([describe_voice(w, rate) for w in waves]) for name, waves in recordings.items()}
        self._means = {name: rows.mean(0) for name, rows in features.items()}
        within = np.concatenate([rows - rows.mean(0) for rows in features.values()])
        self._spread = within.std(0) + 1e-6

    def judge(self, wave: np.ndarray, rate: int) -> VoiceVerdict:
        """Compares one recording, float [N] at `rate` Hz, with every voice."""
        here = describe_voice(wave, rate)
        distances = {
            name: float(np.sqrt((((here - mean) / self._spread) ** 2).mean())) for name, mean in self._means.items()
        }
        return VoiceVerdict(min(distances, key=distances.__getitem__), distances)
