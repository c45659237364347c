"""Pictures for fewer bits: ranges of activations, what each group of weights costs, and how spectrograms differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..audio import log_mel
from ..checkpoint import SAMPLE_RATE
from ..errors import ParameterError
from .plots import BLUE, GREEN, GREY, INK, ORANGE, PURPLE, _figure, _mel_row, _plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..graphs.ranges import Ranges
    from ..graphs.sensitivity import Sensitivity

__all__ = ["plot_mel_differences", "plot_ranges", "plot_sensitivity"]

_COLOURS = (ORANGE, BLUE, GREEN, PURPLE)
_DB = 20 / np.log(10)  # dB in one neper: log_mel is a natural logarithm
_FLOOR = 60.0  # dB below the loudest bin; what lies lower is not drawn


def plot_ranges(methods: Mapping[str, Ranges], labels: Sequence[str]) -> Figure:
    """Histograms of what enters some products, with the range that each calibration method covers.

    Args:
        methods: Ranges of one graph by method; one of them at least has histograms.
        labels: Weights whose inputs are drawn, one panel each.

    Raises:
        ParameterError: No method has a histogram of such a weight.
    """
    figure = _figure(f"histograms and int8 ranges of {len(labels)} activations", 10, 2.6)
    panels = figure.subplots(1, len(labels), squeeze=False)[0]
    for axes, label in zip(panels, labels, strict=True):
        counted = next((r.histograms[label] for r in methods.values() if label in r.histograms), None)
        if counted is None:
            raise ParameterError(f"there is no histogram of {label}", fix="give the ranges of method percentile, too")
        counts, edges = counted
        axes.stairs(counts, edges, fill=True, color="#b9b9b9")
        for (method, ranges), colour in zip(methods.items(), _COLOURS, strict=False):
            for limit in ranges.limits[label]:
                axes.axvline(limit, color=colour, lw=1.6, ls="-" if limit > 0 else "--", label=f"{method} {limit:+.2f}")
        axes.set_yscale("log")
        axes.legend(fontsize=6.5, loc="upper left", handlelength=1.4, framealpha=1, ncols=2)
        axes.set_ylim(0.5, counts.max() * 30_000)  # room for the legend
        _plain(axes, label.removeprefix("codec."), "value", "how often" if axes is panels[0] else "")
    return figure


def plot_sensitivity(found: Sensitivity, kept: Collection[str] = ()) -> Figure:
    """What each group costs when it alone is quantised, the worst on top.

    Args:
        found: A sweep.
        kept: Groups that stay in higher precision; drawn in another colour.
    """
    figure = _figure(f"cost of {len(found.costs)} groups of {found.graph} in {found.precision}", 9, 2.9)
    axes = figure.subplots()
    for y, group in enumerate(found.ranked):
        axes.barh(y, found.costs[group], color=ORANGE if group in kept else BLUE, height=0.75)
        axes.text(found.costs[group], y, f" {found.costs[group]:.3g}", va="center", fontsize=8, color=INK)
    axes.set_yticks(range(len(found.ranked)), found.ranked)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    _plain(axes, "Orange stays in higher precision" if kept else "One group quantised at a time", found.unit)
    return figure


def plot_mel_differences(sounds: Mapping[str, np.ndarray]) -> Figure:
    """Log-mel spectrograms side by side, and under each its difference from the first.

    Args:
        sounds: Samples at 44.1 kHz, float32 [N], by name; the first is the reference. Where lengths differ the
            difference ends with the shorter one.

    Returns:
        Two rows of panels; differences are in dB, both spectra cut off 60 dB below the loudest bin of the reference.
    """
    import torch

    figure = _figure(f"log-mel spectrograms of {', '.join(sounds)} and their differences", 11, 4.4)
    panels = figure.subplots(2, len(sounds), sharex=True, sharey=True, squeeze=False)
    images = {name: _DB * log_mel(torch.from_numpy(audio)[None])[0].numpy() for name, audio in sounds.items()}
    reference = next(iter(images.values()))
    top = float(reference.max())
    marks = np.array([250, 1000, 4000, 16000])
    rows = reference.shape[0]
    mel = difference = None
    for column, (name, image) in enumerate(images.items()):
        above, below = panels[:, column]
        seconds = len(sounds[name]) / SAMPLE_RATE
        area = {"origin": "lower", "aspect": "auto"}
        mel = above.imshow(
            image,
            extent=(0, seconds, 0, rows),
            cmap="magma",
            vmin=top - _FLOOR,
            vmax=top,
            interpolation="nearest",
            **area,
        )
        _plain(above, name, "", "kHz" if not column else "")
        _plain(below, "", "time (s)", "kHz" if not column else "")
        if not column:
            below.text(0.5, 0.5, "the reference", transform=below.transAxes, ha="center", color=INK, fontsize=9)
            below.set_facecolor(GREY)
            continue
        steps = min(image.shape[1], reference.shape[1])
        a, b = (np.maximum(x[:, :steps], top - _FLOOR) for x in (reference, image))
        reach = (0, seconds * steps / image.shape[1], 0, rows)
        difference = below.imshow(
            b - a, extent=reach, cmap="RdBu_r", vmin=-20, vmax=20, interpolation="nearest", **area
        )
        below.set_title(f"mean |difference| {np.abs(b - a).mean():.2f} dB", fontsize=8, loc="left")
    longest = max(len(audio) for audio in sounds.values()) / SAMPLE_RATE
    panels[0, 0].set_xlim(0, longest)
    panels[0, 0].set_yticks(_mel_row(marks, rows), [f"{hz / 1000:g}" for hz in marks])
    for shown, line, label in ((mel, panels[0], "dB"), (difference, panels[1], "difference, dB")):
        if shown is not None:
            bar = figure.colorbar(shown, ax=line, pad=0.01)
            bar.set_label(label, fontsize=8)
            bar.ax.tick_params(labelsize=7)
    return figure
