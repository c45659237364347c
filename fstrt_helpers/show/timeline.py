"""The launch timeline: what the host asks for, and what the device does, drawn to one scale of time.

A GPU works through a queue that the host fills. Where filling takes longer than working, the device's row has more gaps
than work, and only fewer launches help. Recorded with ``torch.profiler``:
https://docs.pytorch.org/docs/stable/profiler.html
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .plots import BLUE, GREEN, INK, ORANGE, _figure, _plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Span", "Timeline", "plot_timelines", "record_timeline"]


@dataclass(frozen=True)
class Span:
    """Something that took time.

    Attributes:
        name: Of the operator, call, kernel or copy.
        start: Milliseconds since the first span of the timeline.
        ms: How long it took.
    """

    name: str
    start: float
    ms: float


@dataclass(frozen=True)
class Timeline:
    """One stretch of work.

    Attributes:
        host: On a CPU the operators; with a GPU the calls of the CUDA runtime: launches, copies, waiting.
        device: Kernels and copies on the GPU; empty on a CPU.
        ms: From the first span's beginning to the last one's end.
    """

    host: tuple[Span, ...]
    device: tuple[Span, ...]
    ms: float

    @property
    def launches(self) -> int:
        """Calls that enqueue work; a captured graph is one. On a CPU: operators."""
        if not self.device:
            return len(self.host)
        return sum("Launch" in span.name or "Memcpy" in span.name for span in self.host)

    @property
    def copies(self) -> int:
        """Copies between host and device."""
        return sum("HtoD" in span.name or "DtoH" in span.name for span in self.device)

    @property
    def busy(self) -> float:
        """Share of the time in which the device works; on a CPU: in which an operator runs."""
        spans = sorted(self.device or self.host, key=lambda span: span.start)
        covered, reach = 0.0, 0.0
        for span in spans:
            covered += max(0.0, span.start + span.ms - max(reach, span.start))
            reach = max(reach, span.start + span.ms)
        return covered / self.ms if self.ms else 0.0

    def row(self) -> dict[str, object]:
        """Counts for a table."""
        longest = max((span.ms for span in self.device or self.host), default=0.0)
        return {
            "ms": round(self.ms, 2),
            "launches": self.launches,
            "kernels": len(self.device) - self.copies if self.device else None,
            "host-device copies": self.copies if self.device else None,
            "busy": f"{self.busy:.0%}",
            "longest (ms)": round(longest, 3),
        }


def record_timeline(work: Callable[[], object], *, warm_up: int = 1, tries: int = 3) -> Timeline:
    """Runs some work under PyTorch's profiler. Only what goes through PyTorch or CUDA is seen.

    The profiler itself slows the host: the order and number of things are true, the durations a little too long.

    Args:
        work: Called without arguments; on a GPU it should wait for its end.
        warm_up: Calls before those that are recorded.
        tries: Calls that are recorded, of which the shortest is kept: what else the machine does only lengthens it.
    """
    for _ in range(warm_up):
        work()
    return min((_record(work) for _ in range(max(1, tries))), key=lambda timeline: timeline.ms)


def _record(work: Callable[[], object]) -> Timeline:
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with _quiet(), profile(activities=activities, acc_events=True) as recorded:
        work()
        if gpu:
            torch.cuda.synchronize()
    host, device = [], []
    for event in recorded.events():
        times = (event.name, event.time_range.start / 1e3, event.time_range.elapsed_us() / 1e3)
        if event.device_type == DeviceType.CUDA:
            device.append(times)
        elif event.name.startswith(("cuda", "cu")) if gpu else event.name.startswith("aten::") and not _inside(event):
            host.append(times)
    begin = min((start for _, start, _ in host + device), default=0.0)
    end = max((start + ms for _, start, ms in host + device), default=0.0)

    def spans(found: list[tuple[str, float, float]]) -> tuple[Span, ...]:
        return tuple(Span(name, start - begin, ms) for name, start, ms in sorted(found, key=lambda t: t[1]))

    return Timeline(spans(host), spans(device), end - begin)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what the profiler's library writes to the process's error stream out of the notebook."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _inside(event: object) -> bool:
    """Whether an operator is part of another one."""
    parent = getattr(event, "cpu_parent", None)
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False


def plot_timelines(timelines: Mapping[str, Timeline], *, longest: float | None = None) -> Figure:
    """Timelines below each other, to one scale.

    Args:
        timelines: By name.
        longest: Milliseconds to show; None shows all.
    """
    rows = [
        (f"{name}\n{part}", spans, ORANGE if part == "host" else GREEN)
        for name, t in timelines.items()
        for part, spans in (("host", t.host), ("device", t.device))
        if spans
    ]
    figure = _figure(f"launch timeline of {', '.join(timelines)}", 9, 0.9 + 0.55 * len(rows))
    axes = figure.subplots()
    for place, (_, spans, colour) in enumerate(rows):
        starts, widths = np.array([s.start for s in spans]), np.array([s.ms for s in spans])
        # Every other span in another colour: otherwise neighbours melt into one bar.
        for part, shade in ((slice(0, None, 2), colour), (slice(1, None, 2), BLUE if colour == GREEN else INK)):
            bars = list(zip(starts[part], widths[part], strict=True))
            axes.broken_barh(bars, (len(rows) - 1 - place - 0.35, 0.7), facecolors=shade)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
    axes.set_xlim(0, longest or max(t.ms for t in timelines.values()))
    _plain(axes, "What is asked for (orange, black) and, on a GPU, what is done (green, blue)", "milliseconds")
    return figure
