"""The form of a record: a good one passes, every way to be wrong is named, and nothing half-written is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fstrt_helpers.measure.provenance import describe_machine, describe_versions, git_commit
from fstrt_helpers.measure.record import RecordError, check_record, read_record, read_records, write_record

from .made_up import record, row


def test_a_good_record_is_kept_as_it_is(tmp_path: Path) -> None:
    path = write_record(record(), tmp_path / "new" / "here.json")
    assert read_record(path) == record()
    assert [file.name for file in path.parent.iterdir()] == ["here.json"]
    assert len(path.read_text().splitlines()) > 10  # a row per line: differences can be read
    assert list(read_records(path.parent)) == ["here"]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (record(schema=2), "schema 2"),
        (record(kind="notebook"), "'notebook'"),
        (record(date="yesterday"), "no date"),
        (record(date="2026-12-01T12:00:00"), "time zone"),
        (record(machine={"cpu": "a", "cores": "two", "gpu": None, "driver": None}), "cores is 'two'"),
        (record(more=1), "more is not known"),
        (record(rows=[]), "no rows"),
        (record(row(candidate="tensorflow")), "no candidate 'tensorflow'"),
        (record(row(graph="codec")), "no graph 'codec'"),
        (record(row(precision="fp16")), "no precision 'fp16'"),
        (record(row(ms_median=None)), "neither figures nor a reason"),
        (record(row(not_run="no GPU")), "not run, yet it has figures"),
        (record(row(ms_p95=1.0)), "min, median, p95 and max"),
        (record(row(ms_min=0.0)), "min, median, p95 and max"),
        (record(row(rtf=float("nan"))), "rtf is not finite"),
        (record(row(batch=True)), "batch is True"),
        (record(row(batch=0)), "batch is 0"),
        (record(row(round_ms=[])), "no rounds"),
        (record({k: v for k, v in row().items() if k != "not_run"}), "not_run is missing"),
        (record(row(speed=1)), "speed is not known"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_way_to_be_wrong_is_named(broken: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        check_record(broken)


def test_a_wrong_record_replaces_nothing(tmp_path: Path) -> None:
    path = write_record(record(), tmp_path / "here.json")
    with pytest.raises(RecordError):
        write_record(record(rows=[]), path)
    assert read_record(path) == record() and [file.name for file in tmp_path.iterdir()] == ["here.json"]


def test_a_damaged_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_text(json.dumps(record())[:200])
    with pytest.raises(RecordError, match=r"half\.json"):
        read_record(path)
    path.write_text("[]")
    with pytest.raises(RecordError, match="no JSON object"):
        read_record(path)


def test_every_record_in_the_repository_has_the_form() -> None:
    for name, kept in read_records().items():
        ran = [r for r in kept["rows"] if r["not_run"] is None]
        assert ran and kept["commit"], name


def test_where_figures_come_from(root: Path) -> None:
    machine, versions = describe_machine(), describe_versions()
    check_record(record(machine=machine, versions=versions))
    assert machine["cores"] >= 1 and versions["torch"] and versions["fstrt_helpers"]
    assert git_commit(root / "no such folder") is None
    commit = git_commit(root)
    assert commit is None or len(commit.removesuffix("+")) == 40
