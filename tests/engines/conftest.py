"""Small graphs that TensorRT-RTX builds in a fraction of a second, and the builder itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.flavour import Flavour, load_trt
from fstrt_helpers.engines.report import BuildReport

KINDS = {"float32": (TensorProto.FLOAT, np.float32), "float16": (TensorProto.FLOAT16, np.float16)}
WIDTH = 64


def write_graph(folder: Path, name: str = "little", *, kind: str = "float16", op: str = "Relu", seed: int = 0) -> Path:
    """Writes ``y = op(x @ w)`` with the weight in a file beside it."""
    element, dtype = KINDS[kind]
    weight = numpy_helper.from_array(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)).astype(dtype), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node(op, ["h"], ["y"], name="last"),
    ]
    return save(folder, name, nodes, {"x": (element, ["B", WIDTH])}, {"y": (element, ["B", WIDTH])}, [weight])


def save(folder: Path, name: str, nodes: list, inputs: dict, outputs: dict, weights: list) -> Path:
    """Writes a graph with its weights beside it."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(n, *what) for n, what in inputs.items()],
        [helper.make_tensor_value_info(n, *what) for n, what in outputs.items()],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.with_suffix(".data").unlink(missing_ok=True)  # onnx appends to a file that is there
    onnx.save(
        model, path, save_as_external_data=True, all_tensors_to_one_file=True, location=f"{name}.data", size_threshold=0
    )
    return path


SIZES = {"B": (1, 1, 8)}


@pytest.fixture(scope="session")
def rtx() -> Flavour:
    """TensorRT-RTX; tests that build are skipped where it is not installed."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    return load_trt("tensorrt_rtx")


@pytest.fixture
def little(tmp_path: Path) -> Path:
    """A float16 graph, to be changed by a test as it likes."""
    return write_graph(tmp_path / "graphs")


@pytest.fixture(scope="session")
def built(rtx: Flavour, tmp_path_factory: pytest.TempPathFactory) -> BuildReport:
    """An engine of the small graph, built once. Tests read it, and change only copies."""
    from fstrt_helpers.engines.profile import default_profile

    folder = tmp_path_factory.mktemp("built")
    path = write_graph(folder / "graphs")
    profile = default_profile(path, sizes=SIZES)
    return build_engine(path, profile, precision="float16", flavour=rtx, folder=folder / "engines")
