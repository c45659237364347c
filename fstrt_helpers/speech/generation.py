"""The frame loop: a prompt goes in, columns of codes come out, one frame (46.4 ms of audio) at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES, SAMPLE_RATE, DualARConfig
from ..errors import NonFiniteOutput, ParameterError, PromptTooLong
from ..model.dual_ar import causal_mask
from ..model.sampling import PENALTY_WINDOW
from ..runtimes.base import Runtime
from .cache import KVBuffers, PrefixCache, require_finite

__all__ = ["FRAMES_PER_SECOND", "Generation", "SamplingSettings", "find_loop", "frame_budget", "require_sense"]

FRAMES_PER_SECOND = SAMPLE_RATE / FRAME_SAMPLES
LONGEST_CHUNK = 1024  # frames; upstream's default limit for one generation
LEAST_BUDGET = 43  # frames; less than two seconds of room is not worth starting


@dataclass(frozen=True)
class SamplingSettings:
    """How the next frame is drawn. The defaults are those of upstream's API.

    Attributes:
        temperature: Above 0, at most 2. Low is steadier, high is livelier.
        top_p: Above 0, at most 1: share of probability that is kept.
        repetition_penalty: At least 1, at most 2: lowers what occurred in the last 16 frames; 1 is off.
    """

    temperature: float = 0.7
    top_p: float = 0.7
    repetition_penalty: float = 1.2

    def __post_init__(self) -> None:
        ranges = {"temperature": (0, 2, "above 0"), "top_p": (0, 1, "above 0"), "repetition_penalty": (1, 2, "from 1")}
        for name, (low, high, words) in ranges.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            above = number and (value >= low if name == "repetition_penalty" else value > low)
            if not (above and value <= high):
                raise ParameterError(f"{name} is {value!r}", fix=f"give a number {words} to {high}")


def frame_budget(prompt_columns: int, max_seq_len: int, limit: int | None) -> int:
    """Frames that may be generated after a prompt: as many as fit, at most 1024.

    Args:
        prompt_columns: Length S of the prompt.
        max_seq_len: Columns the model was made for.
        limit: Most frames the caller allows; None for no limit.

    Raises:
        PromptTooLong: There is no room for two seconds, or for `limit` frames if that is less.
    """
    room = max_seq_len - prompt_columns
    limit = LONGEST_CHUNK if limit is None else limit
    wanted = min(LEAST_BUDGET, limit)
    if room < wanted:
        raise PromptTooLong(
            f"the prompt takes {prompt_columns} of {max_seq_len} columns; {max(room, 0) / FRAMES_PER_SECOND:.1f} s of "
            f"speech would fit, {wanted / FRAMES_PER_SECOND:.1f} s are wanted",
            fix="use a shorter reference voice, shorter text chunks, or a smaller max_seconds",
        )
    return min(room, LONGEST_CHUNK, limit)


def find_loop(columns: list[np.ndarray], *, longest_period: int = 16, span: int = 43) -> int | None:
    """Looks for frames that repeat to the end.

    Args:
        columns: Columns [9] so far.
        longest_period: Longest repeating unit in frames.
        span: Frames that must be covered by the repetition, about two seconds.

    Returns:
        The period in frames if the last ``span`` columns repeat with it, else None.
    """
    if len(columns) < span + longest_period:
        return None
    tail = np.stack(columns[-(span + longest_period) :])
    for period in range(1, longest_period + 1):
        if np.array_equal(tail[-span:], tail[-span - period : -period]):
            return period
    return None


def require_sense(columns: list[np.ndarray], *, frames: int = 3) -> None:
    """Looks for what a sampler makes of logits that are no numbers.

    Overflow behind the last layer's keys, in its feed-forward part or in the head, reaches no key. The sampler sorts
    NaN logits into an order that depends on their number only, and draws the first whatever the noise: the same
    index for every codebook, in every frame.

    Args:
        columns: Columns [9] so far.
        frames: Frames in a row that must look like that. No speech does: the shipped voices have not even one.

    Raises:
        NonFiniteOutput: The last ones do.
    """
    codes = np.stack(columns[-frames:])[:, 2:]  # of the fast codebooks
    if len(codes) == frames and codes.shape[1] > 2 and (codes == codes[0, 0]).all():
        raise NonFiniteOutput(
            f"index {codes[0, 0]} in every codebook of {frames} frames: the logits are no numbers",
            where="frame",
            fix="use another precision or back end; FishSpeech falls back by itself unless strict=True",
        )


class Generation:
    """Speaks one piece of text: iterate to get columns int64 [9], then read ``stop_reason``.

    Args:
        runtimes: ``prefill`` and ``frame``, open.
        config: Shape of the transformers.
        prompt: int64 [9, S].
        settings: Sampling settings.
        budget: Most frames to produce.
        seed: Seed of the noise.
        im_end_id: Token that ends the turn.
        shared: Columns at the beginning of the prompt that other prompts have too; they are prefilled by themselves.
        prefixes: Where their keys and values are kept.

    Raises:
        NonFiniteOutput: While iterating: new keys, values or logits are no numbers.

    Attributes:
        stop_reason: ``eos`` (the model ended), ``length`` (budget used up) or ``loop`` (frames repeat); None
            while running.
        prefill_seconds: Wall-clock time of the prompt.
        frame_seconds: Wall-clock time of all frames.
    """

    def __init__(
        self,
        runtimes: Mapping[str, Runtime],
        config: DualARConfig,
        prompt: np.ndarray,
        settings: SamplingSettings,
        budget: int,
        seed: int,
        im_end_id: int,
        shared: int = 0,
        prefixes: PrefixCache | None = None,
    ) -> None:
        self._runtimes, self._config, self._settings = runtimes, config, settings
        self._prompt, self._budget, self._im_end = prompt, budget, im_end_id
        self._shared, self._prefixes = shared, prefixes or PrefixCache(0)
        self._noise = torch.Generator().manual_seed(seed)
        self.stop_reason: str | None = None
        self.prefill_seconds = 0.0
        self.frame_seconds = 0.0

    def __iter__(self) -> Iterator[np.ndarray]:
        frame = self._runtimes["frame"]
        device = frame.device
        began = time.perf_counter()
        kv = KVBuffers(self._config, frame.spec.inputs[-1].dtype, device, self._prompt.shape[1])
        prompt = torch.from_numpy(self._prompt)[None].to(device)  # [1, 9, S]
        shared = self._shared
        if shared:
            self._prefixes.fill(
                self._prompt[:, :shared], kv.tensors, lambda: self._prefill(prompt[:, :, :shared], kv, 0)
            )
        self._prefill(prompt[:, :, shared:-1], kv, shared)
        self.prefill_seconds = time.perf_counter() - began

        column = prompt[:, :, -1:]
        window = torch.zeros(1, column.shape[1], PENALTY_WINDOW, dtype=torch.int64, device=device)
        noise_size = next(t.shape[1] for t in frame.spec.inputs if t.name == "noise")
        s = self._settings
        temperature, top_p, penalty, off = (
            torch.full((1, 1), value, device=device) for value in (s.temperature, s.top_p, s.repetition_penalty, 1.0)
        )
        columns: list[np.ndarray] = []
        for step in range(self._budget):
            began = time.perf_counter()
            position = prompt.shape[2] - 1 + step
            kv.reserve(position + 1)
            start = torch.tensor([position], device=device)
            noise = torch.empty(1, noise_size).exponential_(1, generator=self._noise).to(device)
            tensors = {
                "column": column,
                "start": start,
                "mask": causal_mask(start, 1, kv.capacity),
                "noise": noise,
                "window": window,
                "temperature": temperature,
                "top_p": top_p,
                "penalty": penalty if step else off,  # the first frame after the prompt has no penalty
                **kv.tensors,
            }
            column = frame.run(tensors)["next"][:, :, None]
            require_finite(kv.tensors, position, position + 1)
            spoken = column[0, :, 0].cpu().numpy()
            self.frame_seconds += time.perf_counter() - began
            if spoken[0] == self._im_end:
                self.stop_reason = "eos"
                return
            columns.append(spoken)
            require_sense(columns)
            if step:  # upstream never counts the first frame
                window = torch.cat([window[:, :, 1:], column], dim=2)
            yield spoken
            if find_loop(columns):
                self.stop_reason = "loop"
                return
        self.stop_reason = "length"

    def _prefill(self, columns: Tensor, kv: KVBuffers, first: int) -> None:
        if not columns.shape[2]:  # a prompt of one column has nothing to prefill
            return
        start = torch.full((1,), first, dtype=torch.int64, device=columns.device)
        mask = causal_mask(start, columns.shape[2], kv.capacity)
        self._runtimes["prefill"].run({"columns": columns, "start": start, "mask": mask, **kv.tensors})
        require_finite(kv.tensors, first, first + columns.shape[2])
