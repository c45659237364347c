"""What the quality gate said of each candidate, kept as JSON beside the benchmark records.

    python -m fstrt_helpers.measure.verdicts tiny --candidates ort-cpu:int8 --out data/benchmarks/quality/tiny.json

Speed needs no trained weights, quality does: what is recommended for one checkpoint rests on the verdict on another of
the same construction, in the same precision.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, find_checkpoint
from ..errors import FstrtError, ParameterError
from .candidates.names import CANDIDATES, Contender, contenders
from .gate import REQUIRED
from .prompts import PROMPTS
from .provenance import describe_machine, describe_versions, git_commit
from .record import RECORD_FOLDER, RecordError

__all__ = ["QUALITY_FOLDER", "Verdict", "find_verdict", "judge_candidates", "main", "read_verdicts", "write_reports"]

QUALITY_FOLDER = RECORD_FOLDER / "quality"
_BACKENDS = {"torch": "torch", "torch-cudagraph": "torch-cudagraph", "ort-cpu": "onnxruntime",
             "ort-cuda-graph": "onnxruntime-cuda", "tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt"}  # fmt: skip
_HEAD = ("schema", "kind", "date", "commit", "machine", "versions", "checkpoint", "reports")


@dataclass(frozen=True)
class Verdict:
    """What is known of a precision on a back end.

    Attributes:
        candidate: Who was judged.
        precision: In which precision.
        device: Where.
        checkpoint: Whose speech it was.
        passed: Whether everything measured is within its limit, and all that a recommendation needs was measured.
        agreement: Share of draws that are those of float32 with the same noise.
        mel_db: Log-mel distance of the decoded sound in dB.
        recall: Share of words that a recogniser understood of its own speech; None where none listened.
        stop_rate: Share of prompts that ended by themselves.
        words: In words, for tables.
    """

    candidate: str
    precision: str
    device: str
    checkpoint: str
    passed: bool
    agreement: float | None
    mel_db: float | None
    recall: float | None
    stop_rate: float | None
    words: str


def read_verdicts(folder: Path = QUALITY_FOLDER) -> list[Verdict]:
    """Every verdict of a folder; of two on the same candidate the later one.

    Raises:
        RecordError: A file is damaged.
    """
    found: dict[tuple[str, str, str], Verdict] = {}
    records = [_read(path) for path in sorted(folder.glob("*.json"))]
    for record in sorted(records, key=lambda record: record["date"]):
        for entry in record["reports"]:
            verdict = _verdict(entry, record["checkpoint"])
            found[verdict.candidate, verdict.precision, verdict.device] = verdict
    return list(found.values())


def _read(path: Path) -> dict[str, Any]:
    fix = "python -m fstrt_helpers.measure.verdicts"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"the quality record cannot be read: {error}", where=path, fix=fix) from error
    lacks = [key for key in _HEAD if not isinstance(record, dict) or key not in record]
    if lacks or record["kind"] != "quality":
        raise RecordError(f"this is no quality record: it lacks {', '.join(lacks) or 'its kind'}", where=path, fix=fix)
    for entry in record["reports"]:
        if entry.get("candidate") not in CANDIDATES or not {"precision", "device", "report"} <= entry.keys():
            raise RecordError(f"a report names no candidate: {str(entry)[:80]}", where=path, fix=fix)
    return record


def _verdict(entry: Mapping[str, Any], checkpoint: str) -> Verdict:
    report = entry["report"]
    values = {c["name"]: c["value"] for c in report["criteria"] if c["verdict"] != "not measured"}
    missing = [name for name in REQUIRED if name not in values]
    failed = [c["name"] for c in report["criteria"] if c["verdict"] == "FAIL"]
    passed = bool(values) and not failed and not missing
    words = "passes" if passed else f"fails: {', '.join(failed)}" if failed else f"not judged: {', '.join(missing)}"
    return Verdict(
        entry["candidate"],
        entry["precision"],
        entry["device"],
        checkpoint,
        passed,
        values.get("agreement"),
        values.get("log-mel distance"),
        values.get("recall, own speech"),
        values.get("stop rate"),
        words,
    )


def find_verdict(verdicts: Iterable[Verdict], candidate: str, precision: str) -> tuple[bool, str]:
    """Whether a candidate may be recommended, and on what that rests.

    Upstream's code is the model itself, and PyTorch in float32 the reference of the gate. A candidate that was not
    judged itself takes the verdict on a relative: the same library and precision, on another device.

    Args:
        verdicts: From :func:`read_verdicts`.
        candidate: Name of the candidate.
        precision: Its precision.
    """
    if candidate.startswith("upstream"):
        return True, "the original"
    if (candidate, precision) == ("torch", "float32"):
        return True, "the reference of the gate"
    known = [v for v in verdicts if v.precision == precision]
    own = [v for v in known if v.candidate == candidate]
    related = [v for v in known if v.candidate.split("-")[0] == candidate.split("-")[0]]
    for verdict in [*own, *related]:
        who = "" if verdict.candidate == candidate else f", judged as {verdict.candidate} on {verdict.device}"
        return verdict.passed, f"{verdict.words}{who}"
    return False, "not judged"


def judge_candidates(
    checkpoint: Checkpoint | str = "tiny",
    wanted: Sequence[str] = ("ort-cpu:int8",),
    *,
    prompts: int = len(PROMPTS),
    device: str = "auto",
    progress: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Judges candidates against PyTorch in float32, one after the other.

    Args:
        checkpoint: Trained weights.
        wanted: ``name:precision``.
        prompts: How many of the fixed sentences.
        device: See :func:`~.candidates.names.contenders`.
        progress: Called with a line of text before each candidate.
        **options: Further ones of :class:`~.quality.QualityJudge`.

    Returns:
        Entries for :func:`write_reports`.

    Raises:
        ParameterError: Upstream was asked for, random weights, or a number of prompts that is not there.
        FstrtError: A candidate cannot run here.
    """
    from ..speech import FishSpeech
    from ..speech.backends import open_backend
    from .candidates.making import make_missing
    from .quality import QualityJudge

    checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else find_checkpoint(checkpoint)
    if checkpoint.random_seed is not None:
        raise ParameterError("random weights have no quality to judge", fix="use tiny or fish-speech-1.5")
    if not 1 <= prompts <= len(PROMPTS):
        raise ParameterError(f"{prompts} prompts are wanted", fix=f"give a number from 1 to {len(PROMPTS)}")
    entered = contenders(list(wanted), device)
    if unknown := [str(c) for c in entered if c.name not in _BACKENDS]:
        raise ParameterError(f"{unknown[0]} is not judged", fix=f"use some of: {', '.join(_BACKENDS)}")
    reference = FishSpeech.from_checkpoint(str(checkpoint.folder), backend="torch", precision="float32", strict=True)
    judge = QualityJudge(reference, prompts=PROMPTS[:prompts], **options)
    entries = []
    for contender in entered:
        progress(f"judging {contender}")
        make_missing(contender, checkpoint, ("prefill", "frame", "codec_decode", "codec_encode"))
        backend = open_backend(checkpoint, _BACKENDS[contender.name], contender.precision)
        entries.append(_entry(contender, judge.judge(backend.runtimes).record()))
        backend.close()
    return entries


