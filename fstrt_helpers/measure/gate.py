"""The limits a precision has to keep to, and the report that says which ones it does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ..errors import ParameterError
from ..tables import Table, html_table

__all__ = ["GATES", "REQUIRED", "STAGES", "Criterion", "Gate", "QualityReport"]

STAGES = ("draws", "codec", "speech")


@dataclass(frozen=True)
class Gate:
    """How far a candidate may be from the reference.

    Attributes:
        agreement: Least share of equal draws, all codebooks together.
        codebook: Least share of equal draws in the worst codebook.
        kl: Most divergence of the odds, mean over the draws, in nats.
        mel_db: Most log-mel distance of the decoded sound, mean over its steps, in dB.
        encode: Least share of equal codes when both encode one recording.
        stop_rate: Most of the share of prompts that ends by itself that may be lost.
        duration: Least and most of the ratio of all seconds spoken.
        recall: Most of the recogniser's word recall that may be lost, beyond what chance explains.
    """

    agreement: float
    codebook: float
    kl: float
    mel_db: float
    encode: float
    stop_rate: float = 0.05
    duration: tuple[float, float] = (0.9, 1.1)
    recall: float = 0.03

    @classmethod
    def of(cls, transformers: str, codec: str | None = None) -> Gate:
        """The default limits of a precision.

        Args:
            transformers: Precision of ``frame``, or a label that begins with one, such as ``int8-nbits``.
            codec: Precision of the codec where it is another one.

        Raises:
            ParameterError: There are no limits for that name.
        """
        names = [str(name).split("-")[0] for name in (transformers, codec or transformers)]
        for name in names:
            if name not in GATES:
                known = ", ".join(GATES)
                raise ParameterError(f"there is no gate for precision {name!r}", fix=f"give gate=, or one of: {known}")
        own, sound = (GATES[name] for name in names)
        return cls(own.agreement, own.codebook, own.kl, sound.mel_db, sound.encode)


GATES: Mapping[str, Gate] = {
    "float32": Gate(agreement=0.999, codebook=0.995, kl=1e-7, mel_db=0.02, encode=0.999),
    "float16": Gate(agreement=0.99, codebook=0.98, kl=1e-4, mel_db=0.2, encode=0.97),
    "bfloat16": Gate(agreement=0.99, codebook=0.98, kl=1e-3, mel_db=0.5, encode=0.9),
    "int8": Gate(agreement=0.97, codebook=0.95, kl=5e-3, mel_db=2.0, encode=0.7),
    "int4": Gate(agreement=0.70, codebook=0.60, kl=0.15, mel_db=3.0, encode=0.5),
}
"""Default limits by precision. Down to int8 the same speech is to come out, but for single draws. With 4 bits one draw
in four may fall elsewhere, among ids about as likely: int4 is held to ending, length and words, not to the same speech.

