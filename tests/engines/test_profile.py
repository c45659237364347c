"""Profiles: sensible ones for the four graphs, and everything that can be wrong with one."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from fstrt_helpers.engines.profile import CAPACITY_DEFAULT, Profile, ShapeRange, check_profile, default_profile
from fstrt_helpers.errors import ParameterError, ProfileError
from fstrt_helpers.graphs.capacity import fix_capacity

INT64, BOOL, HALF = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16
INPUTS = {
    "prefill": {
        "columns": (INT64, ["B", 9, "S"]),
        "start": (INT64, ["B"]),
        "mask": (BOOL, ["B", 1, "S", "C"]),
        "k_0": (HALF, ["B", 2, "C", 32]),
        "v_0": (HALF, ["B", 2, "C", 32]),
        "k_1": (HALF, ["B", 2, "C", 32]),
    },
    "frame": {
        "column": (INT64, ["B", 9, 1]),
        "mask": (BOOL, ["B", 1, 1, "C"]),
        "noise": (TensorProto.FLOAT, ["B", 8193]),
    },
    "codec_decode": {"codes": (INT64, ["B", 8, "T"])},
    "codec_encode": {"log_mel": (TensorProto.FLOAT, ["B", 160, "4*T"])},
    "fixed": {"x": (HALF, [2, 3])},
}


def model(graph: str) -> onnx.ModelProto:
    """A graph with the inputs of one of ours and nothing in it: only its inputs matter here."""
    inputs = [helper.make_tensor_value_info(name, *what) for name, what in INPUTS[graph].items()]
    return helper.make_model(helper.make_graph([], graph, inputs, []))


@pytest.mark.parametrize("graph", INPUTS)
def test_the_default_fits_its_own_graph(graph):
    profile = default_profile(model(graph))
    assert list(check_profile(profile, model(graph)).inputs) == list(INPUTS[graph])
    assert profile.capacity == (CAPACITY_DEFAULT if graph in ("prefill", "frame") else None)


def test_sizes_and_capacities(tmp_path: Path):
    profile = default_profile(model("prefill"), capacity=256)
    assert profile.inputs["columns"] == ShapeRange((1, 9, 1), (1, 9, 64), (1, 9, 256))  # no prompt beyond the cache
    assert profile.inputs["mask"].max == (1, 1, 256, 256)
    assert profile.inputs["k_1"] == ShapeRange(*[(1, 2, 256, 32)] * 3)
    assert default_profile(model("prefill"), capacity=8192).inputs["columns"].max == (1, 9, 1024)
    wide = default_profile(model("prefill"), capacity=8192, sizes={"S": (1, 100, 4096), "B": (1, 2, 3)})
    assert wide.inputs["columns"] == ShapeRange((1, 9, 1), (2, 9, 100), (3, 9, 4096))
    assert default_profile(model("frame")).inputs["noise"] == ShapeRange((1, 8193), (1, 8193), (8, 8193))
    assert all(d[2] % 4 == 0 for d in default_profile(model("codec_encode")).inputs["log_mel"])
    onnx.save(model("codec_decode"), tmp_path / "codec_decode.onnx")
    assert default_profile(tmp_path / "codec_decode.onnx") == default_profile(model("codec_decode"))


def test_no_range_for_a_dimension_and_no_dimension_for_a_range():
    with pytest.raises(ProfileError, match="no range is given for B, T"):
        default_profile(model("codec_decode"), name="unheard of")
    with pytest.raises(ProfileError, match="has no free dimension S"):
        default_profile(model("codec_decode"), sizes={"S": (1, 2, 3)})
    for wrong in ((3, 2, 1), (0, 1, 2), (1, 2)):
        with pytest.raises(ParameterError, match="min <= opt <= max"):
            default_profile(model("codec_decode"), sizes={"T": wrong})


GOOD = {"codes": ((1, 8, 1), (1, 8, 32), (2, 8, 64))}


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({}, "codes: missing, and its shape Bx8xT has free dimensions"),
        (GOOD | {"mask": GOOD["codes"]}, "mask: the graph has no such input"),
        ({"codes": ((1, 8), (1, 8), (2, 8))}, "codes: 1x8 has 2 axes, the input Bx8xT has 3"),
        ({"codes": ((1, 8, 1), (1, 9, 32), (2, 8, 64))}, "codes, axis 1: is always 8, the profile says 8/9/8"),
        ({"codes": ((1, 8, 40), (1, 8, 32), (2, 8, 64))}, "codes, axis 2: min 40, opt 32, max 64 do not ascend"),
        ({"codes": ((0, 8, 1), (1, 8, 32), (2, 8, 64))}, "codes, axis 0: min 0, opt 1, max 2 do not ascend"),
    ],
)
def test_what_does_not_fit_is_named(inputs, complaint):
    with pytest.raises(ProfileError) as caught:
        check_profile(Profile("codec_decode", inputs), model("codec_decode"))
    assert complaint in caught.value.what
    assert "codes Bx8xT" in caught.value.fix


def test_all_faults_are_named_at_once():
    ranges = dict(default_profile(model("prefill"), capacity=64).inputs)
    ranges["columns"] = ShapeRange((1, 9, 1), (1, 9, 8), (1, 9, 32))  # the mask says up to 64
    ranges["k_0"] = ShapeRange(*[(1, 2, 128, 32)] * 3)
    del ranges["start"]
    with pytest.raises(ProfileError) as caught:
        check_profile(Profile("prefill", ranges, 64), model("prefill"))
    what = caught.value.what
    assert "start: missing" in what
    assert "k_0, axis 2: the capacity is 64, the profile says 128/128/128" in what
    assert "mask, axis 2: S is 1/64/64 here and 1/8/32 in columns" in what


def test_capacity_and_graph_must_agree():
    profile = default_profile(model("frame"), capacity=64)
    with pytest.raises(ProfileError, match="the capacity is missing"):
        check_profile(Profile("frame", profile.inputs), model("frame"))
    with pytest.raises(ProfileError, match="the graph has no free capacity"):
        check_profile(profile, fix_capacity(model("frame"), 64))
    with pytest.raises(ProfileError, match="not all multiples of 4"):
        bad = {"log_mel": ((1, 160, 4), (1, 160, 30), (1, 160, 64))}
        check_profile(Profile("codec_encode", bad), model("codec_encode"))


def test_a_range_is_three_shapes():
    for wrong in (((1, 2), (1, 2)), 3, ((1, "B"),) * 3):
        with pytest.raises(ProfileError, match="the range of 'x' is"):
            Profile("fixed", {"x": wrong})


def test_it_shows_itself_as_a_short_table():
    profile = default_profile(model("prefill"))
    lines = repr(profile).splitlines()
    assert len(lines) == 2 + 5  # k_0 and k_1 share a row
    assert any(line.split() == ["k_*", "1x2x512x32", "1x2x512x32", "1x2x512x32"] for line in lines)
    assert "<table>" in profile._repr_html_()
