"""The first stage of the quality gate: fed the same speech and the same noise, do both draw the same?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..graphs.parity import Agreement, comparable
from .distances import kl_divergence
from .gate import Criterion, Gate
from .reference import Reference, Side
from .takes import Take, has_logits

__all__ = ["DRAWS", "judge_draws"]

DRAWS = ("finite draws", "agreement", "worst codebook", "logit KL")
"""Names of the criteria of this stage."""


def judge_draws(
    reference: Reference, side: Side, gate: Gate, passages: int, progress: Callable[[str, int, int], None]
) -> tuple[list[Criterion], list[dict[str, Any]]]:
    """Leads a side along the reference's speech.

    Args:
        reference: Has ``prefill`` and ``frame``, like the side.
        side: The candidate.
        gate: The limits.
        passages: How many prompts, from the first on.
        progress: See :class:`fstrt_helpers.measure.quality.QualityJudge`.

    Returns:
        The criteria of :data:`DRAWS`, and one row per codebook.
    """
    equal, counts, odds, finite = [], [], [], True
    for index in range(passages):
        progress("draws", index, passages)
        ours, theirs = reference.take(index), reference.led(side, index)
        counted = comparable(ours.drawn, theirs.drawn)  # [S, 8]
        if ours.stop_reason == "eos":
            counted[-1, 1:] = False  # the codes of the end token are heard by nobody
        equal.append((counted & (ours.drawn == theirs.drawn)).sum(axis=0))
        counts.append(counted.sum(axis=0))
        finite &= theirs.finite
        if ours.logits and theirs.logits:
            odds.append(np.where(counted, _divergence(ours, theirs), 0.0).sum(axis=0))
    progress("draws", passages, passages)

    compared = np.sum(counts, axis=0)
    agreement = Agreement(tuple(np.sum(equal, axis=0).tolist()), tuple(compared.tolist()), finite)
    shares, share, draws = agreement.per_codebook, agreement.share, int(compared.sum())
    worst = int(np.nanargmin(shares))
    whole = len(odds) == passages  # a take that was given up over a NaN has no odds
    basis = f"{draws:,} draws over {passages} texts"
    chance = np.sqrt(share * (1 - share) / draws)
    criteria = [
        Criterion.numbers("finite draws", "draws", finite, "keys, values and logits" if whole else "keys and values"),
        Criterion.at_least("agreement", "draws", share, gate.agreement, f"{basis}, chance {chance:.2%}"),
        Criterion.at_least(
            "worst codebook", "draws", shares[worst], gate.codebook, f"codebook {worst} of {len(shares)}"
        ),
    ]
    silent = [s.name for s in (reference.side, side) if not has_logits(s.runtimes["frame"])]
    sums = np.sum(odds, axis=0) if whole else np.full(len(shares), np.nan)
    if silent:
        why = f"{' and '.join(silent)}: the frame graph returns no logits; export it with logits=True"
        criteria.append(Criterion.skipped("logit KL", "draws", why))
    else:
        mean, limit = float(sums.sum() / draws), f"<= {gate.kl:g} nats"
        criteria.append(
            Criterion("logit KL", "draws", mean <= gate.kl, mean, f"{mean:.1e} nats", limit, f"mean of {basis}")
        )
    rows = [
        {
            "codebook": k,
            "draws": int(compared[k]),
            "equal": round(shares[k], 4) if compared[k] else None,
            "KL (nats)": float(f"{sums[k] / compared[k]:.2e}") if whole and compared[k] else None,
        }
        for k in range(len(shares))
    ]
    return criteria, rows


def _divergence(ours: Take, theirs: Take) -> np.ndarray:
    """Of the odds of every draw, in nats, [S, 8]."""
    token, codes = (kl_divergence(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))
    return np.concatenate([token[:, None], codes], axis=1)
