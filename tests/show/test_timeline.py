"""The launch timeline: true counts, times in order, gaps that are seen as gaps."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fstrt_helpers.show.timeline import Span, Timeline, plot_timelines, record_timeline

GAPS = Timeline(
    host=(*(Span("cudaLaunchKernel", float(i), 0.9) for i in range(4)), Span("cudaDeviceSynchronize", 4.0, 1.0)),
    device=(
        *(Span("gemm", i + 0.5, 0.25) for i in range(3)),
        Span("Memcpy HtoD (Pinned -> Device)", 3.5, 0.25),
    ),
    ms=5.0,
)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the counts are those of a CPU")
def test_operators_are_counted_once_and_in_order() -> None:
    x = torch.ones(4, 4)
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        torch.nn.functional.linear((x + 1) * 2, x)

    timeline = record_timeline(work, warm_up=1, tries=2)
    assert len(calls) == 3
    assert [span.name for span in timeline.host] == ["aten::add", "aten::mul", "aten::linear"], "none of their insides"
    assert timeline.launches == 3 and timeline.device == ()
    starts = [span.start for span in timeline.host]
    assert starts[0] == 0 and starts == sorted(starts)
    last = timeline.host[-1]
    assert timeline.ms == pytest.approx(last.start + last.ms)
    assert 0 < timeline.busy <= 1 and timeline.row()["kernels"] is None


def test_nothing_is_recorded_of_nothing() -> None:
    timeline = record_timeline(lambda: None, tries=1)
    assert timeline.host == () and timeline.ms == 0 and timeline.busy == 0


def test_a_device_that_waits_is_seen_to_wait() -> None:
    assert GAPS.launches == 4 and GAPS.copies == 1
    assert GAPS.busy == pytest.approx(1 / 5)
    assert GAPS.row() == {
        "ms": 5.0, "launches": 4, "kernels": 3, "host-device copies": 1, "busy": "20%", "longest (ms)": 0.25
    }  # fmt: skip


def test_overlapping_work_counts_once() -> None:
    both = Timeline((), (Span("a", 0.0, 2.0), Span("b", 1.0, 2.0), Span("c", 1.2, 0.1)), 4.0)
    assert both.busy == pytest.approx(3 / 4)


def test_the_picture_has_a_row_for_host_and_device_of_each() -> None:
    alone = Timeline(GAPS.host, (), 5.0)
    figure = plot_timelines({"one by one": GAPS, "on a CPU": alone})
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["on a CPU\nhost", "one by one\ndevice", "one by one\nhost"]
    bars = sum(len(collection.get_paths()) for collection in axes.collections)
    assert bars == 5 + 4 + 5
    assert len(figure._repr_png_()) < 20_000


def test_the_profiler_prints_nothing() -> None:
    code = (
        "import torch; from fstrt_helpers.show.timeline import record_timeline\n"
        "record_timeline(lambda: torch.ones(2) + 1)\n"
        "import sys; print('still heard', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "" and done.stderr == "still heard\n"
