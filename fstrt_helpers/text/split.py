"""Cut cleaned text into pieces the model speaks one at a time, without losing a character.

The cut positions are the cheapest set under a small cost: a piece costs 1, a cut inside a sentence costs more the worse
it sounds, and unequal pieces cost a little. A dynamic programme over the candidate positions finds it, so a long text
gives even pieces where taking as much as fits would leave a stub at the end.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from itertools import accumulate, pairwise
from math import ceil

from ..errors import ParameterError, TextError
from .clean import is_speakable

__all__ = ["split_text"]

_MIN_BYTES = 32
_COST_CLAUSE, _COST_SPACE, _COST_ANYWHERE, _COST_TOO_LONG = 2.0, 6.0, 30.0, 1000.0
_CLOSERS = r"[\"')\]}”’»」』）]*"
_BEFORE_CJK = r"(?=[\u2e80-\u9fff\uac00-\ud7af])"
_SENTENCE = re.compile(rf"[.!?]+{_CLOSERS}(?:\s+|{_BEFORE_CJK})|[。！？]+{_CLOSERS}\s*")
_CLAUSE = re.compile(rf"[,;:]+{_CLOSERS}(?:\s+|{_BEFORE_CJK})|[，、；：]+{_CLOSERS}\s*")
_SPACE = re.compile(r"\s+")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'])(?:[A-Za-z]|(?:[A-Za-z]\.)+[A-Za-z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|No|Fig|approx|Rev|Gen|Col|Lt|Sgt)\.\s$"
)


def split_text(text: str, max_bytes: int = 200) -> list[str]:
    """Split text into pieces of bounded size.

    Cuts fall at sentence ends where possible, else after clause marks, else between words, else inside a word, and
    never inside a character or between a letter and its combining marks. White space stays with the piece before it, so
    strip a piece before it goes into a prompt.

    Args:
        text: Cleaned text (see `clean_text`).
        max_bytes: Largest size of a piece in UTF-8 bytes, at least 32.

    Returns:
        Pieces that join back to exactly `text`, each with at least one letter or digit. A piece is larger than
        `max_bytes` only where one letter and the marks around it alone are.

    Raises:
        ParameterError: If `max_bytes` is below 32.
        TextError: If `text` has no letter or digit.
    """
    if max_bytes < _MIN_BYTES:
        raise ParameterError(f"max_bytes must be at least {_MIN_BYTES}, got {max_bytes}", fix="use the default, 200")
    speech = [0, *accumulate(map(is_speakable, text))]  # letters and digits before each position
    if not speech[-1]:
        raise TextError("the text has no letter or digit", where=repr(text[:60]), fix="clean it with clean_text first")
    size = [0, *accumulate(len(char.encode("utf-8", "surrogatepass")) for char in text)]
    if size[-1] <= max_bytes:
        return [text]
    costs = _cut_costs(text, size, max_bytes)
    cuts = _cheapest_cuts(costs, size, speech, max_bytes)
    return [text[start:end] for start, end in pairwise(cuts)]


def _cut_costs(text: str, size: list[int], max_bytes: int) -> dict[int, float]:
    """Map every candidate position to the cost of a cut there."""
    costs: dict[int, float] = {}
    for pattern, cost in ((_SPACE, _COST_SPACE), (_CLAUSE, _COST_CLAUSE), (_SENTENCE, 0.0)):
        for match in pattern.finditer(text):
            short = cost == 0.0 and _ABBREVIATION.search(text, max(0, match.start() - 12), match.end())
            costs[match.end()] = _COST_SPACE if short else cost
    costs.pop(0, None)
    costs[len(text)] = 0.0
    ends = sorted(costs)
    for start, end in pairwise([0, *ends]):
        if size[end] - size[start] > max_bytes // 2:  # a long word, or a script without spaces
            for position in range(start + 1, end):
                if not _joined(text[position - 1], text[position]):
                    costs[position] = _COST_ANYWHERE
    return costs


def _joined(left: str, right: str) -> bool:
    return unicodedata.category(right)[0] == "M" or "\u200d" in (left, right)


def _cheapest_cuts(costs: dict[int, float], size: list[int], speech: list[int], max_bytes: int) -> list[int]:
    positions = [0, *sorted(costs)]
    target = size[-1] / ceil(size[-1] / max_bytes)
    best = [0.0] + [float("inf")] * (len(positions) - 1)
    previous = [0] * len(positions)
    spoken = [speech[position] for position in positions]
    for i, end in enumerate(positions[1:], start=1):
        nearest = bisect_left(spoken, spoken[i]) - 1  # the shortest piece that ends here and holds a letter
        for j in range(nearest, -1, -1):
            start = positions[j]
            length = size[end] - size[start]
            if length > max_bytes and spoken[i] - spoken[j] > 1 and best[i] < float("inf"):
                break  # longer pieces only get worse
            cost = best[j] + 1.0 + costs[end] + ((length - target) / max_bytes) ** 2
            if length > max_bytes:
                cost += _COST_TOO_LONG
            if cost < best[i]:
                best[i], previous[i] = cost, j
    cuts = [len(positions) - 1]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return [positions[i] for i in reversed(cuts)]
