"""A pipeline with random weights: what is shown must not depend on what is said."""

from __future__ import annotations

import pytest

from fstrt_helpers.speech import FishSpeech

from ..checkpoints import write_random_checkpoint


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> FishSpeech:
    """Babbles until its budget ends."""
    return FishSpeech.from_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("show") / "random"))
