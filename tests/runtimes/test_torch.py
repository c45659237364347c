"""Inputs of a graph are checked before anything runs."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.errors import RuntimeInputError
from fstrt_helpers.graphs.spec import graph_spec
from fstrt_helpers.speech import FishSpeech

from ..checkpoints import write_random_checkpoint


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> FishSpeech:
    return FishSpeech.from_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("runtime")))


def test_wrong_dtype_shape_and_name_are_named(engine):
    decode = engine.runtimes["codec_decode"]
    with pytest.raises(RuntimeInputError, match=r"'codes' is float32\[1, 8, 3\]"):
        decode.run({"codes": torch.zeros(1, 8, 3)})
    with pytest.raises(RuntimeInputError, match=r"'codes' is int64\[1, 7, 3\]"):
        decode.run({"codes": torch.zeros(1, 7, 3, dtype=torch.int64)})
    with pytest.raises(RuntimeInputError, match=r"missing inputs \['codes'\], unknown inputs \['tokens'\]"):
        decode.run({"tokens": torch.zeros(1, 8, 3, dtype=torch.int64)})


def test_free_dimensions_must_agree(engine):
    prefill = engine.runtimes["prefill"]
    c = engine.checkpoint.config
    tensors = {t.name: torch.zeros(1, 2, 64, c.head_dim) for t in prefill.spec.inputs if t.name[:2] in ("k_", "v_")}
    tensors |= {"columns": torch.zeros(1, 9, 5, dtype=torch.int64), "start": torch.zeros(1, dtype=torch.int64)}
    tensors["mask"] = torch.ones(1, 1, 6, 64, dtype=torch.bool)
    with pytest.raises(RuntimeInputError, match="'mask'"):
        prefill.run(tensors)
    tensors["mask"] = torch.ones(1, 1, 5, 64, dtype=torch.bool)
    tensors["v_1"] = torch.zeros(1, 2, 65, c.head_dim)
    with pytest.raises(RuntimeInputError, match="'v_1'"):
        prefill.run(tensors)


def test_a_full_cache_is_an_error_not_a_write_past_the_end(engine):
    prefill = engine.runtimes["prefill"]
    c = engine.checkpoint.config
    tensors = {t.name: torch.zeros(1, 2, 8, c.head_dim) for t in prefill.spec.inputs if t.name[:2] in ("k_", "v_")}
    tensors |= {"columns": torch.zeros(1, 9, 5, dtype=torch.int64), "start": torch.tensor([4])}
    tensors["mask"] = torch.ones(1, 1, 5, 8, dtype=torch.bool)
    with pytest.raises(RuntimeInputError, match="9 columns wanted, 8 allocated"):
        prefill.run(tensors)


def test_mel_must_be_whole_frames(engine):
    with pytest.raises(RuntimeInputError, match="whole number of frames"):
        engine.runtimes["codec_encode"].run({"log_mel": torch.zeros(1, 160, 7)})


def test_unknown_graph(engine):
    with pytest.raises(RuntimeInputError, match="no graph"):
        graph_spec("vocoder", engine.checkpoint.config, noise=1)


def test_describe_tells_what_runs(engine):
    assert engine.runtimes["frame"].describe() == {"backend": "torch", "device": "cpu", "precision": "float32"}
    assert "torch" in engine.backend_reason
