"""The file in which notebooks keep what they measured."""

from __future__ import annotations

import json
from pathlib import Path

from fstrt_helpers.measure.records import keep_rows
from fstrt_helpers.show import tutorial


def test_a_second_run_replaces_the_rows_of_the_first(tmp_path: Path) -> None:
    keep_rows(tmp_path, "02", [{"ms": 9.0}])
    keep_rows(tmp_path, "01", [{"ms": 1.0}, {"ms": 2.0}])
    path = keep_rows(tmp_path, "01", [{"ms": 3.0}])
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["rows"] == [{"notebook": "01", "ms": 3.0}, {"notebook": "02", "ms": 9.0}]
    assert record["schema"] == 1 and record["machine"]["cores"] >= 1 and record["date"].startswith("20")
    assert [file.name for file in tmp_path.iterdir()] == ["measurements.json"]


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "measurements.json").write_text('{"rows": [')
    assert json.loads(keep_rows(tmp_path, "01", [{"ms": 1}]).read_text())["rows"] == [{"notebook": "01", "ms": 1}]


def test_the_runner_reads_what_is_written(tmp_path: Path) -> None:
    keep_rows(tmp_path / "outputs", "01", [{"ms": 1.5}])
    assert tutorial._measured(tmp_path / "outputs") == [{"notebook": "01", "ms": 1.5}]
