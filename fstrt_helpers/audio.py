"""Waveforms in and out of the codec: load, resample, log-mel."""

from __future__ import annotations

import functools
import io
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .checkpoint import SAMPLE_RATE
from .errors import AudioError

__all__ = ["HOP", "N_FFT", "load_audio", "log_mel", "mel_filterbank", "resample"]

N_FFT = 2048
HOP = 512
MEL_BINS = 160


def _hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Slaney's mel scale: linear below 1 kHz, logarithmic above (Auditory Toolbox, 1998)."""
    linear = hz * 3 / 200
    return np.where(hz < 1000, linear, 15 + 27 * np.log(np.maximum(hz, 1000) / 1000) / np.log(6.4))


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))


@functools.cache
def mel_filterbank(bins: int = MEL_BINS, rate: int = SAMPLE_RATE, n_fft: int = N_FFT) -> np.ndarray:
    """Triangular filters of unit area on Slaney's mel scale, 0 Hz to the Nyquist frequency.

    Returns:
        float32 [n_fft // 2 + 1, bins].
    """
    edges = _mel_to_hz(np.linspace(0, _hz_to_mel(np.array(rate / 2)), bins + 2))  # [bins + 2] Hz
    freqs = np.linspace(0, rate / 2, n_fft // 2 + 1)[:, None]  # [n_fft / 2 + 1, 1] Hz
    rising = (freqs - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - freqs) / (edges[2:] - edges[1:-1])
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (edges[2:] - edges[:-2])).astype(np.float32)


@functools.cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.hann_window(N_FFT, device=device), torch.from_numpy(mel_filterbank()).to(device)


def log_mel(wave: Tensor) -> Tensor:
    """The codec encoder's input.

    Magnitude STFT (Hann 2048, hop 512, no centring, reflection of 768 samples on both sides) through
    :func:`mel_filterbank`, natural logarithm with a floor of 1e-5.

    Args:
        wave: float32 [B, N] at 44.1 kHz in [-1, 1], N at least 1024.

    Returns:
        float32 [B, 160, N // 512].
    """
    window, bank = _tables(wave.device)
    side = (N_FFT - HOP) // 2
    padded = F.pad(wave.float()[:, None], (side, side), mode="reflect")[:, 0]
    spec = torch.stft(padded, N_FFT, HOP, window=window, center=False, return_complex=True)
    power = spec.real.square() + spec.imag.square()
    magnitude = (power + 1e-6).sqrt()  # [B, F, T]
    return (magnitude.mT @ bank).mT.clamp(min=1e-5).log()


def resample(wave: np.ndarray, rate: int, target: int = SAMPLE_RATE) -> np.ndarray:
    """Resamples float32 [N] from ``rate`` to ``target`` Hz with libsoxr at its high-quality setting."""
    if rate == target:
        return wave.astype(np.float32, copy=False)
    import soxr

    return soxr.resample(wave.astype(np.float32, copy=False), rate, target, quality="HQ")


def load_audio(source: str | os.PathLike[str] | bytes, target: int = SAMPLE_RATE) -> np.ndarray:
    """Reads a WAV, FLAC, OGG or MP3 file as mono at ``target`` Hz.

    Returns:
        float32 [N]. Several channels are averaged.

    Raises:
        AudioError: The file is missing, is no sound file, or holds no sample.
    """
    import soundfile

    where = "the bytes given" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise AudioError("the audio file does not exist", where=where, fix="check the path")
    try:
        handle = io.BytesIO(source) if isinstance(source, bytes) else source
        wave, rate = soundfile.read(handle, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f"this is not a sound file that can be read ({error.error_string})",
            where=where,
            fix="give a WAV, FLAC, OGG or MP3 file; `ffmpeg -i INPUT voice.wav` converts others",
        ) from error
    if not len(wave):
        raise AudioError("the audio file holds no samples", where=where, fix="record it again")
    return resample(wave.mean(axis=1), rate, target)
