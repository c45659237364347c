"""What the README and the notebook show of records: nothing typed, nothing left out."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from fstrt_helpers.measure.record import write_record
from fstrt_helpers.measure.verdicts import read_verdicts
from fstrt_helpers.show import benchmark_plots as plots
from fstrt_helpers.show import benchmark_tables as tables
from fstrt_helpers.show import benchmarks
from fstrt_helpers.show.roofline_plot import plot_roofline, roofline_points

from ..measure.made_up import machine_record, verdict
from .test_plots import text_in

RECORDS = {"laptop": machine_record(), "server": machine_record(gpu=True)}
VERDICTS = [verdict("ort-cpu", "int8"), verdict("ort-cpu", "int4", passed=False), verdict("torch", "float16")]


def test_the_readme_and_its_figure_follow_from_the_records(root: Path) -> None:
    assert benchmarks.stale(root / "README.md", root / "data" / "benchmarks") == [], (
        "run: python -m fstrt_helpers.show.benchmarks"
    )


def test_results_are_written_between_the_markers_and_found_stale_when_a_record_changes(tmp_path: Path) -> None:
    readme, folder = tmp_path / "README.md", tmp_path / "records"
    readme.write_text(f"# Title\n\n{benchmarks.BEGIN}\nold\n{benchmarks.END}\n\nrest\n")
    write_record(RECORDS["laptop"], folder / "laptop.json")
    assert benchmarks.stale(readme, folder) == ["README.md", "speed.png"]
    benchmarks.write_results(readme, folder)
    text = readme.read_text()
    assert benchmarks.stale(readme, folder) == []
    assert text.startswith("# Title\n\n") and text.endswith("\n\nrest\n") and "old" not in text
    assert "| torch | float32 | 40 (48) | 0.861 | 2x | 300 | 2,500 |" in text
    assert "tensorrt float16 (no TensorRT here)" in text
    benchmarks.write_results(readme, folder)
    assert readme.read_text() == text
    changed = machine_record()
    changed["rows"][1]["ms_median"] = 41.0
    write_record(changed, folder / "laptop.json")
    assert benchmarks.stale(readme, folder) == ["README.md", "speed.png"]
    assert read_verdicts(folder / "quality") == []


def test_a_readme_without_a_place_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("# Title\n")
    with pytest.raises(benchmarks.ResultsError, match="no place"):
        benchmarks.write_results(readme, tmp_path)
    assert readme.read_text() == "# Title\n"


def test_without_records_there_is_a_sentence() -> None:
    assert "No benchmark record" in benchmarks.render({}, [])
    assert "no records" in str(tables.machines_table({}))


def test_the_figure_carries_the_digest_of_its_records() -> None:
    image = Image.open(io.BytesIO(benchmarks.draw_figure(RECORDS)))
    assert image.info["Description"] == benchmarks.figure_digest(RECORDS) and image.width > 800


def test_tables_name_what_is_missing() -> None:
    speed = tables.speed_table(RECORDS["laptop"]).rows
    assert [row["not run"] for row in speed if row["candidate"] == "tensorrt"] == ["no TensorRT here"]
    assert [row["frame (ms)"] for row in speed if row["candidate"] == "torch"] == [40]
    missing = tables.missing_table({"laptop": RECORDS["laptop"]}).rows
    assert [row["why not"] for row in missing] == [
        "upstream's generate samples only batch row 0",
        "no TensorRT here",
        "no record of a GPU lies in data/benchmarks yet",
    ]
    assert len(tables.missing_table(RECORDS).rows) == 4  # there is one now


def test_growth_is_fitted_where_it_was_varied() -> None:
    rows = {row["candidate"]: row for row in tables.growth_table({"laptop": RECORDS["laptop"]}).rows}
    # 44 at 1200 of 2048, 42 at 300 of 2048, 40 at 300 of 512
    assert rows["torch float32"]["per 1000 filled (ms)"] == pytest.approx(2 / 0.9)
    assert rows["torch float32"]["per 1000 allocated (ms)"] == pytest.approx(2 / 1.536)
    assert "apart" in rows["ort-cpu int8"]["remark"]


def test_tables_of_verdicts_recommendations_and_claims() -> None:
    assert [row["gate"] for row in tables.verdict_table(VERDICTS).rows] == ["passes", "fails: agreement", "passes"]
    assert len(tables.recommendation_table(RECORDS, VERDICTS).rows) == 6
    assert len(tables.claims_table(RECORDS, VERDICTS).rows) == 10


def test_every_picture_shows_every_record_and_every_candidate() -> None:
    drawn = [plots.plot_speed(RECORDS), plots.plot_spoken(RECORDS), plots.plot_memory(RECORDS)]
    for figure in (*drawn, plots.plot_quality(RECORDS, VERDICTS), plot_roofline(RECORDS)):
        text = text_in(figure)
        assert "2 CPU cores, full-random" in text and "NVIDIA H200, full-random" in text
        assert "torch float32" in text and "ort-cpu int8" in text, figure.summary
    text = text_in(plots.plot_growth(RECORDS))
    assert "columns filled" in text and "columns allocated" in text and "ort-cpu int4" in text
    assert "frames per second" in text_in(plots.plot_throughput(RECORDS))


def test_pictures_of_nothing_say_so() -> None:
    for draw in (plots.plot_speed, plots.plot_spoken, plots.plot_memory, plots.plot_throughput, plots.plot_growth):
        assert "no record holds this yet" in text_in(draw({}))


def test_bars_are_as_long_as_the_figures() -> None:
    figure = plots.plot_speed({"laptop": RECORDS["laptop"]})
    assert sorted(bar.get_width() for bar in figure.axes[0].patches) == [15, 20, 40, 80]
    spoken = plots.plot_spoken({"laptop": RECORDS["laptop"]})
    ends = {round(bar.get_x() + bar.get_width(), 6) for bar in spoken.axes[0].patches}
    assert {2.0, 1.0, 0.5, 0.4} <= ends  # the stages add up to the real-time factor


def test_points_of_the_roofline() -> None:
    points = roofline_points(RECORDS["laptop"])
    one, eight = (next(p for p in points if p["batch"] == b and p["candidate"] == "torch") for b in (1, 8))
    assert 0.4 < one["intensity"] < 0.6 and eight["intensity"] > 7 * one["intensity"]
    assert eight["gflops"] / one["gflops"] == pytest.approx(8 * 40 / 100, rel=1e-6)
