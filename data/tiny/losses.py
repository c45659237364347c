"""Signals on the GPU: resampling by polyphase convolution, and the spectral distances that train the codec."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fstrt_helpers.audio import mel_filterbank

__all__ = ["RMS", "Resampler", "SpectralLoss", "normalise_rms"]

RMS = 0.08  # loudness of all speech the codec hears, over the whole utterance


def normalise_rms(wave: Tensor, sizes: Tensor) -> Tensor:
    """Scales each row of [B, N], of which only the first ``sizes`` samples are speech, to the common loudness."""
    energy = wave.square().sum(1) / sizes
    gain = RMS / energy.sqrt().clamp(min=1e-4)
    return (wave * gain[:, None]).clamp(-1, 1)


class Resampler(nn.Module):
    """16 kHz to 44.1 kHz: 441 windowed-sinc filters, one per output phase of 160 inputs.

    Args:
        zeros: Zero crossings of the sinc on either side; the pass band ends at 0.95 of 8 kHz.
    """

    def __init__(self, up: int = 441, down: int = 160, zeros: int = 24) -> None:
        super().__init__()
        self.up, self.down = up, down
        self.side = zeros + 1
        taps = torch.arange(-self.side, down + self.side, dtype=torch.float64)  # input positions relative to the block
        centre = torch.arange(up, dtype=torch.float64) * down / up
        distance = taps[None] - centre[:, None]  # [441, taps]
        window = torch.where(distance.abs() < zeros, torch.cos(distance / zeros * math.pi / 2).square(), 0.0)
        kernel = 0.95 * torch.sinc(0.95 * distance) * window
        self.register_buffer("kernel", kernel.float()[:, None], persistent=False)

    def forward(self, wave: Tensor) -> Tensor:  # [B, N] -> [B, ceil(N / 160) · 441]
        blocks = -(-wave.shape[1] // self.down)
        padded = F.pad(wave, (self.side, blocks * self.down - wave.shape[1] + self.side))
        return F.conv1d(padded[:, None], self.kernel, stride=self.down).mT.flatten(1)


class SpectralLoss(nn.Module):
    """Distance of two waveforms by STFT magnitudes and log-mel bands at several resolutions.

    Magnitudes are scaled so that noise has the same level at every window length. The source has nothing above
    8 kHz, so logarithms are compared below 8.5 kHz only; linear magnitudes over the full band keep the rest silent.

    Args:
        rate: Sample rate in Hz.
        floor: Magnitude (noise level per sample) under which differences stop to count in the logarithms.
    """

    FFTS = (256, 512, 1024, 2048)
    MELS: ClassVar[dict[int, int]] = {512: 48, 1024: 80, 2048: 128}
    TOP_HZ = 8500

    def __init__(self, rate: int = 44_100, floor: float = 4e-4) -> None:
        super().__init__()
        self.floor = floor
        for n in self.FFTS:
            window = torch.hann_window(n)
            self.register_buffer(f"window{n}", window / window.square().sum().sqrt(), persistent=False)
        for n, bins in self.MELS.items():
            bank = mel_filterbank(bins * 3 // 2, rate, n)
            top = np.linspace(0, rate / 2, n // 2 + 1)[bank.argmax(0)] < self.TOP_HZ
            bank = bank[:, top & (bank.sum(0) > 0)]
            self.register_buffer(f"bank{n}", torch.from_numpy(bank / bank.sum(0)), persistent=False)
        self.cut = {n: math.ceil(self.TOP_HZ / rate * n) for n in self.FFTS}

    def _magnitude(self, wave: Tensor, n: int) -> Tensor:  # [B, N] -> [B, F, T]
        spec = torch.stft(wave, n, n // 4, window=getattr(self, f"window{n}"), center=False, return_complex=True)
        return (spec.real.square() + spec.imag.square() + 1e-9).sqrt()

    def forward(self, ours: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compares float32 [B, N] with [B, N]; returns the loss and its log-mel part (nepers)."""
        stft = ours.new_zeros(())
        mel = ours.new_zeros(())
        for n in self.FFTS:
            a, b = self._magnitude(ours, n), self._magnitude(target, n)
            low_a, low_b = a[:, : self.cut[n]], b[:, : self.cut[n]]
            stft = stft + (torch.log(low_a + self.floor) - torch.log(low_b + self.floor)).abs().mean()
            stft = stft + 20 * (a - b).abs().mean()
            if n in self.MELS:
                bank = getattr(self, f"bank{n}")
                pair = [torch.log((m.mT @ bank).clamp(min=self.floor)) for m in (a, b)]
                mel = mel + (pair[0] - pair[1]).abs().mean()
        mel = mel / len(self.MELS)
        return stft / len(self.FFTS) + 4 * mel, mel
