"""Writes the README's results from the records, so that no figure in it was ever typed.

python -m fstrt_helpers.show.benchmarks           writes the table into README.md and the figure beside the records
python -m fstrt_helpers.show.benchmarks --check   only says whether both are up to date
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FstrtError
from ..measure.recommend import USERS, base_rows, recommend
from ..measure.record import RECORD_FOLDER, read_records
from ..measure.verdicts import QUALITY_FOLDER, Verdict, find_verdict, read_verdicts
from .benchmark_tables import machine_label

__all__ = [
    "BEGIN",
    "END",
    "FIGURE",
    "ResultsError",
    "draw_figure",
    "figure_digest",
    "main",
    "render",
    "stale",
    "write_results",
]

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
FIGURE = "speed.png"
_ROOT = Path(__file__).resolve().parents[2]
_MARK = "Description"  # of the picture: the digest of the records it was drawn from

Records = Mapping[str, Mapping[str, Any]]


class ResultsError(FstrtError):
    """The README has no place for the results."""


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([str(row[name]) for name in names] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def render(records: Records, verdicts: Sequence[Verdict]) -> str:
    """The part of the README between the markers, as Markdown.

    Args:
        records: Benchmark records by name.
        verdicts: What the quality gate said.
    """
    if not records:
        return "No benchmark record lies in `data/benchmarks` yet."
    parts = [
        "One frame is 46.4 ms of audio; below that, speech is made faster than it is heard. The ratios are against"
        " upstream's own\ncode, run eagerly on the same machine in the same minutes. Each row is one record's base"
        " point, one row of speech.",
        f"![Milliseconds per frame by candidate, a panel per machine](data/benchmarks/{FIGURE})",
    ]
    for record in records.values():
        parts.append(_introduction(record))
        parts.append(_markdown(_speed_lines(record, verdicts)))
        if gaps := _gaps(record):
            parts.append("Not run there: " + "; ".join(gaps) + ".")
    parts.append("What the figures recommend, among precisions that passed the quality gate:")
    parts.append(
        _markdown(
            [
                {"machine": machine_label(record), "for": row["user"], "use": row["use"], "because": row["because"]}
                for record in records.values()
                for row in (recommend(record, verdicts, user).row() for user in USERS)
            ]
        )
    )
    return "\n\n".join(parts)


def _introduction(record: Mapping[str, Any]) -> str:
    """Machine, date, the point that was measured, and whether the machine was busy with something else."""
    machine, base = record["machine"], base_rows(record["rows"])
    facts = [machine["cpu"], record["date"][:10]]
    if record["commit"]:
        facts.append(f"commit {record['commit'][:8]}")
    text = f"**{machine_label(record)}** ({', '.join(facts)})."
    first = next((row for key, row in base.items() if not key[0].startswith("upstream")), None)
    ships = next((row for key, row in base.items() if key[0].startswith("upstream")), None)
    if first:
        text += f" KV cache of {first['capacity']} columns, {first['position']} filled"
        how = "as it ships allocates" if ships and ships["note"] == "as it ships" else "was given"
        text += f"; upstream {how} {ships['capacity']}." if ships else "."
    load = max(record["settings"].get("load", [0.0]), default=0.0)
    if load > machine["cores"] + 1:
        text += (
            f"\nThe machine was busy with other work (load {load:.0f}): trust the ratios more than the milliseconds."
        )
    return text


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return ""
    return (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}") + unit


def _speed_lines(record: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    spoken = base_rows(record["rows"], "pipeline")
    return [
        {
            "candidate": key[0],
            "precision": key[1],
            "ms per frame (p95)": f"{_number(row['ms_median'])} ({_number(row['ms_p95'])})",
            "real-time factor": _number(row["rtf"]),
            "faster than upstream": _number(row["vs_eager"], "x"),
            "first audio (ms)": _number(spoken.get(key, {}).get("ttfa_ms")),
            "memory (MB)": _number(row["memory_mb"]),
            "quality gate": find_verdict(verdicts, *key[:2])[1],
        }
        for key, row in base_rows(record["rows"]).items()
    ]


def _gaps(record: Mapping[str, Any]) -> list[str]:
    """Candidates without a single figure for the frame, grouped by their reason."""
    ran = base_rows(record["rows"])
    reasons: dict[str, list[str]] = {}
    for row in record["rows"]:
        key = (row["candidate"], row["precision"], row["device"])
        if row["not_run"] and row["graph"] == "frame" and key not in ran:
            reasons.setdefault(row["not_run"], []).append(f"{key[0]} {key[1]}")
    return [f"{', '.join(dict.fromkeys(who))} ({reason.rstrip('.')})" for reason, who in reasons.items()]


def figure_digest(records: Records) -> str:
    """SHA-256 of everything the figure shows."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def draw_figure(records: Records) -> bytes:
    """The README's figure as PNG, with the digest of its records inside."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    from .benchmark_plots import plot_speed

    full, small, info = io.BytesIO(), io.BytesIO(), PngInfo()
    plot_speed(records).savefig(full, format="png", dpi=110)
    info.add_text(_MARK, figure_digest(records))
    image = Image.open(full).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    image.save(small, "png", optimize=True, pnginfo=info)
    return small.getvalue()


def _split(readme: Path) -> tuple[str, str, str]:
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ResultsError(
            "there is no place for the results", where=readme, fix=f"put {BEGIN} and {END} on lines of their own"
        )
    before, rest = text.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside, after


def _read(folder: Path) -> tuple[Records, list[Verdict]]:
    return read_records(folder), read_verdicts(folder / QUALITY_FOLDER.name)


def stale(readme: Path = _ROOT / "README.md", folder: Path = RECORD_FOLDER) -> list[str]:
    """What does not follow from the records: the table, the figure, both, or nothing.

    Raises:
        ResultsError: The README has no markers.
        RecordError: A record is damaged.
    """
    from PIL import Image

    records, verdicts = _read(folder)
    found = []
    if _split(readme)[1].strip() != render(records, verdicts).strip():
        found.append(readme.name)
    try:
        with Image.open(folder / FIGURE) as image:
            drawn_from = image.info.get(_MARK)
    except OSError:
        drawn_from = None
    if records and drawn_from != figure_digest(records):
        found.append(FIGURE)
    return found


def write_results(readme: Path = _ROOT / "README.md", folder: Path = RECORD_FOLDER) -> None:
    """Puts table and figure in their places, each in one step; everything outside the markers stays.

    Raises:
        ResultsError: The README has no markers.
        RecordError: A record is damaged.
    """
    records, verdicts = _read(folder)
    before, _, after = _split(readme)
    if records:
        _replace(folder / FIGURE, draw_figure(records))
    text = f"{before}{BEGIN}\n\n{render(records, verdicts)}\n\n{END}{after}"
    _replace(readme, text.encode("utf-8"))


def _replace(path: Path, content: bytes) -> None:
    handle, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fstrt_helpers.show.benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if something is out of date")
    a = parser.parse_args(argv)
    try:
        if not a.check:
            write_results()
        old = stale()
    except FstrtError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"out of date: {', '.join(old)}" if old else "README.md and its figure follow from the records")
    return bool(old)


if __name__ == "__main__":
    sys.exit(main())
