"""The frame loop of :mod:`fstrt_helpers.speech.generation` for a GPU: the host reads a few frames late.

Codes never come back to the host on the way from one frame to the next. They are copied in blocks beside the running
frames, so the end of the speech is seen a few frames after it was drawn; what was computed beyond it is dropped.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch

from ..checkpoint import DualARConfig
from ..errors import NonFiniteOutput
from ..runtimes.loop import FrameLoop
from ..runtimes.pool import LoopPool
from ..runtimes.state import HISTORY
from .cache import PrefixCache, fitting_capacity, require_finite
from .generation import SamplingSettings, find_loop, require_sense

__all__ = ["DeviceGeneration"]

BLOCK = 4  # frames per copy to the host; two blocks are in flight, so at most 7 frames are computed in vain
FIRST_ROOM = 64  # frames a cache that costs what it holds has room for at first


class DeviceGeneration:
    """Speaks one piece of text: iterate to get columns int64 [9], then read ``stop_reason``.

    Same as :class:`fstrt_helpers.speech.generation.Generation`, but for where the noise is made: on the device, so the
    same seed gives another, equally good, speech than on a CPU.

    Args:
        pool: Frame loops.
        config: Shape of the transformers.
        prompt: int64 [9, S].
        settings: Sampling settings.
        budget: Most frames to produce.
        seed: Seed of the noise.
        im_end_id: Token that ends the turn.
        shared: Columns at the beginning of the prompt that other prompts have too; they are prefilled by themselves.
        prefixes: Where their keys and values are kept.

    Raises:
        NonFiniteOutput: While iterating: a value is no number.

    Attributes:
        stop_reason: ``eos``, ``length`` or ``loop``; None while running.
        prefill_seconds: Wall-clock time of the prompt.
        frame_seconds: Wall-clock time of all frames.
    """

    def __init__(
        self,
        pool: LoopPool,
        config: DualARConfig,
        prompt: np.ndarray,
        settings: SamplingSettings,
        budget: int,
        seed: int,
        im_end_id: int,
        shared: int = 0,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self._pool, self._config, self._settings = pool, config, settings
        self._prompt, self._budget, self._seed, self._im_end = prompt, budget, seed, im_end_id
        self._shared, self._prefixes = shared, prefixes or PrefixCache(0)
        self.stop_reason: str | None = None
        self.prefill_seconds = 0.0
        self.frame_seconds = 0.0

    def __iter__(self) -> Iterator[np.ndarray]:
        length = self._prompt.shape[1]
        room = self._budget if self._pool.reads_prefix else min(self._budget, FIRST_ROOM)
        loop = self._pool.take(1, fitting_capacity(length + room, self._config))
        held = [loop]
        try:
            loop.make_ready()
            began = time.perf_counter()
            prompt = torch.from_numpy(self._prompt)[None].to(loop.state.device)  # [1, 9, S]
            kept = self._prefill(loop, prompt[:, :, :-1])
            s = self._settings
            loop.begin(prompt[:, :, -1], length - 1, (s.temperature, s.top_p, s.repetition_penalty), self._seed)
            loop.synchronise()
            del kept  # not before what was copied from it has been copied
            self.prefill_seconds = time.perf_counter() - began
            yield from self._frames(held, length)
        finally:
            held[0].synchronise()
            self._pool.give(held[0])

    def _prefill(self, loop: FrameLoop, columns: torch.Tensor) -> object:
        shared, kept = self._shared, None
        if loop.stream is not None:
            loop.stream.wait_stream(torch.cuda.current_stream(loop.state.device))
        with contextlib.nullcontext() if loop.stream is None else torch.cuda.stream(loop.stream):
            if shared:
                kept = self._prefixes.fill(
                    self._prompt[:, :shared], loop.state.kv, lambda: loop.prefill(columns[:, :, :shared])
                )
            loop.prefill(columns[:, :, shared:], shared)
            require_finite(loop.state.kv, shared, columns.shape[2])
        return kept

    def _frames(self, held: list[FrameLoop], length: int) -> Iterator[np.ndarray]:
        columns = self._pool.page_locked((HISTORY, 1, len(self._prompt)), torch.int64)
        doubt = self._pool.page_locked((1,), torch.float32)
        flying: deque[tuple[int, int, torch.cuda.Event | None]] = deque()
        launched = 0
        spoken: list[np.ndarray] = []
        began = time.perf_counter()
        while True:
            while len(flying) < 2 and launched < self._budget:
                held[0] = self._with_room(held[0], length - 1 + launched)
                free = held[0].state.capacity - (length - 1 + launched)
                count = min(BLOCK, self._budget - launched, free)
                for _ in range(count):
                    held[0].launch()
                flying.append((launched, launched + count, held[0].read(launched, launched + count, columns, doubt)))
                launched += count
            if not flying:
                break
            first, last, event = flying.popleft()
            if event is not None:
                event.synchronize()
            if not torch.isfinite(doubt).item():
                raise NonFiniteOutput(
                    f"a value that is no number within frames {first} to {last - 1}",
                    where="frame",
                    fix="use another precision or back end; FishSpeech falls back by itself unless strict=True",
                )
            for column in columns[first:last, 0].numpy().copy():
                if column[0] == self._im_end:
                    self._stop("eos", began)
                    return
                spoken.append(column)
                require_sense(spoken)
                self.frame_seconds += time.perf_counter() - began
                yield column
                began = time.perf_counter()
                if find_loop(spoken):
                    self._stop("loop", began)
                    return
        self._stop("length", began)

    def _stop(self, reason: str, began: float) -> None:
        self.stop_reason = reason
        self.frame_seconds += time.perf_counter() - began

    def _with_room(self, loop: FrameLoop, position: int) -> FrameLoop:
        """The loop, or one of a larger capacity that goes on where it is."""
        if position < loop.state.capacity:
            return loop
        larger = self._pool.take(1, fitting_capacity(position + 1, self._config))
        larger.continue_from(loop)
        self._pool.give(loop)
        return larger
