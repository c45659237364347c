"""Limits by precision, and the report as an object: truth, text, table, record."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from fstrt_helpers.errors import ParameterError
from fstrt_helpers.graphs.spec import PRECISIONS
from fstrt_helpers.measure.gate import GATES, REQUIRED, Criterion, Gate, QualityReport


def report(*criteria: Criterion) -> QualityReport:
    return QualityReport("int8 <here>", "float32", GATES["int8"], criteria)


GOOD = [Criterion.at_least(name, "draws", 0.98765, 0.97, "some text") for name in REQUIRED]


def test_every_precision_has_limits_and_lower_ones_are_wider():
    assert set(PRECISIONS) <= set(GATES)
    order = [GATES[name] for name in ("float32", "float16", "int8", "int4")]
    for tight, wide in itertools.pairwise(order):
        assert tight.agreement > wide.agreement and tight.kl < wide.kl and tight.mel_db < wide.mel_db
    assert GATES["float16"].agreement == GATES["bfloat16"].agreement == 0.99 and GATES["int8"].agreement == 0.97


def test_limits_of_a_label_and_of_a_codec_in_another_precision():
    mixed = Gate.of("int8-nbits", "float16")
    assert (mixed.agreement, mixed.kl) == (GATES["int8"].agreement, GATES["int8"].kl)
    assert (mixed.mel_db, mixed.encode) == (GATES["float16"].mel_db, GATES["float16"].encode)
    assert Gate.of("int8") == GATES["int8"]
    with pytest.raises(ParameterError, match="no gate for precision 'fp8'"):
        Gate.of("fp8")


def test_true_only_if_something_was_measured_and_nothing_failed():
    assert report(*GOOD) and report(*GOOD).complete and not report(*GOOD).failed
    assert not report()
    assert not report(Criterion.skipped("agreement", "draws", "no graph"))
    bad = report(*GOOD, Criterion.at_least("encode agreement", "codec", 0.5, 0.8, ""))
    assert not bad and bad.failed == ("encode agreement",) and bad.complete
    for value in (math.nan, 0.9699):
        assert not Criterion.at_least("agreement", "draws", value, 0.97, "")
    part = report(*GOOD[:2], Criterion.skipped("logit KL", "draws", "no logits"))
    assert part and not part.complete and part.missing == REQUIRED[2:]


def test_text_table_and_html():
    good = report(*GOOD)
    assert repr(good) == "PASS int8 <here> against float32, 6 criteria"
    bad = report(Criterion.numbers("finite sound", "codec", False, "samples"), *GOOD[:2])
    assert repr(bad).startswith("FAIL (finite sound) int8 <here> against float32, 3 criteria; not measured: log-mel")
    lines = str(bad.table()).splitlines()
    assert lines[0].split() == ["criterion", "stage", "value", "limit", "verdict", "why"]
    assert "NaN or infinite" in lines[2] and "FAIL" in lines[2] and ">= 97.0%" in lines[4] and "98.77%" in lines[4]
    page = bad._repr_html_()
    assert "&lt;here&gt;" in page and "<here>" not in page and "FAIL" in page
    assert bad["finite sound"].kept is False
    with pytest.raises(ParameterError, match="no criterion 'taste'"):
        bad["taste"]


def test_the_record_is_plain_json_without_nan():
    criteria = (*GOOD, Criterion.skipped("logit KL", "draws", "no logits"))
    mixed = QualityReport("int8", "float32", GATES["int8"], criteria, [{"codebook": 0, "KL (nats)": math.nan}])
    back = json.loads(json.dumps(mixed.record(), allow_nan=False))
    assert back["passed"] and back["complete"] and back["gate"]["agreement"] == 0.97
    assert back["codebooks"] == [{"codebook": 0, "KL (nats)": None}] and back["speeches"] == []
    assert back["criteria"][-1] == {
        "name": "logit KL", "stage": "draws", "verdict": "not measured", "value": None, "limit": "", "why": "no logits",
    }  # fmt: skip
