"""Pictures of ranges, sensitivities and differences draw the numbers that were given."""

from __future__ import annotations

import numpy as np
import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.graphs.ranges import Ranges
from fstrt_helpers.graphs.sensitivity import Sensitivity
from fstrt_helpers.show import plots
from fstrt_helpers.show.precision_plots import plot_mel_differences, plot_ranges, plot_sensitivity

from .test_plots import text_in

RATE = 44_100


def test_ranges_stand_where_the_methods_put_them() -> None:
    counted = np.array([1, 50, 3]), np.array([-4.0, -1.0, 2.0, 5.0])
    methods = {
        "minmax": Ranges("codec_decode", "minmax", {"a": (-5.0, 5.0)}, {}, ""),
        "percentile": Ranges("codec_decode", "percentile", {"a": (-2.5, 2.5)}, {"a": counted}, ""),
    }
    figure = plot_ranges(methods, ["a"])
    assert sorted(line.get_xdata()[0] for line in figure.axes[0].lines) == [-5.0, -2.5, 2.5, 5.0]
    assert "minmax +5.00" in text_in(figure) and "percentile -2.50" in text_in(figure)
    with pytest.raises(ParameterError, match="no histogram of a"):
        plot_ranges({"minmax": methods["minmax"]}, ["a"])


def test_the_worst_group_is_on_top_and_kept_ones_stand_out() -> None:
    figure = plot_sensitivity(Sensitivity("codec_decode", "int8", "dB", {"a": 0.1, "b": 0.7}), kept=["b"])
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    assert [bar.get_width() for bar in axes.patches] == [0.7, 0.1]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()
    assert "dB" in text_in(figure)


def test_differences_are_in_decibels_and_end_with_the_shorter_sound() -> None:
    loud = np.random.default_rng(0).standard_normal(RATE // 2).astype(np.float32) * 0.1
    figure = plot_mel_differences({"FP32": loud, "same": loud, "half as loud": loud[: RATE // 4] / 2})
    texts = text_in(figure)
    assert "mean |difference| 0.00 dB" in texts and "mean |difference| 6.0" in texts
    images = [axes.images[0].get_array() for axes in figure.axes[:6] if axes.images]
    assert len(images) == 5 and images[-1].shape[1] < images[-2].shape[1]
    assert len(plots.png_bytes(figure)) < 150_000
