"""The second stage of the quality gate: same codes, same sound? And the other way round?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .distances import log_mel_distance
from .gate import Criterion, Gate
from .listening import judge_recall, listen
from .reference import Reference, Side, encode
from .takes import decode

__all__ = ["SOUND", "judge_sound"]

SOUND = ("finite sound", "log-mel distance", "recall, same codes", "encode agreement")
"""Names of the criteria of this stage."""


def judge_sound(
    reference: Reference, side: Side, gate: Gate, passages: int, progress: Callable[[str, int, int], None]
) -> list[Criterion]:
    """Compares the two halves of the codec.

    Args:
        reference: What it has no graph for is not measured, and the same holds for the side.
        side: The candidate.
        gate: The limits.
        passages: How many prompts, from the first on.
        progress: See :class:`fstrt_helpers.measure.quality.QualityJudge`.

    Returns:
        The criteria of :data:`SOUND`.
    """
    speaks = reference.side.lacks("prefill", "frame", "codec_decode")
    spoken = [] if speaks else [i for i in range(passages) if reference.take(i).codes.shape[1]]
    criteria = []
    if why := side.lacks("codec_decode") or speaks or (None if spoken else "the reference said nothing"):
        criteria += [Criterion.skipped(name, "codec", why) for name in SOUND[:3]]
    else:
        waves = {}
        for done, index in enumerate(spoken):
            progress("codec", done, len(spoken))
            waves[index] = decode(side.runtimes["codec_decode"], reference.take(index).codes, reference.context)
        finite = all(bool(np.isfinite(wave).all()) for wave in waves.values())
        steps = np.concatenate([log_mel_distance(reference.wave(i), wave) for i, wave in waves.items()])
        mean, limit = float(steps.mean()), f"<= {gate.mel_db:g} dB"
        why = f"{len(steps):,} steps of 12 ms; the worst {steps.max():.2f} dB"
        criteria += [
            Criterion.numbers(SOUND[0], "codec", finite, "samples"),
            Criterion(SOUND[1], "codec", mean <= gate.mel_db, mean, f"{mean:.3f} dB", limit, why),
            judge_recall(SOUND[2], "codec", reference, listen(reference, waves), gate),
        ]
    if why := reference.side.lacks("codec_encode") or side.lacks("codec_encode"):
        criteria.append(Criterion.skipped(SOUND[3], "codec", why))
    elif not (recordings := reference.recordings(spoken)):
        criteria.append(Criterion.skipped(SOUND[3], "codec", "there is no recording to encode"))
    else:
        same = [
            np.equal(*(encode(s.runtimes["codec_encode"], wave) for s in (reference.side, side))).ravel()
            for wave in recordings
        ]
        codes = np.concatenate(same)
        why = f"{len(codes):,} codes of {len(same)} recordings"
        criteria.append(Criterion.at_least(SOUND[3], "codec", float(codes.mean()), gate.encode, why))
    progress("codec", len(spoken), len(spoken))
    return criteria
