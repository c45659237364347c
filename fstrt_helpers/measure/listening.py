"""A part of the quality gate: is the candidate understood as well as the reference?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .gate import Criterion, Gate
from .recogniser import words_of
from .reference import Reference

__all__ = ["judge_recall", "listen"]

_LEAST_RECALL = 0.5
"""What must be understood of the reference itself before a candidate is held to it."""


def listen(reference: Reference, waves: Mapping[int, np.ndarray]) -> dict[int, tuple[float, float]] | str:
    """Lets the recogniser hear both sides.

    Args:
        reference: Speaks with its own codec.
        waves: The candidate's samples by prompt, float32 [N] at 44.1 kHz.

    Returns:
        By prompt the share of words heard from the reference and from the candidate, or why nobody listened.
    """
    if why := reference.listener.missing() or reference.side.lacks("prefill", "frame", "codec_decode"):
        return why
    english = {i: wave for i, wave in waves.items() if words_of(reference.texts[i])}
    heard = {i: (reference.recall(i), reference.heard(i, wave)) for i, wave in english.items()}
    return heard or "no prompt has English words"


def judge_recall(
    name: str, stage: str, reference: Reference, heard: Mapping[int, tuple[float, float]] | str, gate: Gate
) -> Criterion:
    """Word recall of the candidate, which may be lower than the reference's by the gate's limit and by chance.

    A few sentences carry one mishearing more or less by luck. So the limit is wider by the standard error of the loss
    from prompt to prompt. All words count alike.
    """
    if isinstance(heard, str):
        return Criterion.skipped(name, stage, heard)
    words = np.array([len(words_of(reference.texts[i])) for i in heard])
    pairs = np.array(list(heard.values()))  # [prompts, 2]
    before, now = (float(mean) for mean in words @ pairs / words.sum())
    if before < _LEAST_RECALL:
        return Criterion.skipped(name, stage, f"of the reference itself only {before:.0%} is understood")
    loss = pairs[:, 0] - pairs[:, 1]
    chance = float(np.sqrt(np.sum((words * (loss - (before - now))) ** 2)) / words.sum())
    why = f"{words.sum()} words of {len(words)} prompts; the reference {before:.1%}, chance {chance:.1%}"
    return Criterion.at_least(name, stage, now, before - gate.recall - chance, why)
