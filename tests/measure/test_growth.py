"""A line through known costs is found again; what cannot be told apart is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.growth import fit_cost, fit_rows


def cost(position: float, capacity: float) -> float:
    return 1.25 + 0.3 * position / 1000 + 0.02 * capacity / 1000


def test_a_known_line_is_found_again() -> None:
    points = [(p, c, cost(p, c)) for p, c in itertools.product((100, 300, 480), (512, 2048, 8192))]
    fit = fit_cost(points)
    assert (fit.base, fit.per_position, fit.per_capacity) == pytest.approx((1.25, 0.3, 0.02))
    assert fit.r2 == pytest.approx(1.0) and fit.count == 9
    assert fit.ms(4000, 8192) == pytest.approx(cost(4000, 8192))


def test_noise_lowers_what_is_explained() -> None:
    rng = np.random.default_rng(0)
    points = [(p, 512.0, 5 + rng.normal()) for p in range(10, 400, 10)]
    assert fit_cost(points).r2 < 0.2


def test_a_factor_that_was_not_varied_has_no_slope() -> None:
    fit = fit_cost([(300, c, cost(300, c)) for c in (512, 1024, 2048)])
    assert fit.per_position is None and fit.per_capacity == pytest.approx(0.02)
    assert fit.ms(300, 4096) == pytest.approx(cost(300, 4096))


@pytest.mark.parametrize(
    "points",
    [[], [(1, 2, 3.0)], [(100, 512, 1.0), (100, 512, 1.1)], [(256, 512, 1.0), (512, 1024, 2.0), (1024, 2048, 3.0)]],
    ids=["none", "one", "the same twice", "always together"],
)
def test_what_cannot_be_told_apart(points: list[tuple[float, float, float]]) -> None:
    with pytest.raises(ParameterError, match="tell position and capacity apart"):
        fit_cost(points)


def test_rows_of_a_record_are_picked_by_candidate() -> None:
    base = {"graph": "frame", "candidate": "torch", "precision": "float32", "batch": 1, "not_run": None}
    rows = [
        {**base, "position": p, "capacity": c, "ms_median": cost(p, c)}
        for p, c in ((100, 512), (300, 512), (300, 2048), (480, 512))
    ]
    others = [
        {**rows[0], change: value, "ms_median": 99.0} for change, value in (("candidate", "ort-cpu"), ("batch", 8))
    ]
    failed = {**base, "not_run": "no GPU", "position": 300, "capacity": 512, "ms_median": None}
    assert fit_rows([*rows, *others, failed], "torch", "float32").per_position == pytest.approx(0.3)
