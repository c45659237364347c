"""How far two runs of one model are apart: in the odds they draw from, and in sound."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..audio import log_mel
from ..errors import AudioError

__all__ = ["AUDIBLE_DB", "kl_divergence", "log_mel_distance"]

AUDIBLE_DB = 60.0
"""What lies further than this below the loudest moment is not heard beside it, and does not count."""


def kl_divergence(reference: Tensor, other: Tensor) -> np.ndarray:
    """Kullback-Leibler divergence of the distribution of `other` from that of `reference`, before any sampling rule.

    It sees what draws cannot: odds that moved without changing which id won this time.

    Args:
        reference: Logits, float [..., V].
        other: Logits, the same shape.

    Returns:
        float64 [...], in nats: 0 for equal distributions, NaN where a logit is no number.
    """
    p, q = (torch.log_softmax(logits.double(), dim=-1) for logits in (reference, other))
    return (p.exp() * (p - q)).sum(-1).numpy()


def log_mel_distance(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Log-spectral distance (Gray and Markel 1976) on the codec's own 160 mel bins.

    Both spectra are cut off :data:`AUDIBLE_DB` below the loudest bin of the reference; bins and steps in which neither
    is above that do not count, so that silence neither hides nor makes a difference.

    Args:
        reference: Samples at 44.1 kHz, float32 [N], N at least 1024.
        other: Samples of the same sounds, float32 [N].

    Returns:
        float64, one value in dB for each step of 512 samples with something to hear: the root mean square over its
        bins. All NaN if a sample is no number.

    Raises:
        AudioError: The two are not of the same length.
    """
    if reference.shape != other.shape:
        raise AudioError(
            f"one waveform has {reference.shape[-1]} samples, the other {other.shape[-1]}",
            fix="decode both from the same codes",
        )
    if not (np.isfinite(reference).all() and np.isfinite(other).all()):
        return np.full(len(reference) // 512, np.nan)
    pair = torch.from_numpy(np.stack([reference, other]).astype(np.float32))
    a, b = (log_mel(pair).double() * (20 / np.log(10))).numpy()  # dB, [160, T]
    floor = a.max() - AUDIBLE_DB
    heard = (a > floor) | (b > floor)
    squares = np.where(heard, (np.maximum(a, floor) - np.maximum(b, floor)) ** 2, 0.0)
    counts = heard.sum(axis=0)
    return np.sqrt(squares.sum(axis=0)[counts > 0] / counts[counts > 0])
