"""Exported graphs on ONNX Runtime through the quality gate."""

from __future__ import annotations

import pytest

from fstrt_helpers.measure.gate import GATES
from fstrt_helpers.measure.prompts import PROMPTS
from fstrt_helpers.measure.quality import QualityJudge
from fstrt_helpers.measure.takes import with_logits


def test_float32_graphs_of_random_weights(exported):
    judge = QualityJudge(exported.torch, checkpoint=exported.checkpoint, prompts=["Go."], voices=[None])
    report = judge.judge(exported.ort, only=("draws", "codec"))
    assert with_logits(exported.ort["frame"]) is exported.ort["frame"]
    assert report["logit KL"].kept is None and "logits=True" in report["logit KL"].why
    assert "onnxruntime float32 on cpu" in report["logit KL"].why
    assert report and report["agreement"].value == 1 and report["log-mel distance"].value < 1e-2, report.table()


def test_float16_graphs_of_tiny_pass(half):
    if not half.trained:
        pytest.skip("data/tiny has no weights; random ones have almost uniform logits, which any rounding reorders")
    judge = QualityJudge(half.torch, checkpoint=half.checkpoint, prompts=PROMPTS[:2], recogniser=False)
    report = judge.judge(half.ort)
    assert report and report.complete and report.gate == GATES["float16"], report.table()
    assert 0 < report["log-mel distance"].value < 0.2
