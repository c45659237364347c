"""Verdicts of the quality gate are kept, found again for relatives, and never invented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.gate import REQUIRED
from fstrt_helpers.measure.record import RecordError
from fstrt_helpers.measure.verdicts import find_verdict, judge_candidates, main, read_verdicts, write_reports

from .made_up import verdict


def entry(candidate: str = "ort-cpu", precision: str = "int8", **verdicts: str) -> dict[str, Any]:
    criteria = [{"name": name, "verdict": verdicts.get(name.replace(" ", "_"), "PASS"), "value": 0.98}
                for name in (*REQUIRED, "recall, own speech")]  # fmt: skip
    return {"candidate": candidate, "precision": precision, "device": "cpu", "report": {"criteria": criteria}}


def test_reports_become_verdicts(tmp_path: Path) -> None:
    entries = [entry(), entry(precision="int4", agreement="FAIL"), entry("torch", "float16", stop_rate="not measured")]
    write_reports(entries, "tiny", tmp_path / "quality" / "here.json")
    passed, failed, partly = read_verdicts(tmp_path / "quality")
    assert passed.passed and passed.words == "passes" and passed.agreement == passed.recall == 0.98
    assert not failed.passed and failed.words == "fails: agreement"
    assert not partly.passed and partly.words == "not judged: stop rate" and partly.stop_rate is None
    assert read_verdicts(tmp_path / "none") == []


def test_the_later_of_two_counts(tmp_path: Path) -> None:
    for name, date, what in (("a", "2026-12-02", "PASS"), ("b", "2026-12-01", "FAIL")):
        path = write_reports([entry(agreement=what)], "tiny", tmp_path / f"{name}.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | {"date": f"{date}T00:00:00+00:00"}))
    (found,) = read_verdicts(tmp_path)
    assert found.passed


def test_a_relative_is_asked_only_if_there_is_no_verdict_of_ones_own() -> None:
    known = [verdict("torch", "float16"), verdict("torch-cudagraph", "float16", passed=False, device="cuda")]
    assert find_verdict(known, "torch", "float16") == (True, "passes")
    assert find_verdict(known, "torch-cudagraph", "float16") == (False, "fails: agreement")
    assert find_verdict(known[:1], "torch-cudagraph", "float16") == (True, "passes, judged as torch on cpu")
    assert find_verdict(known, "ort-cuda", "float16") == (False, "not judged")
    assert find_verdict([], "upstream-eager", "bfloat16")[0] and find_verdict([], "torch", "float32")[0]
    assert find_verdict([], "ort-cpu", "float32") == (False, "not judged")


@pytest.mark.parametrize("text", ["{", "{}", '{"kind": "benchmark"}'], ids=str)
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordError):
        read_verdicts(tmp_path)


def test_a_report_of_nobody_is_refused(tmp_path: Path) -> None:
    path = write_reports([entry()], "tiny", tmp_path / "x.json")
    path.write_text(path.read_text().replace("ort-cpu", "somebody"))
    with pytest.raises(RecordError, match="names no candidate"):
        read_verdicts(tmp_path)


def test_what_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ParameterError, match="random weights"):
        judge_candidates("full-random")
    for wrong in (dict(wanted=["upstream-eager"]), dict(prompts=0)):
        with pytest.raises(ParameterError):
            judge_candidates("tiny", **wrong)
    assert main(["tiny", "--candidates", "upstream-eager", "--device", "cpu", "--out", str(tmp_path / "x.json")]) == 1
    assert "is not judged" in capsys.readouterr().err and not (tmp_path / "x.json").exists()


@pytest.mark.slow
def test_a_candidate_is_judged_for_real(tmp_path: Path) -> None:
    entries = judge_candidates("tiny", ["torch:float16"], prompts=1, device="cpu", recogniser=False)
    (found,) = read_verdicts(write_reports(entries, "tiny", tmp_path / "x.json").parent)
    assert (found.candidate, found.precision, found.device) == ("torch", "float16", "cpu")
    assert found.agreement is not None and found.agreement > 0.9 and found.stop_rate is not None
