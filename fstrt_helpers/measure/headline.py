"""The five headline claims of the article this series corrects, each beside what was measured here.

The article ("Fish Speech 1.5 GPU inference acceleration: TensorRT engine conversion and latency optimisation") names no
GPU, and its script synchronises nothing; its figures are quoted as they stand there. "Before" is upstream's own code,
run eagerly; "after" is what is recommended for the machine, in the same record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .recommend import USERS, base_rows, recommend
from .verdicts import Verdict

__all__ = ["CLAIMS", "Claim", "compare_claims"]

_BATCH = 8


@dataclass(frozen=True)
class Claim:
    """One of the article's figures.

    Attributes:
        what: What it is about.
        before: Its figure for PyTorch.
        after: Its figure for TensorRT.
        unit: Of both.
        ours: What is measured here in its place.
    """

    what: str
    before: float
    after: float
    unit: str
    ours: str

    @property
    def ratio(self) -> float:
        """How many times less."""
        return self.before / self.after


CLAIMS = (
    Claim("a sentence", 350, 85, "ms", "work per second of audio (ms), text to samples"),
    Claim("a batch of 8", 2.8, 0.6, "s", "a frame for 8 rows (ms); upstream: 8 frames one by one"),
    Claim("first audio", 1.2, 0.3, "s", "text to first samples (ms)"),
    Claim("model memory", 4.2, 1.8, "GB", "after loading (MB), prefill and frame"),
    Claim("peak memory", 6.5, 2.3, "GB", "most while running (MB), prefill and frame"),
)


def compare_claims(record: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """A row per claim: the article's figures, ours, both ratios, and why one is missing.

    Args:
        record: A benchmark record.
        verdicts: What the quality gate said.
    """
    agent, narration = (recommend(record, verdicts, user) for user in USERS[:2])
    # Where nothing is fit for an agent, the fastest that passes the gate stands in.
    chosen = agent if agent.candidate else narration
    key = (chosen.candidate, chosen.precision, chosen.device)
    readers = (_sentence, _batch, _first_audio, _loaded, _peak)
    lines = []
    for claim, read in zip(CLAIMS, readers, strict=True):
        before, after, remark = _both(record["rows"], key, read)
        lines.append(
            {
                "claim": claim.what,
                "article": f"{claim.before:g} to {claim.after:g} {claim.unit}",
                "its ratio": f"{claim.ratio:.1f}x",
                "measured here": claim.ours,
                "upstream eager": before,
                "ours": after,
                "our ratio": f"{before / after:.1f}x" if before and after else None,
                "with": f"{key[0]} {key[1]}" if key[0] else None,
                "remark": remark,
            }
        )
    return lines


def _both(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...], read: Any) -> tuple[Any, Any, str | None]:
    eager = next((k for k in base_rows(rows) if k[0] == "upstream-eager"), None)
    before = None if eager is None else read(rows, eager)
    after = None if key[0] is None else read(rows, key)
    lacks = ["upstream eager"] * (before is None) + ["ours"] * (after is None)
    return before, after, f"not measured: {', '.join(lacks)}" if lacks else None


def _first(rows: Sequence[Mapping[str, Any]], graph: str, key: tuple[Any, ...]) -> Mapping[str, Any] | None:
    return base_rows(rows, graph).get(key)


def _sentence(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...]) -> float | None:
    row = _first(rows, "pipeline", key)
    return None if row is None or row["rtf"] is None else 1e3 * row["rtf"]


def _batch(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...]) -> float | None:
    if key[0].startswith("upstream"):  # it has no batches: one after the other
        row = _first(rows, "frame", key)
        return None if row is None else _BATCH * row["ms_median"]
    for row in rows:
        who = (row["candidate"], row["precision"], row["device"])
        if who == key and row["graph"] == "frame" and row["batch"] == _BATCH and row["not_run"] is None:
            return row["ms_median"]
    return None


def _first_audio(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...]) -> float | None:
    row = _first(rows, "pipeline", key)
    return None if row is None else row["ttfa_ms"]


def _memory(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...], stage: str) -> float | None:
    row = _first(rows, "frame", key)
    witness = "driver_mb" if key[2] == "cuda" else "host_mb"
    return None if row is None else row["memory"].get(stage, {}).get(witness)


def _loaded(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...]) -> float | None:
    return _memory(rows, key, "weights")


def _peak(rows: Sequence[Mapping[str, Any]], key: tuple[Any, ...]) -> float | None:
    return _memory(rows, key, "peak")
