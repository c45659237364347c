"""What is measured: points that differ from a base point in one factor, and the inputs that belong to them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ParameterError
from .parts import FRAME_SECONDS

if TYPE_CHECKING:
    from ..text.tokenizer import Tokenizer

__all__ = ["MEASURES", "SENTENCES", "Point", "code_frames", "make_codes", "make_grid", "make_prompt", "sha256_of"]

MEASURES = ("frame", "prefill", "codec_decode", "pipeline")

SENTENCES = (
    "The first train of the morning leaves before the sun is up.",
    "She put the letter in a drawer and forgot about it for years.",
    "Fresh bread and strong coffee make a cold kitchen feel warm.",
    "Nobody noticed that the clock had stopped during the night.",
    "We walked along the river until the path turned into the woods.",
    "My brother keeps three old bicycles behind the garden shed.",
    "The answer was simple once somebody drew a picture of it.",
    "Rain fell on the roof all evening and the children read books.",
    "He paid for the tickets and found two seats near the window.",
    "A small boat with a red sail came slowly into the harbour.",
    "They asked for a quiet room, and got one above the kitchen.",
    "In winter the lake freezes, and people cross it on foot.",
)
"""Texts of the whole pipeline, each a single chunk; a round speaks one, the same for every candidate."""


@dataclass(frozen=True)
class Point:
    """One thing to measure.

    Attributes:
        graph: One of :data:`MEASURES`.
        batch: Rows.
        prompt: ``prefill``: columns of the prompt; else None.
        capacity: ``frame`` and ``prefill``: columns the KV cache is allocated for; else None.
        position: ``frame``: columns filled, in the middle of the frames that are timed; else None.
        seconds: ``codec_decode``: seconds of audio decoded at once. ``pipeline``: most seconds per text; else None.
        sized: Whether upstream's cache has this capacity too. Otherwise upstream runs as it ships, with a cache for the
            longest sequence: it has no setting for less.
        cut: The base point once more, sized, for upstream alone: it tells how much of the difference comes from the
            smaller cache.
    """

    graph: str
    batch: int = 1
    prompt: int | None = None
    capacity: int | None = None
    position: int | None = None
    seconds: float | None = None
    sized: bool = False
    cut: bool = False

    def row(self) -> dict[str, Any]:
        """The factors by name, as in a record."""
        return {key: value for key, value in asdict(self).items() if key not in ("sized", "cut")}

    @property
    def shape(self) -> tuple[Any, ...]:
        """Points of equal shape run on the same opened model."""
        if self.graph in ("frame", "prefill"):
            return ("frames", self.batch, self.capacity, self.sized, self.cut)
        return (self.graph,)

    def __str__(self) -> str:
        factors = (f"{key} {value}" for key, value in self.row().items() if key != "graph" and value is not None)
        return f"{self.graph}: {', '.join(factors)}"


def make_grid(
    measures: Sequence[str],
    *,
    longest: int,
    batch: Sequence[int] = (1,),
    prompt: Sequence[int] = (64,),
    capacity: Sequence[int] = (512,),
    position: Sequence[int] = (300,),
    seconds: Sequence[float] = (2.0,),
    spoken: float = 5.0,
    frames: int = 24,
) -> list[Point]:
    """Lists the points. The first value of every factor is the base; the others are tried one factor at a time.

    Positions other than the first are tried at the largest capacity, because few fit into the base one.

    Args:
        measures: Which of :data:`MEASURES`.
        longest: Columns the model was made for; larger capacities are left out.
        batch: Rows.
        prompt: Columns of a prompt.
        capacity: Columns a KV cache is allocated for.
        position: Columns filled.
        seconds: Audio that the codec decodes at once.
        spoken: Most seconds of audio per text of the whole pipeline.
        frames: Frames timed per round, which have to fit into the cache around the position.

    Raises:
        ParameterError: An unknown measure, an empty factor, or a base point that does not fit the cache.
    """
    if unknown := set(measures) - set(MEASURES):
        raise ParameterError(f"there is no measure {min(unknown)!r}", fix=f"use some of: {', '.join(MEASURES)}")
    for name, values in dict(batch=batch, prompt=prompt, capacity=capacity, position=position, seconds=seconds).items():
        if not values or min(values) <= 0:
            raise ParameterError(f"{name} is {list(values)}", fix="give at least one number above 0")
    capacities = [c for c in capacity if c <= longest] or [longest]
    # A prompt of at least two columns comes before the frames, and the extra ones of warm-up and pipelining follow.
    last = frames + frames // 2
    if position[0] - frames // 2 < 2 or position[0] + last > capacities[0]:
        raise ParameterError(
            f"{frames} frames around position {position[0]} do not fit a cache of {capacities[0]} columns",
            fix="use fewer frames, another position or a larger capacity",
        )
    points: list[Point] = []
    if "frame" in measures:
        base = Point("frame", batch[0], capacity=capacities[0], position=position[0])
        deep = replace(base, capacity=max(capacities), sized=True)
        fitting = [p for p in position[1:] if p - frames // 2 >= 2 and p + last <= max(capacities)]
        points += [base, replace(base, sized=True, cut=True), *(replace(base, batch=b) for b in batch[1:])]
        points += [replace(base, capacity=c, sized=True) for c in sorted(capacities[1:])]
        points += [replace(deep, position=p) for p in fitting]
    if "prefill" in measures:
        for length in sorted(prompt):
            room = [c for c in sorted(capacities) if c > length] or [longest] * (length < longest)
            points += [Point("prefill", batch[0], length, room[0])] if room else []
    if "codec_decode" in measures:
        points += [Point("codec_decode", 1, seconds=float(s)) for s in seconds]
    if "pipeline" in measures:
        points.append(Point("pipeline", 1, seconds=float(spoken)))
    return list(dict.fromkeys(points))


def make_prompt(tokenizer: Tokenizer, columns: int, batch: int, seed: int) -> np.ndarray:
    """A prompt in which text, speech and text follow each other, other ids for every row and seed.

    Returns:
        int64 [B, 9, S].
    """
    rng = np.random.default_rng(seed)
    prompt = np.zeros((batch, 9, columns), dtype=np.int64)
    prompt[:, 0] = rng.integers(0, 256, (batch, columns))
    spoken = slice(columns // 4, columns - columns // 4)
    codes = rng.integers(0, 1000, (batch, 8, columns))[:, :, spoken]
    prompt[:, 1:, spoken] = codes
    prompt[:, 0, spoken] = tokenizer.semantic_begin_id + codes[:, 0]
    return prompt


def code_frames(seconds: float) -> int:
    """Frames that make that many seconds of audio, rounded, at least one."""
    return max(1, round(seconds / FRAME_SECONDS))


def make_codes(frames: int, seed: int) -> np.ndarray:
    """Random codes, int64 [1, 8, T], of the 1000 that the codec uses."""
    return np.random.default_rng(seed).integers(0, 1000, (1, 8, frames))


def sha256_of(data: np.ndarray | str) -> str:
    """First 16 digits of the SHA-256 of a prompt, to tell in a record which inputs were used."""
    raw = data.encode() if isinstance(data, str) else np.ascontiguousarray(data).tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]
