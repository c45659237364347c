"""Summaries against their definitions; the device is waited for before the clock is read."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.latency import (
    StageTimer,
    frames_per_second,
    real_time_factor,
    summarise,
    time_calls,
    time_launches,
)


def test_a_summary_is_what_it_says() -> None:
    readings = np.random.default_rng(0).gamma(2.0, 3.0, 1001).tolist()
    summary = summarise(readings)
    ordered = sorted(readings)
    assert (summary.median, summary.min, summary.max) == (ordered[500], ordered[0], ordered[-1])
    assert summary.p95 == ordered[950] and summary.count == 1001
    assert summarise([2.0, 4.0]).median == 3.0


@pytest.mark.parametrize("readings", [[], [1.0, math.nan], [1.0, -0.1], [math.inf]], ids=str)
def test_what_cannot_be_summarised(readings: list[float]) -> None:
    with pytest.raises(ParameterError, match="cannot be summarised"):
        summarise(readings)


def test_speed_in_other_units() -> None:
    assert real_time_factor(1e3 * 2048 / 44100) == pytest.approx(1.0)
    assert frames_per_second(20.0) == pytest.approx(50.0)
    assert frames_per_second(20.0, batch=8) == pytest.approx(400.0)


def test_calls_are_timed_with_the_wait_inside() -> None:
    log: list[str] = []

    def wait() -> None:
        log.append("wait")
        time.sleep(0.005)

    readings = time_calls(lambda: log.append("work"), 3, wait)
    assert log == ["wait", *["work", "wait"] * 3]
    assert len(readings) == 3 and min(readings) >= 5.0


def test_pipelined_launches_wait_once() -> None:
    log: list[str] = []
    times = time_launches(lambda: log.append("launch"), lambda: log.append("wait"), 2, pipelined=4)
    assert log == ["wait", "launch", "wait", "launch", "wait", *["launch"] * 4, "wait"]
    assert len(times.host) == 2 and times.device is None and times.pipelined is not None
    assert time_launches(lambda: None, lambda: None, 1).pipelined is None


def test_stages_add_up_even_where_one_fails() -> None:
    timer = StageTimer()
    for _ in range(2):
        with timer("a"):
            time.sleep(0.003)
    with pytest.raises(KeyError), timer("b"):
        raise KeyError
    assert list(timer.ms) == ["a", "b"] and timer.ms["a"] >= 6.0


@pytest.mark.gpu
def test_events_lie_on_the_stream_of_the_work() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    stream, x = torch.cuda.Stream(), torch.ones(2048, 2048, device="cuda")

    def launch() -> None:
        with torch.cuda.stream(stream):
            x @ x

    times = time_launches(launch, stream.synchronize, 5, stream=stream)
    assert times.device is not None
    assert all(0 < inner <= outer for inner, outer in zip(times.device, times.host, strict=True))
