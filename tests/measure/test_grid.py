"""One factor at a time around one base point, and inputs that differ from round to round."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fstrt_helpers.checkpoint import find_checkpoint
from fstrt_helpers.errors import ParameterError
from fstrt_helpers.measure.grid import MEASURES, SENTENCES, code_frames, make_codes, make_grid, make_prompt, sha256_of
from fstrt_helpers.text.split import split_text

from ..checkpoints import write_random_checkpoint


def test_one_factor_changes_at_a_time() -> None:
    factors = dict(batch=[1, 2, 8], capacity=[512, 2048, 8192], position=[300, 100, 4000])
    points = make_grid(["frame"], longest=8192, **factors)
    base = points[0]
    assert (base.batch, base.capacity, base.position, base.sized) == (1, 512, 300, False)
    assert [p.batch for p in points if p.batch > 1] == [2, 8]
    assert [p.capacity for p in points if p.position == 300 and p.batch == 1 and not p.cut] == [512, 2048, 8192]
    assert [(p.position, p.capacity) for p in points if p.position != 300] == [(100, 8192), (4000, 8192)]
    assert len(points) == len(set(points))
    (cut,) = (p for p in points if p.cut)
    assert asdict(cut) | {"sized": False, "cut": False} == asdict(base)
    deep = [p for p in points if p.shape == ("frames", 1, 8192, True, False)]
    assert [p.position for p in deep] == [300, 100, 4000]  # one model serves them, so they can share rounds


def test_every_measure_is_there_in_order() -> None:
    points = make_grid(MEASURES, longest=2048, prompt=[64, 256, 1024, 4096], seconds=[2.0, 10.0])
    assert list(dict.fromkeys(p.graph for p in points)) == list(MEASURES)
    prefills = [(p.prompt, p.capacity) for p in points if p.graph == "prefill"]
    assert prefills == [(64, 512), (256, 512), (1024, 2048)]  # 4096 columns are more than the model was made for
    assert [p.seconds for p in points if p.graph == "codec_decode"] == [2.0, 10.0]


@pytest.mark.parametrize(
    "factors",
    [dict(position=[500]), dict(position=[5]), dict(batch=[]), dict(capacity=[0]), dict(seconds=[-1.0])],
    ids=str,
)
def test_what_does_not_fit_is_refused(factors: dict[str, list[int]]) -> None:
    with pytest.raises(ParameterError):
        make_grid(MEASURES, longest=8192, **factors)


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(ParameterError, match="latency"):
        make_grid(["latency"], longest=8192)


def test_positions_and_capacities_beyond_the_model_are_left_out() -> None:
    points = make_grid(["frame"], longest=1024, capacity=[512, 4096], position=[300, 2000])
    assert {p.capacity for p in points} == {512} and {p.position for p in points} == {300}


def test_prompts_are_legal_and_all_different(tmp_path: Path) -> None:
    tokenizer = find_checkpoint(write_random_checkpoint(tmp_path / "random")).tokenizer()
    prompt = make_prompt(tokenizer, 40, 3, seed=1)
    assert prompt.shape == (3, 9, 40) and prompt.dtype == np.int64
    semantic = (prompt[:, 0] >= tokenizer.semantic_begin_id) & (prompt[:, 0] <= tokenizer.semantic_end_id)
    assert semantic.any() and not semantic.all()
    assert (prompt[:, 0][semantic] - tokenizer.semantic_begin_id == prompt[:, 1][semantic]).all()
    assert not prompt[:, 1:].transpose(0, 2, 1)[~semantic].any()
    hashes = {sha256_of(row) for row in prompt} | {
        sha256_of(make_prompt(tokenizer, 40, 1, seed=s)) for s in range(2, 5)
    }
    assert len(hashes) == 6
    assert sha256_of(make_prompt(tokenizer, 40, 3, seed=1)) == sha256_of(prompt)


def test_codes_and_texts() -> None:
    assert [code_frames(s) for s in (0.001, 2, 10, 60)] == [1, 43, 215, 1292]
    assert make_codes(43, 0).shape == (1, 8, 43) and make_codes(500, 0).max() < 1000
    assert all(len(split_text(text)) == 1 for text in SENTENCES) and len(set(SENTENCES)) == len(SENTENCES)