A mean spectral distance of 1 dB with few steps above 2 dB is the usual bound of what cannot be told apart (Paliwal and
Atal 1993); float16 and bfloat16 are held well below it, integers near it."""

REQUIRED = ("finite draws", "agreement", "finite sound", "log-mel distance", "finite speech", "stop rate")
"""Criteria without which a report is not complete, however good the rest is."""


@dataclass(frozen=True)
class Criterion:
    """One line of a report. True if it is kept to or was not measured.

    Attributes:
        name: What is judged.
        stage: One of :data:`STAGES`.
        kept: Whether it is within the limit; None if it was not measured.
        value: What was found; NaN if nothing was.
        shown: The same in words, with its unit.
        limit: What it has to be, in words.
        why: What it was measured on, or why it was not.
    """

    name: str
    stage: str
    kept: bool | None
    value: float
    shown: str
    limit: str
    why: str

    @classmethod
    def skipped(cls, name: str, stage: str, why: str) -> Criterion:
        """A criterion that could not be measured."""
        return cls(name, stage, None, math.nan, "", "", why)

    @classmethod
    def numbers(cls, name: str, stage: str, finite: bool, what: str) -> Criterion:
        """Whether everything that was looked at is a number."""
        shown = "all" if finite else "NaN or infinite"
        return cls(name, stage, finite, float(finite), shown, "all are numbers", what)

    @classmethod
    def at_least(cls, name: str, stage: str, value: float, least: float, why: str) -> Criterion:
        """A share that must not be lower than a limit."""
        return cls(name, stage, value >= least - 1e-9, value, f"{value:.2%}", f">= {least:.1%}", why)

    @property
    def verdict(self) -> str:
        """``PASS``, ``FAIL`` or ``not measured``."""
        return {True: "PASS", False: "FAIL", None: "not measured"}[self.kept]

    def __bool__(self) -> bool:
        return self.kept is not False

    def row(self) -> dict[str, Any]:
        """The criterion as a row of a table."""
        return {
            "criterion": self.name,
            "stage": self.stage,
            "value": self.shown,
            "limit": self.limit,
            "verdict": self.verdict,
            "why": self.why,
        }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


@dataclass(frozen=True, repr=False, eq=False)
class QualityReport:
    """What the gate found. True if something was measured and nothing that was measured failed.

    A report of some stages only can be true and still be no recommendation: see :attr:`complete`.

    Attributes:
        candidate: What was judged, in words.
        reference: What it was compared with, in words.
        gate: The limits.
        criteria: One per line of the table.
        codebooks: One row per codebook: draws compared, share of equal ones, divergence in nats.
        speeches: One row per prompt: seconds, how it ended, and what was heard, on both sides.
    """

    candidate: str
    reference: str
    gate: Gate
    criteria: tuple[Criterion, ...]
    codebooks: Sequence[Mapping[str, Any]] = ()
    speeches: Sequence[Mapping[str, Any]] = ()

    def __bool__(self) -> bool:
        return all(self.criteria) and any(c.kept for c in self.criteria)

    def __getitem__(self, name: str) -> Criterion:
        for criterion in self.criteria:
            if criterion.name == name:
                return criterion
        known = ", ".join(c.name for c in self.criteria)
        raise ParameterError(f"the report has no criterion {name!r}", fix=f"use one of: {known}")

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the criteria that are not kept to."""
        return tuple(c.name for c in self.criteria if not c)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the required criteria that were not measured."""
        measured = {c.name for c in self.criteria if c.kept is not None}
        return tuple(name for name in REQUIRED if name not in measured)

    @property
    def complete(self) -> bool:
        """Whether all that a recommendation needs was measured: recommend only what is true *and* complete."""
        return not self.missing

    def table(self) -> Table:
        """One row per criterion: value, limit, verdict, and on what it rests."""
        return Table([c.row() for c in self.criteria])

    def record(self) -> dict[str, Any]:
        """Plain values for a JSON record; what was not measured is null."""
        return {
            "candidate": self.candidate,
            "reference": self.reference,
            "passed": bool(self),
            "complete": self.complete,
            "failed": list(self.failed),
            "gate": asdict(self.gate),
            "criteria": [
                {
                    "name": c.name,
                    "stage": c.stage,
                    "verdict": c.verdict,
                    "value": c.value if math.isfinite(c.value) else None,
                    "limit": c.limit,
                    "why": c.why,
                }
                for c in self.criteria
            ],
            "codebooks": [_plain(row) for row in self.codebooks],
            "speeches": [_plain(row) for row in self.speeches],
        }

    def __repr__(self) -> str:
        measured = sum(c.kept is not None for c in self.criteria)
        verdict = "PASS" if self else f"FAIL ({', '.join(self.failed) or 'nothing measured'})"
        rest = f"; not measured: {', '.join(self.missing)}" if self.missing else ""
        return f"{verdict} {self.candidate} against {self.reference}, {measured} criteria{rest}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self))}</p>" + html_table([c.row() for c in self.criteria])
