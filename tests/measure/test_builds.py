"""Build records: measured in processes of their own, checked when written and when read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fstrt_helpers.errors import EngineError
from fstrt_helpers.measure.builds import BUILD_RECORDS, measure_build, read_build_records, write_build_record
from fstrt_helpers.measure.record import RecordError

from ..engines.conftest import save

HALF = TensorProto.FLOAT16


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A real build of a small graph that is called like one of the four."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    folder = tmp_path_factory.mktemp("builds")
    weight = numpy_helper.from_array(np.ones((64, 64), np.float16), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    free = (HALF, ["B", "T", 64])
    save(folder / "graphs" / "little" / "float16", "codec_decode", nodes, {"x": free}, {"y": free}, [weight])
    return measure_build(
        "little",
        "codec_decode",
        "float16",
        flavour="tensorrt_rtx",
        graph_folder=folder / "graphs",
        folder=folder / "engines",
    )


def test_a_build_is_measured_cold_and_warm(row):
    assert (row["checkpoint"], row["graph"], row["precision"], row["target"]) == (
        "little",
        "codec_decode",
        "float16",
        "portable",
    )
    assert row["products"] == {"float16": 1.0} and row["layers"] >= 1
    assert row["MB"] > row["graph_MB"] >= 0.01
    assert row["cpu_seconds"] > 0 and row["seconds"] > 0 and row["warm_seconds"] >= 0


def test_a_failure_says_what_the_process_said(tmp_path):
    with pytest.raises(EngineError, match="codec_decode in float16 failed") as caught:
        measure_build("tiny", "codec_decode", "float16", graph_folder=tmp_path, folder=tmp_path)
    assert "was not exported" in str(caught.value)


def test_a_record_survives_writing_and_reading(row, tmp_path):
    path = write_build_record([row, row | {"graph": "frame", "capacity": 512}], tmp_path / "engines" / "mine.json")
    record = read_build_records(path.parent)["mine"]
    assert record["rows"][0] == row and record["machine"]["cores"] >= 1 and record["versions"]["python"]
    assert len([line for line in path.read_text().splitlines() if line.lstrip().startswith('{"checkpoint"')]) == 2


@pytest.mark.parametrize("wrong", [{"MB": "much"}, {"layers": True}, {"MB": 0}, {"products": None}])
def test_a_wrong_row_is_not_written(row, wrong, tmp_path):
    with pytest.raises(RecordError, match=next(iter(wrong))):
        write_build_record([row | wrong], tmp_path / "bad.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"kind": "benchmark"}'])
def test_a_damaged_record_is_named(text, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(RecordError) as caught:
        read_build_records(tmp_path)
    assert Path(str(caught.value.where)).name == "bad.json"


def test_the_shipped_records_keep_what_they_promise():
    """Built without a GPU, all products in the precision asked for, and there again within a second."""
    records = read_build_records()
    assert records
    for record in records.values():
        assert record["machine"]["gpu"] is None and record["versions"]["tensorrt-rtx"]
        keys = [(row["checkpoint"], row["graph"], row["precision"]) for row in record["rows"]]
        assert len(set(keys)) == len(keys)
        for row in record["rows"]:
            assert row["warm_seconds"] < 1, row
            if row["precision"] in ("float32", "float16"):
                assert row["products"] == {row["precision"]: 1.0}, row
    assert json.loads((BUILD_RECORDS / "xeon-2-cores.json").read_text())["kind"] == "engine builds"
