"""The floor of a frame, by hand; and a bandwidth that is one."""

from __future__ import annotations

import math

import pytest

from fstrt_helpers.checkpoint import DualARConfig
from fstrt_helpers.errors import ParameterError
from fstrt_helpers.full_random import OFFICIAL_CONFIG
from fstrt_helpers.measure.roofline import copy_bandwidth, frame_work, matmul_rate

OFFICIAL = DualARConfig.from_dict(OFFICIAL_CONFIG)
LAYER = 1024 * 20 * 64 + 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
SLOW, FAST = 24 * LAYER + 1024 + 1025 * 1024, 4 * LAYER + 1024 + 1024 * 1024 + 1024


def test_the_official_frame_by_hand() -> None:
    work = frame_work(OFFICIAL, "float16", position=300)
    assert work.weight_bytes == 2 * (SLOW + 7 * FAST + 9 * 1024)
    assert 1.57e9 < work.weight_bytes < 1.58e9
    assert work.kv_bytes == 24 * 2 * 2 * 64 * 300 * 2
    assert work.operations == 2 * (SLOW + 7 * FAST) + 24 * 4 * 16 * 64 * 300
    assert work.floor_ms(4130) == pytest.approx(work.bytes / 4.13e12 * 1e3)
    assert 0.38 < work.floor_ms(4130) < 0.39
    assert work.achieved_gb_per_s(work.floor_ms(4130)) == pytest.approx(4130)


@pytest.mark.parametrize(("precision", "size"), [("float32", 4), ("bfloat16", 2), ("int8", 1), ("int4", 0.5)])
def test_bytes_follow_the_precision(precision: str, size: float) -> None:
    work, half = frame_work(OFFICIAL, precision, position=100), frame_work(OFFICIAL, "float16", position=100)
    assert work.weight_bytes == size / 2 * half.weight_bytes
    assert work.kv_bytes == max(size, 2) / 2 * half.kv_bytes
    assert frame_work(OFFICIAL, precision, position=100, kv_bytes_per_value=4).kv_bytes == 2 * half.kv_bytes


def test_a_batch_shares_the_weights_and_nothing_else() -> None:
    one, eight = (frame_work(OFFICIAL, "float16", position=300, batch=b) for b in (1, 8))
    assert eight.kv_bytes == 8 * one.kv_bytes and eight.operations == 8 * one.operations
    assert eight.weight_bytes - one.weight_bytes == 7 * 9 * 1024 * 2  # embedding rows are looked up for each
    assert eight.intensity() > 7 * one.intensity()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ParameterError, match="float8"):
        frame_work(OFFICIAL, "float8", position=1)


def test_measured_rates_are_rates() -> None:
    copied, computed = copy_bandwidth("cpu", megabytes=16, seconds=0.02), matmul_rate("cpu", size=128, seconds=0.02)
    assert math.isfinite(copied) and copied > 0
    assert math.isfinite(computed) and computed > 0
