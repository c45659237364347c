"""Compares two runtimes of one graph: same inputs, then by how much the outputs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..model.dual_ar import causal_mask
from ..model.sampling import PENALTY_WINDOW
from ..runtimes.base import Runtime
from ..tables import html_table
from .inputs import seeded_inputs

__all__ = ["Agreement", "CompareResult", "comparable", "compare_graph", "forced_draws", "teacher_forced"]

_KV = ("k_", "v_")


@dataclass(frozen=True, repr=False)
class CompareResult:
    """How far one output of two runtimes is apart at one set of sizes. True if it is within the limits.

    Attributes:
        graph: Name of the graph.
        output: Name of the output; ``kv`` stands for all keys and values, of which only new columns count.
        sizes: Free dimensions, such as ``{"B": 1, "S": 7, "C": 512}``.
        max_error: Largest absolute difference; for ids and codes the share of those that differ.
        cosine: Cosine of the angle between the two outputs; None for ids and codes.
        finite: Whether every value of both is a number.
        error_limit: What ``max_error`` may be at most.
        cosine_limit: What ``cosine`` must be at least, if there is one.
    """

    graph: str
    output: str
    sizes: Mapping[str, int]
    max_error: float
    cosine: float | None
    finite: bool
    error_limit: float
    cosine_limit: float

    def __bool__(self) -> bool:
        near = self.cosine is None or self.cosine >= self.cosine_limit
        return self.finite and near and self.max_error <= self.error_limit

    def row(self) -> dict[str, Any]:
        """The result as a row of a table, rounded so that it reads the same on every machine that agrees."""
        ids = self.cosine is None
        limits = [f"{'different' if ids else 'error'} <= {self.error_limit:g}"] if self.error_limit < np.inf else []
        limits += [] if ids or self.cosine_limit <= -1 else [f"cosine >= {self.cosine_limit:g}"]
        found = f"{self.max_error:.1%} differ" if ids else f"error {self.max_error:.1e}, cosine {self.cosine:.4f}"
        return {
            "graph": self.graph,
            "output": self.output,
            "sizes": " ".join(f"{k}={v}" for k, v in self.sizes.items()),
            "finite": self.finite,
            "limit": ", ".join(limits),
            "verdict": "PASS" if self else f"FAIL: {found}",
        }

    def __repr__(self) -> str:
        row = self.row()
        return f"{row['verdict']} {self.graph}.{self.output} {row['sizes']} ({row['limit']})"

    def _repr_html_(self) -> str:
        return html_table([self.row()])


def compare_graph(
    graph: str,
    reference: Mapping[str, Runtime] | Runtime,
    other: Mapping[str, Runtime] | Runtime,
    sizes: Sequence[Mapping[str, int]],
    *,
    max_error: float = 1e-4,
    min_cosine: float = -1.0,
    max_different: float = 0.0,
    seed: int = 0,
    semantic_begin_id: int | None = None,
) -> list[CompareResult]:
    """Runs a graph on two back ends with the same inputs.

    The back ends may differ in precision: inputs are drawn in float32 and rounded to what each of them takes.

    Args:
        graph: Name of the graph.
        reference: Runtime to compare with, or several by name of graph.
        other: The same for the one to judge.
        sizes: Sets of free dimensions to run at.
        max_error: Limit for the largest absolute difference of floats.
        min_cosine: Limit for their cosine.
        max_different: Limit for the share of ids or codes that differ.
        seed: Seed of the first set; the next set takes the next seed.
        semantic_begin_id: See :func:`fstrt_helpers.graphs.inputs.seeded_inputs`.

    Returns:
        One result per set of sizes and output, all keys and values taken together.
    """
    pair = [r[graph] if isinstance(r, Mapping) else r for r in (reference, other)]
    results = []
    for index, given in enumerate(sizes):
        outputs = []
        for runtime in pair:
            inputs = seeded_inputs(runtime.spec, given, seed=seed + index, semantic_begin_id=semantic_begin_id)
            start = inputs.get("start")
            moved = {name: tensor.to(runtime.device) for name, tensor in inputs.items()}
            outputs.append(_comparable(runtime.run(moved), start, given.get("S", 1)))
        for name in sorted(outputs[0].keys() & outputs[1].keys()):
            error, cosine, finite = _distance(outputs[0][name], outputs[1][name])
            limit = max_different if cosine is None else max_error
            results.append(CompareResult(graph, name, dict(given), error, cosine, finite, limit, min_cosine))
    return results


def _comparable(outputs: Mapping[str, Tensor], start: Tensor | None, new: int) -> dict[str, np.ndarray]:
    """Outputs on the CPU; of the cache only the columns that were written, since the rest is input."""
    found = {n: t.cpu() for n, t in outputs.items() if not n.startswith(_KV)}
    cache = [t.cpu().float() for n, t in outputs.items() if n.startswith(_KV)]
    if cache:
        written = [tensor[row, :, s : s + new] for tensor in cache for row, s in enumerate(start.tolist())]
        found["kv"] = torch.cat([w.flatten() for w in written])
    return {n: (t.double() if t.is_floating_point() else t).numpy() for n, t in found.items()}


def _distance(a: np.ndarray, b: np.ndarray) -> tuple[float, float | None, bool]:
    if a.dtype.kind == "i":
        return float((a != b).mean()), None, True
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    if not finite:
        return float("inf"), 0.0, False
    length = np.linalg.norm(a) * np.linalg.norm(b)
    cosine = float((a * b).sum() / length) if length else float(np.array_equal(a, b))
    return float(np.abs(a - b).max()), cosine, True


@dataclass(frozen=True, repr=False)
class Agreement:
    """Which draws two runtimes agree on when both are fed the same speech and the same noise.

    Code k of a frame depends on the codes before it. So a draw only counts if both runtimes drew the same ones before
    it in this frame; the others are no fair comparison.

    Attributes:
        equal: Draws that agree, per codebook; the first is the token, which is code 0.
        compared: Draws that count, per codebook.
        finite: Whether all logits and all new keys and values are numbers.
    """

    equal: tuple[int, ...]
    compared: tuple[int, ...]
    finite: bool

    @property
    def per_codebook(self) -> tuple[float, ...]:
        """Share of equal draws per codebook; NaN where none counts."""
        return tuple(e / c if c else float("nan") for e, c in zip(self.equal, self.compared, strict=True))

    @property
    def share(self) -> float:
        """Share of equal draws over all codebooks."""
        return sum(self.equal) / max(sum(self.compared), 1)

    def __bool__(self) -> bool:
        return self.finite and self.share >= 0.99

    def __repr__(self) -> str:
        return f"Agreement({self.share:.1%} of {sum(self.compared)} draws, finite={self.finite})"

    def _repr_html_(self) -> str:
        names = [f"code {k}" for k in range(len(self.equal))]
        return html_table([dict(zip(names, (f"{share:.1%}" for share in self.per_codebook), strict=True))])


def teacher_forced(
    reference: Mapping[str, Runtime],
    other: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    columns: np.ndarray,
    noise: Tensor,
    *,
    settings: tuple[float, float, float] = (0.7, 0.7, 1.2),
) -> Agreement:
    """Feeds both runtimes the same columns, whatever they would have said themselves, and counts equal draws.

    A free run cannot judge precision: one draw that falls differently changes all later frames.

    Args:
        reference: Its ``prefill`` and ``frame``.
        other: The same two graphs, in another precision or on another back end.
        config: Shape of the transformers.
        prompt: int64 [9, S].
        columns: int64 [9, T]: the speech that is fed, such as one the reference made.
        noise: float32 [T, N], Exp(1), the draw of each frame.
        settings: Temperature, top-p, and repetition penalty.

    Returns:
        Agreement over T frames.
    """
    drawn, finite = zip(
        *(forced_draws(runtimes, config, prompt, columns, noise, settings) for runtimes in (reference, other)),
        strict=True,
    )
    counts = comparable(*drawn)
    equal, compared = ((drawn[0] == drawn[1]) & counts).sum(axis=0), counts.sum(axis=0)
    return Agreement(tuple(equal.tolist()), tuple(compared.tolist()), all(finite))


def comparable(drawn: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Which draws of two runs may be compared.

    Code k of a frame depends on the codes before it. Once one of them differs, the rest of the frame answers another
    question.

    Args:
        drawn: Token and codes 1-7 of each frame, int64 [T, 8].
        other: The same of the other run.

    Returns:
        bool [T, 8]: whether everything before it in its frame is equal. The token always counts.
    """
    same = drawn == other
    before = np.cumprod(same[:, :-1], axis=1).astype(bool)
    return np.concatenate([np.ones_like(same[:, :1]), before], axis=1)


