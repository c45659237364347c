"""Which TensorRT is picked, what it can do, and what is said when there is none."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from fstrt_helpers.driver import Gpu
from fstrt_helpers.engines.flavour import CHOICE, FLAVOURS, Flavour, load_trt
from fstrt_helpers.errors import EnvironmentMissing, ParameterError


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv(CHOICE, raising=False)


def with_gpu(flavour: Flavour, major: int, minor: int, name: str = "tensorrt_rtx") -> Flavour:
    return replace(flavour, name=name, gpus=(Gpu("some card", (major, minor), 8192),))


def test_the_argument_comes_first_then_the_variable(rtx, monkeypatch):
    import tensorrt_rtx

    monkeypatch.setenv(CHOICE, "tensorrt")
    asked = load_trt("tensorrt-rtx")
    assert (asked.name, asked.version, asked.module) == ("tensorrt_rtx", tensorrt_rtx.__version__, tensorrt_rtx)
    assert asked.chosen == "asked for"
    assert load_trt(asked) is asked
    monkeypatch.setenv(CHOICE, "tensorrt_rtx")
    assert load_trt().chosen == f"{CHOICE} is set"


def test_without_a_choice_the_first_that_imports_is_taken_and_the_reason_kept(rtx, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # what Python itself does for a module that must not be found
    found = load_trt()
    assert found.name == "tensorrt_rtx"
    assert "tensorrt does not import" in found.chosen


def test_none_installed(monkeypatch):
    for name in FLAVOURS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EnvironmentMissing, match="no TensorRT is installed") as caught:
        load_trt()
    assert "pip install tensorrt-rtx" in caught.value.fix
    with pytest.raises(EnvironmentMissing, match="tensorrt does not import") as caught:
        load_trt("tensorrt")
    assert "pip install tensorrt (" in caught.value.fix


def test_unknown_names(monkeypatch):
    with pytest.raises(ParameterError, match="there is no TensorRT 'trt8'"):
        load_trt("trt8")
    monkeypatch.setenv(CHOICE, "openvino")
    with pytest.raises(ParameterError) as caught:
        load_trt()
    assert CHOICE in str(caught.value)


def test_a_version_before_strong_typing_is_refused(monkeypatch):
    import types

    old = types.ModuleType("tensorrt")
    old.__version__ = "8.6.1"
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(EnvironmentMissing, match=r"tensorrt 8\.6\.1 is too old"):
        load_trt("tensorrt")


@pytest.mark.parametrize(
    ("gpu", "runs"),
    [
        ((7, 5), True),
        ((8, 0), True),
        ((8, 6), True),
        ((8, 9), True),
        ((9, 0), False),
        ((10, 0), False),
        ((12, 0), True),
    ],
)
def test_where_tensorrt_rtx_runs(rtx, gpu, runs):
    flavour = with_gpu(rtx, *gpu)
    assert flavour.runs_here == runs
    assert runs or f"{gpu[0]}.{gpu[1]}" in flavour.why_not_here
    assert with_gpu(rtx, *gpu, name="tensorrt").runs_here


def test_what_each_flavour_can_do(rtx):
    alone = replace(rtx, gpus=())
    assert not alone.runs_here and "no GPU" in alone.why_not_here
    assert alone.builds_without_gpu and not alone.timing_cache and not alone.version_compatible
    other = with_gpu(rtx, 8, 9, name="tensorrt")
    assert other.timing_cache and other.version_compatible and not other.builds_without_gpu
    assert "builds without a GPU" in repr(alone) and "<table>" in alone._repr_html_()


def test_targets(rtx):
    alone = replace(rtx, gpus=())
    assert alone.target() == alone.target("portable") == ("portable",)
    assert alone.target("sm120, SM86") == alone.target(["SM86", "SM120"]) == ("SM86", "SM120")
    assert with_gpu(rtx, 8, 9).target("current") == ("SM89",)
    with pytest.raises(EnvironmentMissing, match="needs a GPU"):
        alone.target("current")
    for wrong in ("SM90", [], "portable,SM86"):
        with pytest.raises(ParameterError, match="has no target") as caught:
            alone.target(wrong)
        assert "SM120" in caught.value.fix
    with pytest.raises(ParameterError, match="has no target SM90"):
        with_gpu(rtx, 9, 0).target("current")


def test_tensorrt_builds_for_the_gpu_at_hand_only(rtx):
    with pytest.raises(EnvironmentMissing, match="only where there is a GPU") as caught:
        replace(rtx, name="tensorrt", gpus=()).target()
    assert "tensorrt_rtx" in caught.value.fix
    other = with_gpu(rtx, 9, 0, name="tensorrt")
    assert other.target() == other.target("SM90") == ("SM90",)
    assert other.target("portable") == ("portable",)
    with pytest.raises(ParameterError, match="has no target SM86"):
        other.target("SM86")
