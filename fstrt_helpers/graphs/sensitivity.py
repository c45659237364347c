"""Which weights suffer most from fewer bits: one group quantised at a time, and the worst kept until a gate passes.

A group alone shows its own damage, which does not add up to that of all together. So the list only ranks, and a gate
decides: the worst groups go back to higher precision one after the other until whatever judges the whole says yes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import Checkpoint, DualARConfig
from ..errors import GraphError, ParameterError
from ..runtimes.base import Runtime
from ..tables import html_table, text_table
from .parity import comparable, forced_draws
from .precision import groups, quantise_graphs
from .spec import LOGITS

__all__ = ["Kept", "Sensitivity", "forced_logits", "keep_until", "logit_divergence", "sweep"]

Paths = Mapping[str, Path]


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """What each group costs when it alone is quantised.

    Attributes:
        graph: The graph that was swept.
        precision: Of the groups.
        unit: What the numbers mean; more is worse.
        costs: By group, in the order of the graph.
    """

    graph: str
    precision: str
    unit: str
    costs: Mapping[str, float]

    @property
    def ranked(self) -> list[str]:
        """Groups, the worst first."""
        return sorted(self.costs, key=self.costs.__getitem__, reverse=True)

    def rows(self) -> list[dict[str, Any]]:
        """One row per group, the worst first, with its share of the sum."""
        total = sum(self.costs.values()) or 1.0
        return [
            {"group": g, self.unit: float(f"{self.costs[g]:.3g}"), "share": f"{self.costs[g] / total:.0%}"}
            for g in self.ranked
        ]

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def sweep(
    checkpoint: Checkpoint,
    graph: str,
    judge: Callable[[Paths], float],
    *,
    precision: str = "int8",
    form: str = "qdq",
    unit: str = "cost",
    only: Sequence[str] | None = None,
    folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **choices: Any,
) -> Sensitivity:
    """Quantises one group at a time and asks what it costs.

    Args:
        checkpoint: Whose graphs.
        graph: ``frame``, ``codec_decode`` or ``codec_encode``. With ``frame`` goes its ``prefill``.
        judge: Gets the paths of the quantised graphs by name and returns the damage; more is worse.
        precision: Of the group; the rest stays as exported.
        form: ``qdq`` or ``nbits``.
        unit: What the judge's numbers mean.
        only: Some groups; all of :func:`fstrt_helpers.graphs.precision.groups` by default.
        folder: Root of the exported graphs.
        progress: Called with the group, number done, and number in all.
        **choices: For :func:`fstrt_helpers.graphs.precision.quantise_graphs`.

    Raises:
        ParameterError: A group that there is not.
        GraphError: The judge returned a number that is none.
    """
    everything = groups(checkpoint, graph, folder=folder)
    chosen = everything if only is None else list(only)
    if unknown := [g for g in chosen if g not in everything]:
        raise ParameterError(f"there is no group {unknown[0]!r}", fix=f"use some of: {', '.join(everything)}")
    together = ("prefill", "frame") if graph == "frame" else (graph,)
    costs: dict[str, float] = {}
    for number, group in enumerate(chosen):
        if progress:
            progress(group, number, len(chosen))
        rest = [g for g in everything if g != group]
        with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
            paths = quantise_graphs(
                checkpoint,
                precision=precision,
                form=form,
                graphs=together,
                keep=rest,
                folder=folder,
                into=Path(scratch),
                **choices,
            )
            cost = float(judge(paths))
        if not np.isfinite(cost):
            raise GraphError(f"the judge returned {cost} for {group}", where=graph, fix="check its reference")
        costs[group] = cost
    if progress:
        progress("", len(chosen), len(chosen))
    return Sensitivity(graph, precision, unit, costs)


@dataclass(frozen=True)
class Kept:
    """What had to stay in higher precision. True if the gate passed.

    Attributes:
        keep: Groups that stay, the worst first.
        verdict: What the gate said last.
        paths: The graphs it judged last.
        tried: Number of groups kept and the verdict, for every attempt.
    """

    keep: tuple[str, ...]
    verdict: Any
    paths: Paths
    tried: tuple[tuple[int, Any], ...]

    def __bool__(self) -> bool:
        return bool(self.verdict)


def keep_until(
    gate: Callable[[Paths], Any],
    ranked: Iterable[str],
    quantise: Callable[[tuple[str, ...]], Paths],
    *,
    step: int = 1,
    most: int | None = None,
) -> Kept:
    """Keeps the worst groups in higher precision until a gate passes.

    Args:
        gate: Gets the paths of the quantised graphs; what it returns counts by its truth value.
        ranked: Groups, the worst first, such as ``Sensitivity.ranked``.
        quantise: Gets the groups to keep and returns the paths; :func:`quantise_graphs` with ``keep=`` in most cases.
        step: Groups added per attempt.
        most: Most groups to keep; all but one by default, since with all of them nothing is quantised.

    Returns:
        The first attempt that passes, or the last one, which then is false.
    """
    order = list(ranked)
    limit = len(order) - 1 if most is None else min(most, len(order))
    tried: list[tuple[int, Any]] = []
    count = 0
    while True:
        keep = tuple(order[:count])
        paths = quantise(keep)
        verdict = gate(paths)
        tried.append((count, verdict))
        if verdict or count >= limit:
            return Kept(keep, verdict, paths, tuple(tried))
        count = min(count + step, limit)


class _Listener:
    """A ``frame`` runtime that remembers the logits of every step."""

    def __init__(self, runtime: Runtime) -> None:
        if LOGITS[0] not in runtime.spec.outputs:
            raise ParameterError("this frame graph returns no logits", fix="export or quantise it with logits=True")
        self._runtime, self.spec, self.device = runtime, runtime.spec, runtime.device
        self.heard: list[Tensor] = []

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        out = self._runtime.run(tensors, skip=skip)
        self.heard.append(torch.cat([out[LOGITS[0]].cpu(), out[LOGITS[1]].flatten(1).cpu()], dim=1))
        return out


def forced_logits(
    runtimes: Mapping[str, Runtime],
    config: DualARConfig,
    prompt: np.ndarray,
    columns: np.ndarray,
    noise: Tensor,
    *,
    settings: tuple[float, float, float] = (0.7, 0.7, 1.2),
) -> tuple[Tensor, np.ndarray]:
    """Logits and draws of one back end along given speech: see :func:`fstrt_helpers.graphs.parity.teacher_forced`.

    Returns:
        Logits float32 [T, V + 7 · 1024], and what was drawn, int64 [T, 8].
    """
    listener = _Listener(runtimes["frame"])
    drawn, _ = forced_draws({**runtimes, "frame": listener}, config, prompt, columns, noise, settings)
    return torch.cat(listener.heard), drawn


def logit_divergence(
    reference: tuple[Tensor, np.ndarray], other: tuple[Tensor, np.ndarray], config: DualARConfig
) -> float:
    """Mean Kullback-Leibler divergence per draw, in nats, of two results of :func:`forced_logits`.

    It moves long before a draw does, so few frames are enough to rank groups. Codes after the first that differs in a
    frame answer another question and do not count.
    """
    book = config.codebook_size
    sizes = [reference[0].shape[1] - (config.num_codebooks - 1) * book] + [book] * (config.num_codebooks - 1)
    p, q = (torch.stack([_pad(x, max(sizes)) for x in r[0].split(sizes, dim=1)], dim=1) for r in (reference, other))
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)  # [T, 8, V]
    nats = torch.where(p.isinf(), 0.0, p.exp() * (p - q)).sum(-1).numpy()
    return float(nats[comparable(reference[1], other[1])].mean())


def _pad(logits: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(logits, (0, width - logits.shape[1]), value=float("-inf"))
