"""A frame loop as the harness drives it: a prompt, then frames, each enqueued and waited for."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...checkpoint import DualARConfig
from ...graphs.spec import kv_names
from ...model.dual_ar import causal_mask
from ...model.sampling import PENALTY_WINDOW
from ...runtimes.base import Runtime
from ..latency import LaunchTimes, time_launches

__all__ = ["SETTINGS", "Frames", "LoopFrames", "RuntimeLoop"]

SETTINGS = {"temperature": 0.7, "top_p": 0.7, "repetition_penalty": 1.2}
"""Upstream's defaults, for every candidate."""


class Frames(Protocol):
    """What the harness needs of a candidate.

    Attributes:
        capacity: Columns its KV cache has.
    """

    capacity: int

    def prefill(self, prompt: np.ndarray) -> None:
        """Takes a prompt, int64 [B, 9, S], and waits until the device is done with it."""

    def first(self, prompt: np.ndarray) -> None:
        """The same and the first frame after it."""

    def time(self, count: int, pipelined: int = 0) -> LaunchTimes:
        """Makes `count` frames, timed one by one, then `pipelined` ones in one go."""


class RuntimeLoop:
    """The frame loop over ``prefill`` and ``frame`` as :class:`~fstrt_helpers.speech.generation.Generation` runs them.

    Args:
        runtimes: ``prefill`` and ``frame``, open.
        config: Shape of the transformers.
        batch: Rows B.
        capacity: Columns C of the KV cache.
    """

    def __init__(self, runtimes: dict[str, Runtime], config: DualARConfig, *, batch: int, capacity: int) -> None:
        self._prefill, self._frame = runtimes["prefill"], runtimes["frame"]
        self._config, self._batch, self.capacity = config, batch, capacity
        self._device = self._frame.device
        self._noise_size = next(t.shape[1] for t in self._frame.spec.inputs if t.name == "noise")
        shape = (batch, config.n_local_heads, capacity, config.head_dim)
        dtype = self._frame.spec.inputs[-1].dtype
        self._kv = {n: torch.zeros(shape, dtype=dtype, device=self._device) for pair in kv_names(config) for n in pair}

    def prefill(self, columns: Tensor) -> None:
        """Fills the cache with all columns of a prompt but the last; int64 [B, 9, S]."""
        start = torch.zeros(self._batch, dtype=torch.int64, device=self._device)
        mask = causal_mask(start, columns.shape[2], self.capacity)
        self._prefill.run({"columns": columns.to(self._device), "start": start, "mask": mask, **self._kv})

    def begin(self, column: Tensor, start: int, settings: tuple[float, float, float], seed: int) -> None:
        """Sets the last column of the prompt, int64 [B, 9], its position, the sampler and the seed."""
        full = [torch.full((self._batch, 1), value, device=self._device) for value in (*settings, 1.0)]
        self._settings = dict(zip(("temperature", "top_p"), full, strict=False))
        self._penalty, self._off = full[2:]
        self._noise = torch.Generator().manual_seed(seed)
        self._column = column.to(self._device)[:, :, None]
        self._window = torch.zeros(*column.shape, PENALTY_WINDOW, dtype=torch.int64, device=self._device)
        self._position, self._step = start, 0

    def launch(self) -> None:
        """Makes one frame, the end token or not."""
        start = torch.full((self._batch,), self._position, dtype=torch.int64, device=self._device)
        noise = torch.empty(self._batch, self._noise_size).exponential_(1, generator=self._noise)
        tensors = {
            "column": self._column,
            "start": start,
            "mask": causal_mask(start, 1, self.capacity),
            "noise": noise.to(self._device),
            "window": self._window,
            "penalty": self._penalty if self._step else self._off,
            **self._settings,
            **self._kv,
        }
        self._column = self._frame.run(tensors)["next"][:, :, None]
        if self._step:
            self._window = torch.cat([self._window[:, :, 1:], self._column], dim=2)
        self._position, self._step = self._position + 1, self._step + 1

    def synchronise(self) -> None:
        """Waits for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class LoopFrames:
    """A loop of ours, with ``prefill``, ``begin``, ``launch`` and ``synchronise``, behind :class:`Frames`.

    Args:
        loop: The loop: :class:`RuntimeLoop` or :class:`~fstrt_helpers.runtimes.loop.FrameLoop`.
        capacity: Columns its KV cache has.
        seed: Of the noise.
        stream: CUDA stream that ``launch`` enqueues on; None on a CPU.
    """

    def __init__(self, loop: Any, *, capacity: int, seed: int, stream: torch.cuda.Stream | None = None) -> None:
        self._loop, self._stream, self._seed = loop, stream, seed
        self.capacity = capacity

    def prefill(self, prompt: np.ndarray) -> None:
        """See :class:`Frames`."""
        self._enqueue(prompt)
        self._loop.synchronise()

    def first(self, prompt: np.ndarray) -> None:
        """See :class:`Frames`; the host does not wait in between."""
        self._enqueue(prompt)
        self._loop.launch()
        self._loop.synchronise()

    def _enqueue(self, prompt: np.ndarray) -> None:
        columns = torch.from_numpy(prompt)
        last = columns.shape[2] - 1
        if last:
            self._loop.prefill(columns[:, :, :-1])
        self._loop.begin(columns[:, :, -1], last, tuple(SETTINGS.values()), self._seed)

    def time(self, count: int, pipelined: int = 0) -> LaunchTimes:
        """See :class:`Frames`. Pipelining means something on a GPU only."""
        together = pipelined if self._stream is not None else 0
        return time_launches(self._loop.launch, self._loop.synchronise, count, stream=self._stream, pipelined=together)