def _entry(contender: Contender, report: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "candidate": contender.name,
        "precision": contender.precision,
        "device": contender.device,
        "report": dict(report),
    }


def write_reports(entries: Sequence[Mapping[str, Any]], checkpoint: str, path: Path) -> Path:
    """Writes what :func:`judge_candidates` found, with machine, versions, commit and date, in one step."""
    record = {
        "schema": 1,
        "kind": "quality",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "checkpoint": checkpoint,
        "reports": list(entries),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(suffix=".json", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: judges, prints the reports, writes the record."""
    parser = argparse.ArgumentParser(
        prog="python -m fstrt_helpers.measure.verdicts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("checkpoint", nargs="?", default="tiny")
    parser.add_argument("--candidates", nargs="+", metavar="NAME:PRECISION", default=["ort-cpu:int8", "ort-cpu:int4"])
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args(argv)
    try:
        entries = judge_candidates(
            a.checkpoint,
            a.candidates,
            prompts=a.prompts,
            device=a.device,
            progress=lambda message: print(message, file=sys.stderr, flush=True),
        )
    except FstrtError as error:
        print(error, file=sys.stderr)
        return 1
    write_reports(entries, Path(a.checkpoint).name, a.out)
    for entry in entries:
        verdict = _verdict(entry, a.checkpoint)
        print(f"{verdict.candidate}:{verdict.precision} {verdict.words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
