"""A cache that grows keeps what it holds and changes no sound."""

from __future__ import annotations

import numpy as np
import torch

from fstrt_helpers.speech import cache as cache_module
from fstrt_helpers.speech.cache import KVBuffers


def test_growing_keeps_keys_and_values(babble):
    kv = KVBuffers(babble.checkpoint.config, torch.float32, torch.device("cpu"), 250)
    assert kv.capacity == 256
    for tensor in kv.tensors.values():
        tensor.normal_()
    before = {name: tensor.clone() for name, tensor in kv.tensors.items()}
    kv.reserve(256)
    assert kv.capacity == 256
    kv.reserve(257)
    assert kv.capacity == 512
    for name, tensor in kv.tensors.items():
        assert torch.equal(tensor[:, :, :256], before[name]) and not tensor[:, :, 256:].any()


def test_capacity_changes_no_code(babble, monkeypatch):
    large = babble.synthesize("Hello there.", seed=1, max_seconds=2)
    monkeypatch.setattr(cache_module, "CAPACITIES", (40, 50, 60, 2048))
    small = babble.synthesize("Hello there.", seed=1, max_seconds=2)
    assert np.array_equal(large.codes, small.codes)
