"""The recommendation follows the figures and the gate, for each kind of user."""

from __future__ import annotations

import copy

import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.headline import CLAIMS, compare_claims
from fstrt_helpers.measure.recommend import USERS, base_rows, recommend
from fstrt_helpers.measure.record import check_record

from .made_up import machine_record, verdict

AGENT, NARRATION, SMALL = USERS
ALL = [verdict("ort-cpu", "int8"), verdict("ort-cpu", "int4"), verdict("torch", "float16")]


def chosen(record: dict, user: str, verdicts: list) -> tuple[str | None, str | None]:
    found = recommend(record, verdicts, user)
    return found.candidate, found.precision


def test_the_made_up_records_are_records() -> None:
    for gpu in (False, True):
        check_record(machine_record(gpu))


def test_who_passed_the_gate_and_is_best_is_recommended() -> None:
    record = machine_record()
    assert chosen(record, AGENT, ALL) == ("ort-cpu", "int4")  # earliest first audio
    assert chosen(record, NARRATION, ALL) == ("torch", "float32")  # 80 frames/s with 8 rows, one row gives int4 67
    assert chosen(record, SMALL, ALL) == ("ort-cpu", "int4")  # least memory in real time
    assert recommend(record, ALL, NARRATION).figure.startswith("80 frames/s in batches of 8, 3.7")


def test_the_gate_comes_first() -> None:
    without = [verdict("ort-cpu", "int8"), verdict("ort-cpu", "int4", passed=False)]
    found = recommend(machine_record(), without, AGENT)
    assert (found.candidate, found.precision) == ("ort-cpu", "int8")
    assert "ort-cpu int4: fails: agreement" in found.passed_over
    unjudged = recommend(machine_record(), [], SMALL)
    assert "ort-cpu int8: not judged" in unjudged.passed_over
    assert (unjudged.candidate, unjudged.precision) == ("torch", "float32")  # the gate's reference, and in real time


def test_an_agent_may_never_fall_behind() -> None:
    record = machine_record()
    for row in record["rows"]:
        if row["graph"] == "frame" and row["precision"] == "int4":
            row["ms_p95"] = row["ms_max"] = 50.0
    found = recommend(record, ALL, AGENT)
    assert found.precision == "int8" and any("p95 of a frame is 50 ms" in reason for reason in found.passed_over)
    for row in record["rows"]:
        row["ms_p95"] = None if row["ms_p95"] is None else 60.0
    nobody = recommend(record, ALL, AGENT)
    assert nobody.candidate is None and nobody.row()["use"] == "none"


def test_a_small_gpu_is_not_offered_what_does_not_fit() -> None:
    record = machine_record(gpu=True)
    for row in record["rows"]:
        if row["device"] == "cuda" and row["memory_mb"]:
            row["memory_mb"] += 4000
    found = recommend(record, ALL, SMALL)
    assert found.device == "cpu" and any("more than 4,000" in reason for reason in found.passed_over)


def test_where_nothing_is_in_real_time_the_fastest_is_named() -> None:
    record = machine_record()
    for row in record["rows"]:
        row["rtf"] = None if row["rtf"] is None else row["rtf"] * 10
    found = recommend(record, ALL, SMALL)
    assert found.precision == "int4" and found.figure.startswith("nothing is in real time here")


def test_an_unknown_user() -> None:
    with pytest.raises(ParameterError, match="a cat"):
        recommend(machine_record(), ALL, "a cat")


def test_the_base_point_is_the_first_of_a_candidate() -> None:
    rows = base_rows(machine_record()["rows"])
    assert rows["torch", "float32", "cpu"]["ms_median"] == 40 and len(rows) == 4


def test_claims_stand_beside_the_same_kind_of_figure() -> None:
    rows = {row["claim"]: row for row in compare_claims(machine_record(), [verdict("torch", "float16")])}
    assert [rows[claim.what]["its ratio"] for claim in CLAIMS] == ["4.1x", "4.7x", "4.0x", "2.3x", "2.8x"]
    # Only torch float32 may be recommended, but its p95 of 48 ms is too late for an agent; narration's stands in.
    assert {row["with"] for row in rows.values()} == {"torch float32"}
    assert (rows["a sentence"]["upstream eager"], rows["a sentence"]["ours"]) == (2000, 1000)
    assert rows["a batch of 8"]["our ratio"] == "6.4x"  # 8 times 80 ms, against 100 ms for all
    assert rows["model memory"]["our ratio"] == "1.2x" and rows["peak memory"]["ours"] == 3125
    assert all(row["remark"] is None for row in rows.values())


def test_a_claim_without_a_figure_says_so() -> None:
    record = copy.deepcopy(machine_record())
    record["rows"] = [row for row in record["rows"] if row["candidate"] != "upstream-eager"]
    assert {row["remark"] for row in compare_claims(record, ALL)} == {
        "not measured: upstream eager",
        "not measured: upstream eager, ours",  # no batch of 8 in int4
    }
