"""The timing cache of TensorRT, as far as it can be tried without a GPU.

TensorRT-RTX has the same calls. They do nothing there and warn; here that shows that ours are made in the right order
and with the right types, and that they are made for TensorRT only.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from fstrt_helpers.driver import Gpu
from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.listen import trt_logger
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.engines.timing import attach_timing_cache, save_timing_cache, timing_cache_path
from fstrt_helpers.errors import ParameterError

from .conftest import SIZES


@pytest.fixture
def config(rtx):
    builder = rtx.module.Builder(trt_logger(rtx))
    yield builder.create_builder_config()


def test_where_it_lies(rtx, tmp_path):
    other = replace(rtx, name="tensorrt", version="11.4.0.106", gpus=(Gpu("some card", (8, 9), 8192),))
    assert timing_cache_path(tmp_path, other) == tmp_path / "timing-tensorrt-11.4.0.106-SM89.cache"
    assert timing_cache_path(tmp_path, other, tmp_path / "mine") == tmp_path / "mine"
    assert timing_cache_path(tmp_path, rtx) is None
    with pytest.raises(ParameterError, match="tensorrt_rtx has no timing cache"):
        timing_cache_path(tmp_path, rtx, tmp_path / "mine")


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_written_and_read_again(config, tmp_path: Path):
    path = tmp_path / "kernel.cache"
    assert not attach_timing_cache(config, path)
    save_timing_cache(config, path)
    assert path.stat().st_size > 0
    assert attach_timing_cache(config, path)
    save_timing_cache(config, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".kernel.cache.lock", "kernel.cache"]


def test_a_build_with_tensorrt_rtx_makes_none_of_these_calls(little, rtx, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_engine(
            little, default_profile(little, sizes=SIZES), precision="float16", flavour=rtx, folder=tmp_path / "engines"
        )
    assert not list((tmp_path / "engines").glob("*.cache"))


@pytest.mark.filterwarnings("ignore:.*Timing cache operations are no-ops:DeprecationWarning")
def test_the_calls_that_only_tensorrt_gets(little, rtx, tmp_path):
    """TensorRT's own path through our code, on the builder at hand: same API, so the calls are real ones."""
    other = replace(rtx, name="tensorrt", gpus=(Gpu("some card", (8, 9), 8192),))
    profile = default_profile(little, sizes=SIZES)
    reports = [
        build_engine(little, profile, precision="float16", flavour=other, folder=tmp_path / "engines", level=1)
        for _ in range(2)
    ]
    assert [r.options["timing_cache"] for r in reports] == ["cold", "warm"]
    assert [p.name for p in (tmp_path / "engines").glob("timing*")] == [f"timing-tensorrt-{rtx.version}-SM89.cache"]
    assert reports[0].target == "SM89" and reports[0].shares == {"float16": 1.0}
    portable = build_engine(
        little, profile, precision="float16", flavour=other, folder=tmp_path / "portable", target="portable"
    )
    assert portable.target == "portable"
