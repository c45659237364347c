"""One pipeline with random weights for all tests of mechanics."""

from __future__ import annotations

import pytest

from fstrt_helpers.speech import FishSpeech

from ..checkpoints import write_random_checkpoint


@pytest.fixture(scope="session")
def babble(tmp_path_factory: pytest.TempPathFactory) -> FishSpeech:
    """A pipeline whose random weights babble; everything but the sound is as it should be."""
    folder = write_random_checkpoint(tmp_path_factory.mktemp("checkpoints") / "random")
    return FishSpeech.from_checkpoint(folder)
