"""Codes to samples in pieces, exactly as if they had been decoded at once.

Every convolution of the codec's decoder looks to the left only, so decoding a piece together with enough
frames before it gives the same samples (up to float rounding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..checkpoint import FRAME_SAMPLES, CodecConfig
from ..errors import NonFiniteOutput
from ..model.firefly import look_back
from ..runtimes.base import Runtime

__all__ = ["CodecStream", "left_context"]

LENGTH_STEP = 12  # frames; lengths T that are decoded lie this far apart


def left_context(config: CodecConfig) -> int:
    """Frames to the left that a decoded sample depends on, rounded up."""
    return math.ceil(look_back(config)[0])


class CodecStream:
    """Collects columns and hands out samples, the first ones early, later ones in larger pieces.

    Args:
        runtime: ``codec_decode``, open.
        context: Frames of left context, from :func:`left_context`.
        sizes: Frames per piece; the last entry repeats.
    """

    def __init__(self, runtime: Runtime, context: int, sizes: Sequence[int]) -> None:
        self._runtime, self._context, self._sizes = runtime, context, list(sizes)
        longest = context + max(sizes)
        self._lengths = [*range(sizes[0], longest, LENGTH_STEP), longest]
        self._codes: list[np.ndarray] = []  # context and frames not yet decoded, each [8]
        self._pending = 0

    def push(self, codes: np.ndarray) -> Callable[[], np.ndarray] | None:
        """Adds the codes [8] of one frame.

        Returns:
            When a piece is complete, what decodes it: call it, in any thread, for float32 samples. Else None.
        """
        self._codes.append(codes)
        self._pending += 1
        return self._take() if self._pending >= self._sizes[0] else None

    def flush(self) -> Callable[[], np.ndarray] | None:
        """What decodes the frames that are left, or None; forgets the context."""
        last = self._take() if self._pending else None
        self._codes.clear()
        return last

    def _take(self) -> Callable[[], np.ndarray]:
        count, fresh = len(self._codes), self._pending
        # Later frames change no earlier sample, so padding is free of error, and few lengths T occur: every
        # new one costs the back end a plan.
        length = next((n for n in self._lengths if n >= count), count)
        codes = np.zeros((1, len(self._codes[0]), length), dtype=np.int64)  # [1, 8, T]
        codes[0, :, :count] = np.stack(self._codes, axis=1)
        self._codes = self._codes[-self._context :]
        self._pending = 0
        if len(self._sizes) > 1:
            self._sizes.pop(0)

        def decode() -> np.ndarray:
            tensors = {"codes": torch.from_numpy(codes).to(self._runtime.device)}
            wave = self._runtime.run(tensors, skip=count - fresh)["waveform"][0, 0]
            samples = wave[: fresh * FRAME_SAMPLES].float().cpu().numpy()
            if not np.isfinite(samples).all():
                raise NonFiniteOutput(
                    "the waveform holds a sample that is no number",
                    where="codec_decode",
                    fix="use another precision or back end; FishSpeech falls back by itself unless strict=True",
                )
            return samples

        return decode
