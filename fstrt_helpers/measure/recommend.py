"""Which way to run the model, for three kinds of users: computed from a record and the verdicts, never from opinion.

A candidate is considered if it ran, and if its precision passed the quality gate. What is best depends on the user:

| user | must | best is |
|---|---|---|
| real-time voice agent | p95 of a frame within the 46.4 ms that it lasts | earliest first audio |
| offline narration | nothing more | most frames per second, in the batch it does best |
| small GPU or none | a CPU, or a GPU with at most 4 GB of it taken | least memory among those in real time |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ParameterError
from .parts import FRAME_SECONDS
from .verdicts import Verdict, find_verdict

__all__ = ["SMALL_GPU_MB", "USERS", "Recommendation", "base_rows", "recommend"]

USERS = ("real-time voice agent", "offline narration", "small GPU or none")
SMALL_GPU_MB = 4000.0
_FRAME_MS = 1e3 * FRAME_SECONDS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Recommendation:
    """What to use, and why.

    Attributes:
        user: One of :data:`USERS`.
        candidate: Name, or None where nothing qualifies.
        precision: Of it.
        device: Where it runs.
        figure: The measured figure that decided, with its unit.
        why: On what else it rests: the verdict on its quality.
        next_best: The runner-up with its figure; empty if it was the only one.
        passed_over: Candidates that ran and may not be recommended, each with its reason.
    """

    user: str
    candidate: str | None
    precision: str | None
    device: str | None
    figure: str
    why: str
    next_best: str
    passed_over: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "user": self.user,
            "use": f"{self.candidate} {self.precision} on {self.device}" if self.candidate else "none",
            "because": self.figure,
            "quality": self.why,
            "next best": self.next_best,
            "passed over": "; ".join(self.passed_over),
        }


@dataclass(frozen=True)
class _Option:
    """A candidate that may be recommended to a user: the lower the rank, the better."""

    row: Row
    rank: tuple[float, ...]
    figure: str
    why: str


def base_rows(rows: Iterable[Row], graph: str = "frame") -> dict[tuple[str, str, str], Row]:
    """The first row of every candidate for a graph that has figures: the base point, one row of speech.

    Returns:
        Rows by candidate, precision and device, in the order of the record.
    """
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        if row["graph"] == graph and row["not_run"] is None and row["batch"] == 1:
            found.setdefault((row["candidate"], row["precision"], row["device"]), row)
    return found


def recommend(record: Mapping[str, Any], verdicts: Sequence[Verdict], user: str) -> Recommendation:
    """Finds what serves a user best on the machine of a record.

    Args:
        record: A benchmark record.
        verdicts: What the quality gate said.
        user: One of :data:`USERS`.

    Raises:
        ParameterError: There is no such user.
    """
    if user not in USERS:
        raise ParameterError(f"there is no user {user!r}", fix=f"use one of: {', '.join(USERS)}")
    judge = {USERS[0]: _agent, USERS[1]: _narration, USERS[2]: _small}[user]
    options: list[_Option] = []
    passed_over: list[str] = []
    for key, frame in base_rows(record["rows"]).items():
        who = f"{key[0]} {key[1]}"
        good, quality = find_verdict(verdicts, *key[:2])
        if not good:
            passed_over.append(f"{who}: {quality}")
            continue
        found = judge(record["rows"], key, frame)
        if isinstance(found, str):
            passed_over.append(f"{who}: {found}")
        else:
            options.append(_Option(frame, found[0], found[1], quality))
    if not options:
        nobody = "none that passed the gate is fit for it"
        return Recommendation(user, None, None, None, nobody, "", "", tuple(passed_over))
    best, *others = sorted(options, key=lambda option: option.rank)
    after = f"{others[0].row['candidate']} {others[0].row['precision']}: {others[0].figure}" if others else ""
    names = (best.row[key] for key in ("candidate", "precision", "device"))
    return Recommendation(user, *names, best.figure, best.why, after, tuple(passed_over))


def _agent(rows: Iterable[Row], key: tuple[str, str, str], frame: Row) -> tuple[tuple[float, ...], str] | str:
    if frame["ms_p95"] > _FRAME_MS:
        return f"p95 of a frame is {frame['ms_p95']:.3g} ms, it lasts {_FRAME_MS:.1f}"
    spoken = base_rows(rows, "pipeline").get(key)
    if spoken is None or spoken["ttfa_ms"] is None:
        return "its time to first audio was not measured"
    return (
        spoken["ttfa_ms"],
    ), f"first audio after {spoken['ttfa_ms']:.3g} ms, p95 of a frame {frame['ms_p95']:.3g} ms"


def _narration(rows: Iterable[Row], key: tuple[str, str, str], frame: Row) -> tuple[tuple[float, ...], str]:
    mine = [
        row
        for row in rows
        if row["graph"] == "frame"
        and row["not_run"] is None
        and (row["candidate"], row["precision"], row["device"]) == key
    ]
    best = max(mine, key=lambda row: row["frames_per_second"])
    times = best["frames_per_second"] * FRAME_SECONDS
    rate = f"{best['frames_per_second']:,.4g} frames/s in batches of {best['batch']}"
    return (-best["frames_per_second"],), f"{rate}, {times:.3g} times as fast as speech"


def _small(rows: Iterable[Row], key: tuple[str, str, str], frame: Row) -> tuple[tuple[float, ...], str] | str:
    memory = frame["memory_mb"]
    if memory is None:
        return "its memory was not measured"
    if frame["device"] == "cuda" and memory > SMALL_GPU_MB:
        return f"takes {memory:,.0f} MB of the GPU, more than {SMALL_GPU_MB:,.0f}"
    if frame["rtf"] <= 1:
        return (0, memory), f"{memory:,.0f} MB, real-time factor {frame['rtf']:.2g}"
    return (1, frame["rtf"]), f"nothing is in real time here; real-time factor {frame['rtf']:.2g}, {memory:,.0f} MB"
