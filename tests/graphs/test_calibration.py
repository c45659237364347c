"""Calibration data: what is collected, kept, gone on with, and refused."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fstrt_helpers.audio import log_mel
from fstrt_helpers.errors import ParameterError
from fstrt_helpers.graphs.calibration import TEXTS, calibration_key, collect_calibration
from fstrt_helpers.graphs.ranges import METHODS, measure_ranges
from fstrt_helpers.speech import FishSpeech

from ..checkpoints import write_random_checkpoint

SOME = {"short": "Yes.", "numbers": "It costs 42 dollars.", "question": "What time is it?", "silence": ""}


@pytest.fixture(scope="module")
def speech(exported) -> FishSpeech:
    return FishSpeech.from_checkpoint(exported.checkpoint.folder, backend="torch", precision="float32")


@pytest.fixture(scope="module")
def collected(speech, tmp_path_factory):
    return collect_calibration(speech, texts=SOME, max_seconds=0.3, folder=tmp_path_factory.mktemp("calibration"))


def again(speech, folder: Path, **choices):
    return collect_calibration(speech, **{"texts": SOME, "max_seconds": 0.3, "folder": folder} | choices)


def test_texts_of_every_kind_are_shipped():
    kinds = {name.split("-")[0] for name in TEXTS}
    assert {"short", "long", "numbers", "question", "silence"} <= kinds
    assert max(map(len, TEXTS.values())) > 100 and any(c.isdigit() for t in TEXTS.values() for c in t)


def test_codes_and_log_mels_come_from_the_pipeline(collected, speech):
    assert list(collected.codes) == list(SOME) == list(collected.made)
    for name in SOME:
        codes, mel = collected.codes[name], collected.log_mels[name]
        assert codes.shape[:2] == (1, 8) and codes.dtype == np.int64 and codes.max() < 1024
        assert mel.shape == (1, 160, 4 * codes.shape[2]) and mel.dtype == np.float32
    said = speech.synthesize(SOME["numbers"], seed=1, max_seconds=0.3)
    assert np.array_equal(said.codes, collected.codes["numbers"][0])
    assert np.allclose(log_mel(torch.from_numpy(said.audio)[None]).numpy(), collected.log_mels["numbers"], atol=1e-3)
    assert collected.log_mels["silence"].max() < np.log(2e-3) and "4 texts" in repr(collected)


def test_pieces(collected):
    pieces = collected.inputs("codec_decode", frames=4)
    assert max(p["codes"].shape[2] for p in pieces) == 4
    assert sum(p["codes"].shape[2] for p in pieces) == sum(c.shape[2] for c in collected.codes.values())
    assert {p["log_mel"].shape[2] % 4 for p in collected.inputs("codec_encode", frames=4)} == {0}
    with pytest.raises(ParameterError, match="needs no calibration"):
        collected.inputs("frame")


def test_a_second_call_speaks_nothing(collected, speech):
    second = again(speech, collected.folder.parents[1])
    assert second.made == () and second.key == collected.key and not second.refused
    assert all(np.array_equal(second.codes[n], collected.codes[n]) for n in SOME)


def test_an_interrupted_run_goes_on_where_it_stopped(speech, tmp_path):
    def stop(name: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again(speech, tmp_path, progress=stop)
    assert sorted(p.name for p in tmp_path.rglob("*.npz")) == ["numbers.npz", "short.npz"]
    assert again(speech, tmp_path).made == ("question", "silence")


def test_data_of_another_model_is_refused_with_the_reason(collected, speech, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(collected.folder.parents[1], folder)
    other = FishSpeech.from_checkpoint(write_random_checkpoint(tmp_path / "random", seed=1), backend="torch")
    key = calibration_key(other.checkpoint.fingerprint, SOME, 0, [None], 0.3)
    assert key != collected.key
    shutil.copytree(folder / "random" / collected.key[:12], folder / "random" / key[:12])
    fresh = again(other, folder)
    assert fresh.key == key and fresh.made == tuple(SOME)
    assert set(fresh.refused) == {f"{n}.npz" for n in SOME}
    assert all("another model" in reason for reason in fresh.refused.values())
    assert not np.array_equal(fresh.codes["short"], collected.codes["short"])
    assert again(other, folder).refused == {}


@pytest.mark.parametrize("keep", [0, 100, -50])
def test_a_damaged_file_is_made_again(collected, speech, tmp_path, keep):
    shutil.copytree(collected.folder.parents[1], tmp_path / "copy")
    file = next((tmp_path / "copy").rglob("question.npz"))
    file.write_bytes(file.read_bytes()[:keep])
    mended = again(speech, tmp_path / "copy")
    assert mended.made == ("question",) and "cannot be read" in mended.refused["question.npz"]
    assert np.array_equal(mended.codes["question"], collected.codes["question"])


def test_names_that_are_no_file_names(speech, tmp_path):
    for texts in ({}, {"../short": "Yes."}, {"": "Yes."}):
        with pytest.raises(ParameterError, match="calibration set"):
            again(speech, tmp_path, texts=texts)


# ranges


def test_min_max_is_what_went_in(exported, collected):
    ranges = measure_ranges(exported.paths["codec_encode"], collected, "minmax")
    first = next(iter(ranges.limits))
    assert first == "codec.backbone.downsample_layers.0.0.conv"  # it reads the log-mel itself
    most = max(np.abs(mel).max() for mel in collected.log_mels.values())
    assert ranges.limits[first] == pytest.approx((-most, most))
    assert ranges.scale(first) == pytest.approx(most / 127) and ranges.rows()[0]["reads"] == first
    assert not ranges.histograms


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_other_methods_count_every_value_and_cut_the_rare_ones(exported, collected, method, tmp_path):
    mel = np.random.default_rng(0).normal(0, 1, (1, 160, 800)).astype(np.float32)
    mel[0, 0, 0] = 50
    data = dataclasses.replace(collected, log_mels={"one": mel}, folder=tmp_path)
    widest = measure_ranges(exported.paths["codec_encode"], data, "minmax")
    ranges = measure_ranges(exported.paths["codec_encode"], data, method)
    assert list(ranges.limits) == list(widest.limits) == list(ranges.histograms)
    assert all(ranges.scale(n) <= 1.01 * widest.scale(n) for n in ranges.limits)
    first = "codec.backbone.downsample_layers.0.0.conv"
    assert widest.limits[first] == (-50, 50)
    assert any(ranges.scale(n) < 0.99 * widest.scale(n) for n in ranges.limits)
    if method == "percentile":
        assert ranges.scale(first) < 10 / 127  # one value in 128,000 does not count
    counts, edges = ranges.histograms[first]
    # Edges of float32 bins that grow lose a value now and then.
    assert 0.999 * mel.size <= counts.sum() <= mel.size and len(edges) == len(counts) + 1
    stored = measure_ranges(exported.paths["codec_encode"], data, method)
    assert np.array_equal(stored.histograms[first][0], counts)


def test_ranges_are_kept_and_belong_to_graph_data_and_method(exported, collected, speech, tmp_path):
    path = exported.paths["codec_encode"]
    first = measure_ranges(path, collected, "minmax")
    cache = collected.folder / "ranges-codec_encode-minmax.npz"
    written = cache.stat().st_mtime_ns
    assert measure_ranges(path, collected, "minmax").limits == first.limits
    assert cache.stat().st_mtime_ns == written
    cache.write_bytes(b"no archive")
    assert measure_ranges(path, collected, "minmax").limits == first.limits
    other = again(speech, tmp_path, seed=5)
    shutil.copy(cache, other.folder)
    assert measure_ranges(path, other, "minmax").limits != first.limits
    assert METHODS == ("minmax", "entropy", "percentile")
    with pytest.raises(ParameterError, match="no calibration method"):
        measure_ranges(path, collected, "mse")
    with pytest.raises(ParameterError, match="needs no calibration"):
        measure_ranges(exported.paths["frame"], collected, "minmax")
