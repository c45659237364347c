"""The gate lets float16 through and itself exactly, and refuses what was damaged on purpose."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import NonFiniteOutput, ParameterError
from fstrt_helpers.graphs.parity import forced_draws, teacher_forced
from fstrt_helpers.measure.gate import GATES, QualityReport
from fstrt_helpers.measure.prompts import PROMPTS
from fstrt_helpers.measure.quality import QualityJudge, judge
from fstrt_helpers.measure.takes import Take, lead, speak, with_logits
from fstrt_helpers.model.frame import legal_rows
from fstrt_helpers.runtimes.base import Runtime
from fstrt_helpers.runtimes.torch import torch_runtimes
from fstrt_helpers.speech import FishSpeech
from fstrt_helpers.speech.generation import SamplingSettings
from fstrt_helpers.text.prompt import build_prompt

from ..checkpoints import write_random_checkpoint

SHORT = (PROMPTS[0], PROMPTS[5])  # two short ones: about a second each


@pytest.fixture(scope="module")
def tiny() -> FishSpeech:
    return FishSpeech.from_checkpoint("tiny", backend="torch", precision="float32")


@pytest.fixture(scope="module")
def gate(tiny) -> QualityJudge:
    return QualityJudge(tiny, prompts=SHORT)


def damaged(tiny: FishSpeech) -> tuple[SimpleNamespace, Mapping[str, Runtime]]:
    """A copy of the weights to spoil, and runtimes over it."""
    dual_ar, codec = tiny.checkpoint.load_dual_ar(), tiny.checkpoint.load_codec()
    runtimes = torch_runtimes(dual_ar, codec, legal_rows(dual_ar, tiny.tokenizer.im_end_id))
    return SimpleNamespace(dual_ar=dual_ar, codec=codec, frame=runtimes["frame"].module), runtimes


def test_a_runtime_agrees_with_itself_exactly(gate, tiny):
    calls = []
    gate._progress = lambda *call: calls.append(call)
    report = gate.judge(tiny)
    assert report and report.complete and report.gate == GATES["float32"]
    assert repr(report) == "PASS torch float32 on cpu against torch float32 on cpu, 12 criteria"
    for name in ("agreement", "worst codebook", "encode agreement", "stop rate", "duration ratio"):
        assert report[name].value == 1, name
    assert report["logit KL"].value == 0 and report["log-mel distance"].value == 0
    assert [row["draws"] for row in report.codebooks][1:] == [report.codebooks[0]["draws"] - 2] * 7  # two end tokens
    assert all(row["reference (s)"] == row["candidate (s)"] > 0.5 for row in report.speeches)
    assert calls[0] == ("draws", 0, 2) and calls[-1] == ("speech", 2, 2)


def test_float16_passes(gate):
    report = gate.judge(FishSpeech.from_checkpoint("tiny", backend="torch", precision="float16"))
    assert report and report.complete, report.table()
    assert report.gate == GATES["float16"]
    assert 0 < report["logit KL"].value < 1e-4  # not float32 under another name
    assert 0 < report["log-mel distance"].value < 0.2


def test_one_layer_scaled_is_refused(gate, tiny):
    weights, runtimes = damaged(tiny)
    weights.dual_ar.layers[3].feed_forward.w2.weight.data *= 1.5
    report = gate.judge(runtimes, only="draws", gate=GATES["float16"])
    assert not report and {"agreement", "logit KL"} <= set(report.failed), report.table()
    assert 0.8 < report["agreement"].value < 0.985  # it still speaks; only numbers see it
    assert report["finite draws"].kept and not report.complete


def test_a_noisy_codec_is_refused(gate, tiny):
    weights, runtimes = damaged(tiny)
    generator = torch.Generator().manual_seed(0)
    for parameter in weights.codec.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data += 0.1 * noise * parameter.data.std(correction=0)
    report = gate.judge(runtimes, only=["codec"], gate=GATES["int8"])
    assert not report and {"log-mel distance", "encode agreement"} <= set(report.failed), report.table()
    assert report["finite sound"].kept


def talk(tiny: FishSpeech | SimpleNamespace, runtimes: Mapping[str, Runtime]) -> QualityReport:
    """The free run of the shortest prompt, transformers only: nothing is decoded, so it is quick."""
    pair = [{graph: side[graph] for graph in ("prefill", "frame")} for side in (tiny.runtimes, runtimes)]
    return judge(*pair, only="speech", checkpoint=tiny.checkpoint, prompts=SHORT[:1])


def test_a_voice_that_does_not_end_is_refused(tiny):
    weights, runtimes = damaged(tiny)
    weights.frame.head[-1] = weights.frame.head[:-1].mean(0)  # the end token is never among the likely ones
    report = talk(tiny, runtimes)
    assert {"stop rate", "duration ratio"} <= set(report.failed), report.table()
    assert report.speeches[0]["candidate end"] in ("length", "loop")
    assert report["recall, own speech"].why == "there is no codec_decode to hear it with"


def test_a_voice_that_ends_at_once_is_refused(tiny):
    weights, runtimes = damaged(tiny)
    weights.frame.head[-1] = -10 * weights.frame.head[:-1].mean(0)  # logits are negative, so this one is the largest
    report = talk(tiny, runtimes)
    assert report["stop rate"].kept and report.failed == ("duration ratio",), report.table()
    assert report["duration ratio"].value == 0 and report.speeches[0]["candidate (s)"] == 0


@pytest.mark.parametrize(("part", "stage", "name"), [
    ("slow", "draws", "finite draws"), ("fast", "draws", "finite draws"), ("codec", "codec", "finite sound"),
    ("slow", "speech", "finite speech"),
])  # fmt: skip
def test_weights_that_are_no_numbers_are_refused_without_a_crash(gate, tiny, part, stage, name):
    weights, runtimes = damaged(tiny)
    spoilt = {
        "slow": weights.dual_ar.layers[0].attention.wo,
        "fast": weights.dual_ar.fast_layers[0].attention.wo,
        "codec": weights.codec.head.conv_pre.conv,
    }
    spoilt[part].weight.data.view(-1)[0] = float("nan")
    report = talk(tiny, runtimes) if stage == "speech" else gate.judge(runtimes, only=stage)
    assert not report and name in report.failed, report.table()
    assert stage != "draws" or "logit KL" in report.failed


def test_a_reference_that_is_no_number_is_an_error(tiny):
    weights, runtimes = damaged(tiny)
    weights.dual_ar.layers[0].attention.wo.weight.data.view(-1)[0] = float("nan")
    with pytest.raises(NonFiniteOutput, match="the reference itself"):
        talk(SimpleNamespace(runtimes=runtimes, checkpoint=tiny.checkpoint), tiny.runtimes)


def test_what_came_without_a_graph_is_not_measured_and_never_complete(gate, tiny):
    _, runtimes = damaged(tiny)
    half = {graph: runtimes[graph] for graph in ("codec_decode", "codec_encode")}
    report = gate.judge(half)
    assert report and not report.complete and report.missing == (
        "finite draws", "agreement", "finite speech", "stop rate",
    )  # fmt: skip
    assert "came without prefill, frame" in report["agreement"].why
    silent = gate.judge({graph: runtimes[graph] for graph in ("prefill", "frame")}, only="codec")
    assert not silent and "nothing measured" in repr(silent)


def test_questions_that_make_no_sense_are_refused(gate, tiny, tmp_path):
    with pytest.raises(ParameterError, match="no stage 'taste'"):
        gate.judge(tiny, only="taste")
    other = FishSpeech.from_checkpoint(write_random_checkpoint(tmp_path / "other"), backend="torch")
    with pytest.raises(ParameterError, match="another checkpoint"):
        gate.judge(other)
    with pytest.raises(ParameterError, match="do not know their checkpoint"):
        QualityJudge(tiny.runtimes)
    with pytest.raises(ParameterError, match="no runtimes"):
        gate.judge({})
    with pytest.raises(ParameterError, match="no prompts"):
        QualityJudge(tiny, prompts=())
    with pytest.raises(ParameterError, match="passages is 3"):
        QualityJudge(tiny, prompts=SHORT, passages=3)
    with pytest.raises(ParameterError, match="no voice named 'nobody'"):
        QualityJudge(tiny, voices=["nobody"])


# random weights: quick, and what is said does not matter


@pytest.fixture(scope="module")
def random(tmp_path_factory) -> FishSpeech:
    folder = write_random_checkpoint(tmp_path_factory.mktemp("quality") / "random", n_layer=1)
    return FishSpeech.from_checkpoint(folder, backend="torch", precision="float32")


def test_a_reference_that_never_ends_holds_nobody_to_ending(random):
    report = judge(random, random, prompts=["Go."], voices=[None], recogniser=False)
    for name in ("stop rate", "duration ratio"):
        assert report[name].kept is None and "ends only 0% of the prompts" in report[name].why
    assert report["agreement"].value == 1 and report and report.missing == ("stop rate",)


def test_leading_draws_what_teacher_forcing_in_one_cache_draws(random):
    """The production loop, led, against :func:`teacher_forced`, which has a loop of its own."""
    config, tokenizer = random.checkpoint.config, random.tokenizer
    prompt = build_prompt(tokenizer, "Hello there.", num_codebooks=config.num_codebooks)
    settings, seed, frames = SamplingSettings(), 5, 24
    take = speak(random.runtimes, config, prompt, settings, frames, seed, tokenizer.im_end_id)
    assert isinstance(take, Take) and take.columns.shape == (9, frames) and take.stop_reason == "length"
    changed = dict(random.runtimes)
    frame = copy.copy(changed["frame"])
    frame.module = copy.deepcopy(frame.module)
    frame.module.model.fast_layers[0].attention.wo.weight.data *= 3
    changed["frame"] = frame
    generator = torch.Generator().manual_seed(seed)
    size = next(t.shape[1] for t in frame.spec.inputs if t.name == "noise")
    noise = torch.cat([torch.empty(1, size).exponential_(1, generator=generator) for _ in range(frames)])
    expected, _ = forced_draws(changed, config, prompt, take.columns, noise, (0.7, 0.7, 1.2))
    led = lead(changed, config, prompt, settings, take, seed, tokenizer.im_end_id)
    assert np.array_equal(led.drawn, expected) and not np.array_equal(led.drawn, take.drawn)
    agreement = teacher_forced(random.runtimes, changed, config, prompt, take.columns, noise)
    assert agreement.share < 1
    same = lead(random.runtimes, config, prompt, settings, take, seed, tokenizer.im_end_id)
    assert np.array_equal(same.columns, take.columns)


def test_logits_are_added_to_a_torch_runtime_once(random):
    plain, wide = random.runtimes["frame"], with_logits(random.runtimes["frame"])
    assert wide.module is plain.module and len(wide.spec.outputs) == len(plain.spec.outputs) + 2
    assert with_logits(wide) is wide
