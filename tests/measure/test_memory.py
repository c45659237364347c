"""The resident set follows what is allocated; the driver's total is shared out by turns."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from fstrt_helpers.measure.memory import MemoryLog, host_resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
_MB = 1_000_000


def test_resident_memory_grows_with_what_is_touched_and_the_peak_stays() -> None:
    log = MemoryLog(gpu=False)
    log.restart_peak()
    before = host_resident()
    block = np.ones(200 * _MB, dtype=np.uint8)
    grown = host_resident() - before
    held = log.now()
    del block
    assert 195 < grown < 260
    assert held.host == pytest.approx(grown, abs=30)
    assert log.now().host < 60
    assert log.peak().host > 195
    log.restart_peak()
    assert log.peak().host < 60
    assert held.driver is None and held.allocator is None
    assert held.row() == {"driver_mb": None, "allocator_mb": None, "host_mb": round(held.host, 1)}


def test_only_what_grows_in_ones_own_turn_counts() -> None:
    total = 1000.0
    log = MemoryLog(gpu=False, read=lambda: total)
    with log.turn():
        total += 300
    total += 5000  # somebody else's turn
    with log.turn():
        total += 40
    total -= 4000
    assert log.now().driver == log.peak().driver == 340
    with log.turn():
        total -= 100
    assert (log.now().driver, log.peak().driver) == (240, 340)
    log.restart_peak()
    assert log.peak().driver == 240


def test_a_watched_turn_sees_a_peak_in_between() -> None:
    total, seen = 100.0, threading.Event()

    def read() -> float:
        if total > 500:
            seen.set()
        return total

    log = MemoryLog(gpu=False, read=read)
    with log.turn(watch=True):
        total = 900.0
        assert seen.wait(10)
        total = 150.0
    assert (log.now().driver, log.peak().driver) == (50, 800)