def forced_draws(
    runtimes: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    columns: np.ndarray,
    noise: Tensor,
    settings: tuple[float, float, float],
) -> tuple[np.ndarray, bool]:
    """One half of :func:`teacher_forced`: what one back end draws.

    Returns:
        Token and codes 1-7 of each frame, int64 [T, 8], and whether every key and value is finite.
    """
    frame = runtimes["frame"]
    length, frames = prompt.shape[1] - 1, columns.shape[1]
    capacity = length + frames
    fed = torch.from_numpy(np.concatenate([prompt, columns], axis=1))[None].to(frame.device)  # [1, 9, S + T]
    cache = {
        t.name: torch.zeros(1, config.n_local_heads, capacity, config.head_dim, dtype=t.dtype, device=frame.device)
        for t in frame.spec.inputs
        if t.name.startswith(_KV)
    }
    start = torch.zeros(1, dtype=torch.int64, device=frame.device)
    if length:
        mask = causal_mask(start, length, capacity)
        runtimes["prefill"].run({"columns": fed[:, :, :length].contiguous(), "start": start, "mask": mask, **cache})
    temperature, top_p, penalty = (torch.full((1, 1), value, device=frame.device) for value in settings)
    window = torch.zeros(1, len(prompt), PENALTY_WINDOW, dtype=torch.int64, device=frame.device)
    drawn = []
    for step in range(frames):
        start = torch.full_like(start, length + step)
        column = fed[:, :, length + step : length + step + 1].contiguous()
        if step > 1:  # like the frame loop, which never counts the first frame
            window = torch.cat([window[:, :, 1:], column], dim=2)
        inputs = {
            "column": column,
            "start": start,
            "mask": causal_mask(start, 1, capacity),
            "noise": noise[step : step + 1].to(frame.device),
            "window": window,
            "temperature": temperature,
            "top_p": top_p,
            "penalty": penalty if step else torch.ones_like(penalty),
        }
        drawn.append(frame.run(inputs | cache)["next"][0].cpu())
    finite = all(bool(t.isfinite().all()) for t in cache.values())
    said = torch.stack(drawn).numpy()  # [T, 9]
    return np.delete(said, 1, axis=1), finite
