"""Transposed convolutions in bfloat16: TensorRT has no kernel, so they compute in float32 and say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from fstrt_helpers.engines.adapt import adapt, widened_nodes
from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.errors import EngineError
from fstrt_helpers.graphs.view import GraphView

from .conftest import save

BF16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT
SIZES = {"B": (1, 1, 2), "T": (1, 8, 32)}


def tensor(name: str, values: torch.Tensor) -> onnx.TensorProto:
    bits = values.bfloat16().view(torch.int16).numpy().tobytes()
    return helper.make_tensor(name, BF16, values.shape, bits, raw=True)


@pytest.fixture(scope="module")
def weights() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(16, 16, 4).bfloat16().float(), torch.randn(16).bfloat16().float()


@pytest.fixture(scope="module")
def path(weights, tmp_path_factory) -> Path:
    """x, narrowed to bfloat16, through a transposed convolution and a convolution, and back to float32."""
    weight, bias = weights
    nodes = [
        helper.make_node("Cast", ["x"], ["x16"], name="narrow", to=BF16),
        helper.make_node("ConvTranspose", ["x16", "w", "b"], ["up"], name="up", strides=[2], pads=[1, 1]),
        helper.make_node("Cast", ["up"], ["y"], name="widen", to=FLOAT),
        helper.make_node("Conv", ["up", "w"], ["z"], name="up_not", pads=[0, 0]),
    ]
    outputs = {"y": (FLOAT, ["B", 16, "N"]), "z": (BF16, ["B", 16, "M"])}
    stored = [tensor("w", weight), tensor("b", bias)]
    return save(tmp_path_factory.mktemp("wide"), "wide", nodes, {"x": (FLOAT, ["B", 16, "T"])}, outputs, stored)


def test_only_the_transposed_convolution_is_widened(path):
    view = GraphView(path)
    assert widened_nodes(view) == ["up"]
    before = view.model.SerializeToString()
    changed = adapt(view.model, None, path.parent)
    assert view.model.SerializeToString() == before
    assert [n.op_type for n in changed.graph.node] == ["Cast", "Cast", "ConvTranspose", "Cast", "Cast", "Conv"]
    kinds = {t.name: t.data_type for t in changed.graph.initializer}
    assert kinds == {"w": BF16, "w_as_float32": FLOAT, "b_as_float32": FLOAT}  # w is still read by the convolution
    assert not any(t.external_data for t in changed.graph.initializer if t.name.endswith("float32"))


def test_it_computes_what_bfloat16_would_up_to_the_last_rounding(path, weights):
    weight, bias = weights
    model = adapt(GraphView(path).model, None, path.parent)
    del model.graph.output[1], model.graph.node[-1], model.graph.initializer[0]  # the CPU has no bfloat16 convolution
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = torch.randn(2, 16, 9, generator=torch.Generator().manual_seed(1))
    (found,) = session.run(["y"], {"x": x.numpy()})
    exact = torch.nn.functional.conv_transpose1d(
        x.bfloat16().double(), weight.double(), bias.double(), stride=2, padding=1
    )
    assert found.shape == (2, 16, 18)
    assert np.array_equal(found, torch.from_numpy(found).bfloat16().float().numpy())  # rounded to bfloat16
    assert np.abs(found - exact.numpy()).max() <= exact.abs().max() * 2**-8


def test_tensorrt_builds_it_and_the_report_shows_the_share(path, rtx, tmp_path):
    profile = default_profile(path, sizes=SIZES)
    report = build_engine(path, profile, precision="bfloat16", flavour=rtx, folder=tmp_path)
    assert report.shares == {"bfloat16": 0.5, "float32": 0.5}
    assert {s.layer: s.precision for s in report.layers if s.heavy} == {
        "CONVOLUTION": "bfloat16",
        "DECONVOLUTION": "float32",
    }


def test_a_graph_that_needs_nothing_is_left_alone(little):
    model = GraphView(little).model
    assert adapt(model, None, little.parent) is model


def test_widening_excuses_no_other_layer(path, rtx, tmp_path):
    with pytest.raises(EngineError, match="float16 was asked for"):
        build_engine(path, default_profile(path, sizes=SIZES), precision="float16", flavour=rtx, folder=tmp_path)
