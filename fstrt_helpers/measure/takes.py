"""Speech as the frame loop makes it, with everything it drew, free or led along speech that was made before.

Both go through :class:`fstrt_helpers.speech.generation.Generation`, the loop that speaks for users: same cache sizes,
same penalty window, same noise. Only what the frame graph answers is written down, and, when it is led, replaced.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES, DualARConfig
from ..errors import NonFiniteOutput
from ..graphs.spec import LOGITS, GraphSpec
from ..runtimes.base import Runtime
from ..runtimes.torch import TorchRuntime
from ..speech.decoding import CodecStream
from ..speech.generation import Generation, SamplingSettings
from ..speech.stream import PIECES

__all__ = ["NOT_FINITE", "Take", "decode", "has_logits", "lead", "speak", "with_logits"]

NOT_FINITE = "not finite"
"""Stop reason of a take that was given up over a value that is no number."""


@dataclass(frozen=True, eq=False)
class Take:
    """One prompt spoken once.

    Attributes:
        columns: What the frame graph drew, step by step, int64 [9, S]. The last column is the end token if it ended;
            steps that a led take no longer reached are -1.
        stop_reason: ``eos``, ``length``, ``loop``, or :data:`NOT_FINITE`.
        finite: Whether every key, value and recorded logit is a number.
        logits: Token logits float32 [S, V] and code logits [S, 7, 1024], or None if they were not recorded.
    """

    columns: np.ndarray
    stop_reason: str
    finite: bool
    logits: tuple[Tensor, Tensor] | None = None

    @property
    def drawn(self) -> np.ndarray:
        """Token and codes 1-7 of each step, int64 [S, 8]; code 0 is the token again."""
        return np.delete(self.columns, 1, axis=0).T

    @property
    def codes(self) -> np.ndarray:
        """The codes of the frames that are heard, int64 [8, T]."""
        return self.columns[1:, :-1] if self.stop_reason == "eos" else self.columns[1:]


class _Witness:
    """A ``frame`` runtime that writes down every answer and, given columns, returns those in its place."""

    def __init__(self, inner: Runtime, led: np.ndarray | None, logits: bool) -> None:
        self._inner, self._led = inner, led
        self._keep = logits and has_logits(inner)
        self.spec: GraphSpec = inner.spec
        self.device: torch.device = inner.device
        self.columns: list[np.ndarray] = []
        self.logits: list[tuple[Tensor, Tensor]] = []
        self._kv: dict[str, Tensor] = {}

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        out = dict(self._inner.run(tensors, skip=skip))
        step = len(self.columns)
        self.columns.append(out["next"][0].cpu().numpy().copy())
        if self._keep:
            self.logits.append(tuple(out[name][0].float().cpu().clone() for name in LOGITS))
        self._kv = {name: tensor for name, tensor in tensors.items() if name.startswith(("k_", "v_"))}
        if self._led is not None:
            out["next"] = torch.from_numpy(self._led[:, step].copy())[None].to(self.device)
        return out

    def finite(self) -> bool:
        """Whether the cache, which holds every key and value so far, and all logits are numbers."""
        seen = [*self._kv.values(), *(tensor for pair in self.logits for tensor in pair)]
        return all(bool(tensor.isfinite().all()) for tensor in seen)


def has_logits(runtime: Runtime) -> bool:
    """Whether a ``frame`` runtime returns its logits too."""
    return LOGITS[0] in runtime.spec.outputs


def with_logits(runtime: Runtime) -> Runtime:
    """A ``frame`` runtime that returns its logits too, where that costs nothing: in PyTorch. Others come back as is."""
    if not isinstance(runtime, TorchRuntime) or has_logits(runtime):
        return runtime
    first, *cache = runtime.spec.outputs
    wider = copy.copy(runtime)  # the same weights
    wider.spec = dataclasses.replace(runtime.spec, outputs=(first, *LOGITS, *cache))
    return wider


def speak(
    runtimes: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    settings: SamplingSettings,
    budget: int,
    seed: int,
    im_end_id: int,
    *,
    logits: bool = False,
) -> Take:
    """Lets the runtimes say what they would say.

    Args:
        runtimes: ``prefill`` and ``frame``, open.
        config: Shape of the transformers.
        prompt: int64 [9, S].
        settings: Sampling settings.
        budget: Most frames.
        seed: Of the noise.
        im_end_id: Token that ends the turn.
        logits: Whether to keep the logits, if the runtime has them: 33 kB a frame.
    """
    return _run(runtimes, config, prompt, settings, budget, seed, im_end_id, None, logits)


def lead(
    runtimes: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    settings: SamplingSettings,
    take: Take,
    seed: int,
    im_end_id: int,
    *,
    logits: bool = True,
) -> Take:
    """Teacher forcing: feeds the runtimes the columns of a take, whatever they draw themselves.

    A free run cannot judge precision, because one draw that falls differently changes all later frames.

    Args:
        runtimes: See :func:`speak`.
        config: See :func:`speak`.
        prompt: That of the take.
        settings: Those of the take.
        take: What to follow.
        seed: That of the take, so that the noise is the same.
        im_end_id: See :func:`speak`.
        logits: See :func:`speak`.

    Returns:
        What was drawn at each step; nothing of it was fed back.
    """
    budget = take.columns.shape[1]
    return _run(runtimes, config, prompt, settings, budget, seed, im_end_id, take.columns, logits)


def _run(
    runtimes: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    settings: SamplingSettings,
    budget: int,
    seed: int,
    im_end_id: int,
    led: np.ndarray | None,
    logits: bool,
) -> Take:
    witness = _Witness(runtimes["frame"], led, logits)
    generation = Generation({**runtimes, "frame": witness}, config, prompt, settings, budget, seed, im_end_id)
    try:
        for _ in generation:
            pass
    except NonFiniteOutput:  # speech stops there; a judge wants to know, and goes on
        columns = np.full((len(prompt), budget if led is not None else len(witness.columns)), -1)
        columns[:, : len(witness.columns)] = np.reshape(witness.columns, (-1, len(prompt))).T
        return Take(columns, NOT_FINITE, False)
    kept = tuple(torch.stack(kind) for kind in zip(*witness.logits, strict=True)) if witness.logits else None
    columns = np.stack(witness.columns, axis=1)
    return Take(columns, str(generation.stop_reason), witness.finite(), kept)


def decode(runtime: Runtime, codes: np.ndarray, context: int) -> np.ndarray:
    """Codes to samples in the pieces in which speech is streamed, so that an engine's longest input is kept to.

    Args:
        runtime: ``codec_decode``, open.
        codes: int64 [8, T].
        context: Frames of left context, from :func:`fstrt_helpers.speech.decoding.left_context`.

    Returns:
        float32 [2048 T]. All NaN if any sample is no number.
    """
    stream = CodecStream(runtime, context, PIECES)
    try:
        pieces = [work() for column in codes.T if (work := stream.push(column))]
        if work := stream.flush():
            pieces.append(work())
    except NonFiniteOutput:
        return np.full(codes.shape[1] * FRAME_SAMPLES, np.nan, dtype=np.float32)
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.float32)
