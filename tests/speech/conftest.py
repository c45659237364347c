"""Pipelines with random weights for tests of mechanics."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.speech import FishSpeech

from ..checkpoints import write_random_checkpoint


@pytest.fixture(scope="session")
def babble(tmp_path_factory: pytest.TempPathFactory) -> FishSpeech:
    """A pipeline whose random weights babble; everything but the sound is as it should be."""
    folder = write_random_checkpoint(tmp_path_factory.mktemp("checkpoints") / "random")
    return FishSpeech.from_checkpoint(folder)


@pytest.fixture(scope="session")
def decided(tmp_path_factory: pytest.TempPathFactory) -> FishSpeech:
    """A pipeline whose random weights attend sharply: every code depends on all columns before it, and on precision."""
    folder = write_random_checkpoint(tmp_path_factory.mktemp("checkpoints") / "decided", seed=3)
    weights = torch.load(folder / "model.pth")
    for part, factor in {"output.weight": 10, "wqkv.weight": 8, "wo.weight": 20}.items():
        for name in weights:
            if name.endswith(part):
                weights[name] *= factor
    torch.save(weights, folder / "model.pth")
    return FishSpeech.from_checkpoint(folder)
