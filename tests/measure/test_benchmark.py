"""A whole run on a small checkpoint: processes, rounds, record, table."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from fstrt_helpers.driver import driver_gpus
from fstrt_helpers.errors import CheckpointError, ParameterError
from fstrt_helpers.measure import benchmark
from fstrt_helpers.measure.record import read_record
from fstrt_helpers.measure.results import table_rows

from ..checkpoints import write_random_checkpoint
from ..upstream import import_upstream_lib


@pytest.mark.slow
def test_a_run_makes_a_record_and_says_where_to_send_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_upstream_lib()
    folder, out = write_random_checkpoint(tmp_path / "random"), tmp_path / "record.json"
    options = "--measure frame prefill --rounds 2 --frames 4 --position 30 --capacity 64 --prompt 16 --batch 1 2"
    candidates = ["upstream-eager", "torch", "torch-cudagraph"]
    code = benchmark.main([str(folder), *options.split(), "--candidates", *candidates, "--out", str(out)])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    record = read_record(out)
    rows = {(r["candidate"], r["graph"], r["batch"], r["note"]): r for r in record["rows"]}
    ours, eager = rows["torch", "frame", 1, None], rows["upstream-eager", "frame", 1, "as it ships"]
    assert (eager["capacity"], ours["capacity"]) == (1024, 64)
    assert rows["upstream-eager", "frame", 1, "its cache cut to this capacity"]["capacity"] == 64
    assert ours["samples"] == 8 and len(ours["round_ms"]) == 2
    ratios = [theirs / mine for theirs, mine in zip(eager["round_ms"], ours["round_ms"], strict=True)]
    assert ours["vs_eager"] == pytest.approx(median(ratios), rel=1e-3) and eager["vs_eager"] == 1
    assert ours["vs_eager_range"] == pytest.approx([min(ratios), max(ratios)], rel=1e-3)
    assert ours["floor_share"] == pytest.approx(ours["floor_ms"] / ours["ms_median"], rel=1e-3)
    assert "batch row 0" in rows["upstream-eager", "frame", 2, None]["not_run"]
    assert rows["torch", "frame", 2, None]["frames_per_second"] > 0
    assert rows["torch", "prefill", 1, None]["prefill_only_ms"] > 0
    assert rows["upstream-eager", "prefill", 1, "as it ships"]["capacity"] == 1024
    assert set(ours["memory"]) == {"weights", "opening", "steady", "peak"} and ours["open_ms"] > 0
    if not driver_gpus()[0]:
        assert rows["torch-cudagraph", "frame", 1, None]["not_run"] == "no NVIDIA GPU here"
        assert len([r for r in record["rows"] if r["candidate"] == "torch-cudagraph"]) == 1
    assert record["seed"] == 0 and len(record["inputs"]) > 5 and record["bandwidth"]["cpu"] > 0
    assert "pull request" in printed.out and "data/benchmarks" in printed.out
    assert all(name in printed.out for name in candidates)
    assert str(tmp_path) not in out.read_text()
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".json"] == ["record.json"]
    assert len(table_rows(record["rows"])) == len(record["rows"])


@pytest.mark.parametrize(
    "wrong", [dict(rounds=0), dict(frames=1), dict(frames=1000), dict(seed=-1), dict(measures=["speed"])], ids=str
)
def test_wrong_settings_are_refused_before_anything_starts(tmp_path: Path, wrong: dict) -> None:
    with pytest.raises(ParameterError):
        benchmark.run_benchmark(str(write_random_checkpoint(tmp_path / "random")), **wrong)


def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckpointError):
        benchmark.run_benchmark(str(tmp_path / "none"))
    assert benchmark.main([str(tmp_path / "none"), "--out", str(tmp_path / "r.json")]) == 1
    assert "none" in capsys.readouterr().err and not (tmp_path / "r.json").exists()
