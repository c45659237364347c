"""Clocks and what is made of their readings: median, 95th percentile, extremes, frames per second, real-time factor.

Three rules hold for every number this package reports. The device has finished before the clock is read; what happens
once (opening, compiling, warming up) is timed apart from what happens every frame; and a summary names the extremes
beside the median, so that a lucky run cannot pass for a typical one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ParameterError
from .parts import FRAME_SECONDS

if TYPE_CHECKING:
    import torch

__all__ = [
    "LaunchTimes",
    "StageTimer",
    "Summary",
    "frames_per_second",
    "real_time_factor",
    "summarise",
    "time_calls",
    "time_launches",
]


@dataclass(frozen=True)
class Summary:
    """What some readings say, all in milliseconds.

    Attributes:
        median: Half of them are below.
        p95: 95 % of them are below (linear interpolation between neighbours).
        min: The fastest.
        max: The slowest.
        count: How many there were.
    """

    median: float
    p95: float
    min: float
    max: float
    count: int


def summarise(ms: Sequence[float]) -> Summary:
    """Summary of readings in milliseconds.

    Raises:
        ParameterError: There are none, or one is negative or not finite.
    """
    values = np.asarray(ms, dtype=np.float64)
    if not values.size or not np.isfinite(values).all() or values.min() < 0:
        raise ParameterError(f"{values.size} readings cannot be summarised: {list(ms)[:5]}", fix="measure again")
    median, p95 = np.percentile(values, (50, 95))
    return Summary(float(median), float(p95), float(values.min()), float(values.max()), int(values.size))


def frames_per_second(ms_per_frame: float, batch: int = 1) -> float:
    """Frames made per second by all rows together."""
    return 1e3 * batch / ms_per_frame


def real_time_factor(ms_per_frame: float) -> float:
    """Seconds of work per second of audio of one row: below 1 is faster than speech. One frame is 46.4 ms of audio."""
    return ms_per_frame / (1e3 * FRAME_SECONDS)


@dataclass(frozen=True)
class LaunchTimes:
    """Milliseconds of repeated calls.

    Attributes:
        host: From the call until the device has finished, one entry per call.
        device: Between two CUDA events around each call; None where no GPU is involved.
        pipelined: Per call if the host waits only once, at the end; None if that was not measured.
    """

    host: tuple[float, ...]
    device: tuple[float, ...] | None = None
    pipelined: float | None = None


def time_calls(work: Callable[[], object], count: int, synchronise: Callable[[], object] | None = None) -> list[float]:
    """Milliseconds of each of `count` calls, the device idle before the first and after every one.

    Args:
        work: What to time.
        count: Number of calls.
        synchronise: Waits for the device; None where the call returns only when it is done.
    """
    wait = synchronise or (lambda: None)
    readings = []
    wait()
    for _ in range(count):
        began = time.perf_counter()
        work()
        wait()
        readings.append(1e3 * (time.perf_counter() - began))
    return readings


def time_launches(
    launch: Callable[[], object],
    synchronise: Callable[[], object],
    count: int,
    *,
    stream: torch.cuda.Stream | None = None,
    pipelined: int = 0,
) -> LaunchTimes:
    """Times calls that only enqueue work.

    Args:
        launch: Enqueues one piece of work and returns.
        synchronise: Waits until everything enqueued is done.
        count: Calls that are timed one by one.
        stream: The CUDA stream the work goes to, for events on it; None where there is no GPU.
        pipelined: Further calls that are enqueued in one go.
    """
    host, pairs = [], []
    synchronise()
    for _ in range(count):
        began = time.perf_counter()
        if stream is not None:
            pairs.append((_event(stream), None))
        launch()
        if stream is not None:
            pairs[-1] = (pairs[-1][0], _event(stream))
        synchronise()
        host.append(1e3 * (time.perf_counter() - began))
    together = None
    if pipelined:
        began = time.perf_counter()
        for _ in range(pipelined):
            launch()
        synchronise()
        together = 1e3 * (time.perf_counter() - began) / pipelined
    device = tuple(first.elapsed_time(last) for first, last in pairs) if pairs else None
    return LaunchTimes(tuple(host), device, together)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class StageTimer:
    """Adds up wall-clock time by stage.

    Args:
        synchronise: Waits for the device before a clock is read; None where there is none.

    Attributes:
        ms: Milliseconds by stage, in the order the stages were first entered.
    """

    def __init__(self, synchronise: Callable[[], object] | None = None) -> None:
        self._wait = synchronise or (lambda: None)
        self.ms: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Times what happens inside ``with timer(stage):``; entering a stage again adds to it."""
        self._wait()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._wait()
            self.ms[stage] = self.ms.get(stage, 0.0) + 1e3 * (time.perf_counter() - began)
