"""Which candidates there are, and what is said about those that cannot run."""

from __future__ import annotations

import pytest

from fstrt_helpers.driver import driver_gpus
from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.candidates.names import CANDIDATES, Contender, contenders, not_measured, takes_part, why_not
from fstrt_helpers.measure.grid import Point

BASE = Point("frame", capacity=512, position=300)


def test_everything_is_entered_on_a_cpu() -> None:
    entered = contenders(device="cpu")
    assert {c.name for c in entered} == set(CANDIDATES)
    served = [str(c) for c in entered if c.device == "cpu"]
    assert served == [
        "upstream-eager:float32", "torch:float32", "torch:bfloat16",
        "ort-cpu:float32", "ort-cpu:int8", "ort-cpu:int4",
    ]  # fmt: skip


def test_a_gpu_brings_half_precision() -> None:
    entered = [str(c) for c in contenders(device="cuda") if c.device == "cuda"]
    assert "torch-cudagraph:float16" in entered and "upstream-eager:bfloat16" in entered
    assert {c.device for c in contenders(["torch", "ort-cpu"], "cuda")} == {"cuda", "cpu"}


def test_names_may_carry_a_precision() -> None:
    assert contenders(["ort-cpu:int4", "ort-cpu", "ort-cpu:int4"], "cpu") == [
        Contender("ort-cpu", "int4", "cpu"),
        Contender("ort-cpu", "float32", "cpu"),
    ]
    for wrong in ("pytorch", "torch:fp16"):
        with pytest.raises(ParameterError, match=wrong.split(":")[-1]):
            contenders([wrong])
    with pytest.raises(ParameterError, match="tpu"):
        contenders(device="tpu")


@pytest.mark.skipif(bool(driver_gpus()[0]), reason="there is a GPU here")
def test_without_a_gpu_the_reason_is_the_gpu() -> None:
    for contender in contenders(device="cuda"):
        expected = "no NVIDIA GPU here" if contender.device == "cuda" else None
        assert why_not(contender) == expected, contender


def test_a_precision_that_is_not_served() -> None:
    assert why_not(Contender("ort-cpu", "bfloat16", "cpu")) == "ort-cpu does not run in bfloat16 on cpu"


def test_what_is_left_out_says_why() -> None:
    eager, compiled = (Contender(f"upstream-{kind}", "bfloat16", "cuda") for kind in ("eager", "compile"))
    ours = Contender("torch-cudagraph", "float16", "cuda")
    four = Point("frame", batch=4, capacity=512, position=300)
    assert "batch row 0" in str(not_measured(eager, four, 8192)) and not_measured(ours, four, 8192) is None
    sweep = Point("frame", capacity=1024, position=300, sized=True)
    assert "anew" in str(not_measured(compiled, sweep, 8192)) and not_measured(eager, sweep, 8192) is None
    assert not_measured(compiled, Point("frame", capacity=8192, position=300, sized=True), 8192) is None
    codec = Point("codec_decode", seconds=2.0)
    assert not_measured(ours, codec, 8192) == "its codec is the one of torch"
    assert all(not_measured(c, BASE, 8192) is None for c in (eager, compiled, ours))
    cut = Point("frame", capacity=512, position=300, sized=True, cut=True)
    assert [takes_part(c, cut) for c in (eager, compiled, ours)] == [True, False, False]
