"""No call that newer TensorRT has dropped stands in the package, in its tests, or in a notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fstrt_helpers.engines.migration import REMOVED, find_removed, migration_table


def cells(notebook: Path) -> list[str]:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


def test_package_and_tests(root: Path):
    files = [p for folder in ("fstrt_helpers", "tests", "data") for p in (root / folder).rglob("*.py")]
    assert len(files) > 100
    found = [
        f"{path.relative_to(root)}:{line} {e}" for path in files for line, e in find_removed(path.read_text("utf-8"))
    ]
    assert found == []


def test_notebooks(root: Path):
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    assert notebooks
    found = [
        f"{path.name}: {entry} in {code.splitlines()[line - 1]!r}"
        for path in notebooks
        for code in cells(path)
        for line, entry in find_removed(code)
    ]
    assert found == []


OLD_TUTORIAL = """\
import tensorrt as trt
from tensorrt import IInt8EntropyCalibrator2
builder = trt.Builder(trt.Logger())
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
config = builder.create_builder_config()
config.max_workspace_size = 1 << 30
config.set_flag(trt.BuilderFlag.FP16)
for layer in network:
    layer.precision = trt.float16
engine = builder.build_engine(network, config)
context = engine.create_execution_context()
shape = engine.get_binding_shape(0)
context.execute_async_v2(bindings=[], stream_handle=0)
size = getattr(engine, "device_memory_size")
# engine.num_bindings
text = "engine.num_bindings"
"""


def test_an_old_tutorial_is_taken_apart_line_by_line():
    assert [(line, entry.name) for line, entry in find_removed(OLD_TUTORIAL)] == [
        (2, "IInt8EntropyCalibrator2"),
        (4, "EXPLICIT_BATCH"),
        (6, "max_workspace_size"),
        (7, "FP16"),
        (9, "precision"),
        (10, "build_engine"),
        (12, "get_binding_shape"),
        (13, "execute_async_v2"),
        (14, "device_memory_size"),
    ]


@pytest.mark.parametrize(
    "code",
    ["report.precision", "queue.max_batch_size = 8", "trt.DataType.INT8", "executor.execute()", "build_engine(path)"],
)
def test_names_that_only_look_alike_pass(code):
    assert find_removed(code) == []


def test_code_that_is_no_python():
    with pytest.raises(SyntaxError):
        find_removed("engine.(")


def test_none_of_the_names_exists_in_a_current_tensorrt(rtx):
    trt = rtx.module
    for entry in REMOVED:
        owner = getattr(trt, entry.owner) if entry.owner else trt
        assert not hasattr(owner, entry.name), entry


def test_the_table_has_every_name_once():
    table = migration_table()
    listed = [(row["class"], name) for row in table.rows for name in row["until then"].split(", ")]
    assert sorted(listed) == sorted((entry.owner or "trt", entry.name) for entry in REMOVED)
    assert len(set(listed)) == len(listed) > len(table.rows)
    assert "max_workspace_size" in str(table) and "set_memory_pool_limit" in table._repr_html_()
