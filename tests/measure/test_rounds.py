"""Candidates take turns; one that fails, dies or hangs becomes a reason and stops nobody else."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from fstrt_helpers.measure.candidates.names import Contender
from fstrt_helpers.measure.grid import Point
from fstrt_helpers.measure.rounds import Limits, Process, ProcessLost, measure_together

POINTS = [Point("frame", capacity=64, position=30), Point("frame", capacity=64, position=40)]
ONE, TWO = Contender("torch", "float32", "cpu"), Contender("ort-cpu", "float32", "cpu")

# A process that speaks the worker's language and notes what it was asked in a file; argv: name, log, what goes wrong.
SPEAKER = """
import json, os, sys, time
name, log, fault = sys.argv[1:]
print("a library greets", file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    with open(log, "a") as file:
        file.write(f"{name} {request['op']} {request.get('number', '')} {request.get('index', '')}\\n")
    if fault == f"{request['op']} {request.get('number', '')} {request.get('index', '')}".strip():
        print("the last words", file=sys.stderr, flush=True)
        os._exit(3)
    if fault == "hang" and request["op"] == "round":
        time.sleep(60)
    answer = {"ok": True, "stages": {"open": 1.0}, "capacity": 64, "ms": [1.0], "inputs": [name], "memory": {}}
    if fault == "refuse" and request["op"] == "prepare":
        answer = {"ok": False, "error": "cannot", "fix": "buy a GPU"}
    print(json.dumps(answer), flush=True)
"""


def speaker(contender: Contender, name: str, log: Path, fault: str = "") -> Process:
    return Process(contender, [sys.executable, "-c", SPEAKER, name, str(log), fault])


def race(log: Path, rounds: int, fault: str = "", limits: Limits | None = None) -> list:
    processes = {ONE: speaker(ONE, "one", log, fault), TWO: speaker(TWO, "two", log)}
    try:
        return measure_together(POINTS, processes, rounds, 1024, limits)
    finally:
        for process in processes.values():
            process.close()


def test_they_take_turns_in_alternating_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    measured = race(log, 2)
    turns = [line for line in log.read_text().splitlines() if "round" in line]
    forth = ["one round 0 0", "two round 0 0", "one round 1 0", "two round 1 0"]
    back = ["two round 1 1", "one round 1 1", "two round 0 1", "one round 0 1"]
    assert turns == forth + back
    assert [point for point, _ in measured] == POINTS
    for _, outcomes in measured:
        assert [(o.contender, o.not_run, len(o.rounds)) for o in outcomes] == [(ONE, None, 2), (TWO, None, 2)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("prepare 0", "its process ended with code 3: the last words"),
        ("round 0 1", "its process ended with code 3: the last words"),
        ("refuse", "cannot (fix: buy a GPU)"),
    ],
)
def test_a_failure_is_a_reason_and_the_other_goes_on(tmp_path: Path, fault: str, reason: str) -> None:
    for _, (one, two) in race(tmp_path / "log", 3, fault):
        assert one.not_run == reason
        assert two.not_run is None and len(two.rounds) == 3


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    for _, (one, two) in race(tmp_path / "log", 2, "hang", Limits(round=5)):
        assert one.not_run == "no answer to 'round' within 5 s: its process was ended"
        assert two.not_run is None
    assert time.monotonic() - began < 50


def test_an_ended_process_leaves_nothing_behind(tmp_path: Path) -> None:
    process = speaker(ONE, "one", tmp_path / "log", "hang")
    with pytest.raises(ProcessLost, match="within 2 s"):
        process.ask("round", 2)
    with pytest.raises(ProcessLost):
        process.ask("round", 2)
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process._process.pid, 0)


def test_a_candidate_without_a_process_keeps_its_reason() -> None:
    ((_, (outcome,)),) = measure_together(POINTS[:1], {ONE: "no NVIDIA GPU here"}, 2, 1024)
    assert outcome.not_run == "no NVIDIA GPU here" and outcome.rounds == []
