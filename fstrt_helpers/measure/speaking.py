"""The third stage of the quality gate: left to itself, does it end, take as long, and say the words?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..speech.generation import FRAMES_PER_SECOND
from .gate import Criterion, Gate
from .listening import judge_recall, listen
from .reference import Reference, Side
from .takes import decode

__all__ = ["SPEAKING", "judge_speaking"]

SPEAKING = ("finite speech", "stop rate", "duration ratio", "recall, own speech")
"""Names of the criteria of this stage."""

_LEAST_ENDING = 0.5
"""Share of prompts the reference itself must end before a candidate is held to it."""


def judge_speaking(
    reference: Reference, side: Side, gate: Gate, progress: Callable[[str, int, int], None]
) -> tuple[list[Criterion], list[dict[str, Any]]]:
    """Puts every prompt to both sides with the same noise.

    Args:
        reference: Has ``prefill`` and ``frame``, like the side.
        side: The candidate. It is heard through its own codec, or through the reference's if it came without.
        gate: The limits.
        progress: See :class:`fstrt_helpers.measure.quality.QualityJudge`.

    Returns:
        The criteria of :data:`SPEAKING`, and one row per prompt.
    """
    total = len(reference.prompts)
    codec = side.runtimes.get("codec_decode", reference.side.runtimes.get("codec_decode"))
    pairs, waves, finite = [], {}, True
    for index in range(total):
        progress("speech", index, total)
        take = reference.free(side, index)
        pairs.append((reference.take(index), take))
        finite &= take.finite
        if codec is not None:
            waves[index] = decode(codec, take.codes, reference.context)
            finite &= bool(np.isfinite(waves[index]).all())
    progress("speech", total, total)
    what = "there is no codec_decode to hear it with" if codec is None else "keys, values and samples"
    heard = what if codec is None else listen(reference, waves)

    criteria = [Criterion.numbers(SPEAKING[0], "speech", finite, "keys and values" if codec is None else what)]
    before, now = (float(np.mean([take.stop_reason == "eos" for take in takes])) for takes in zip(*pairs, strict=True))
    long, short = (sum(take.codes.shape[1] for take in takes) for takes in zip(*pairs, strict=True))
    if before < _LEAST_ENDING or not long:
        why = f"the reference itself ends only {before:.0%} of the prompts"
        criteria += [Criterion.skipped(name, "speech", why) for name in SPEAKING[1:3]]
    else:
        ratio, (low, high) = short / long, gate.duration
        why = f"{total} prompts; the reference {before:.0%}"
        length = f"{long / FRAMES_PER_SECOND:.0f} s by the reference"
        criteria += [
            Criterion.at_least(SPEAKING[1], "speech", now, before - gate.stop_rate, why),
            Criterion(
                SPEAKING[2], "speech", low <= ratio <= high, ratio, f"{ratio:.3f}", f"{low:g} to {high:g}", length
            ),
        ]
    criteria.append(judge_recall(SPEAKING[3], "speech", reference, heard, gate))
    rows = []
    for index, (prompt, pair) in enumerate(zip(reference.prompts, pairs, strict=True)):
        row: dict[str, Any] = {"prompt": prompt.text, "kind": prompt.kind}
        for place, who in enumerate(("reference", "candidate")):
            seconds = round(pair[place].codes.shape[1] / FRAMES_PER_SECOND, 2)
            row |= {f"{who} (s)": seconds, f"{who} end": pair[place].stop_reason}
            if isinstance(heard, dict) and index in heard:
                row[f"{who} recall"] = round(heard[index][place], 3)
        rows.append(row)
    return criteria, rows
