"""Counting parts: nothing is forgotten, nothing counted twice, and the official size comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from fstrt_helpers.checkpoint import CodecConfig, find_checkpoint
from fstrt_helpers.checkpoint_config import DualARConfig
from fstrt_helpers.measure.parts import FRAME_SECONDS, Part, count_parts, frame_megabytes, official_parts

from ..checkpoints import RANDOM_CONFIG, write_random_checkpoint


@pytest.fixture(scope="module")
def official() -> dict[str, Part]:
    return {part.name: part for part in official_parts()}


def test_the_parts_are_the_loaded_weights(tmp_path: Path) -> None:
    checkpoint = find_checkpoint(write_random_checkpoint(tmp_path / "random"))
    parts = count_parts(checkpoint.config, checkpoint.codec_config)
    states = checkpoint.load_dual_ar().state_dict(), checkpoint.load_codec().state_dict()
    for groups, state in zip(({"slow", "fast"}, {"codec"}), states, strict=True):
        mine = [part for part in parts if part.group in groups]
        assert sum(part.parameters for part in mine) == sum(tensor.numel() for tensor in state.values())
        for name in state:
            owners = [p.name for p in mine if any(name.startswith(f"{module}.") for module in p.modules)]
            assert len(owners) == 1, (name, owners)


@pytest.mark.parametrize(
    "change", [{"tie_word_embeddings": True}, {"fast_dim": 16, "fast_n_head": 4, "fast_n_local_heads": 2}], ids=str
)
def test_other_shapes_are_counted_in_full(change: dict[str, object]) -> None:
    from fstrt_helpers.model.dual_ar import DualAR

    config = DualARConfig.from_dict({**RANDOM_CONFIG, **change})
    counted = sum(part.parameters for part in count_parts(config, CodecConfig()) if part.group != "codec")
    assert counted == sum(p.numel() for p in DualAR(config, 268, 1291).parameters())


def test_the_official_size(official: dict[str, Part]) -> None:
    transformers = [part for part in official.values() if part.group != "codec"]
    assert sum(part.parameters for part in transformers) == 637_921_280
    assert official["token head"].parameters == 102_048 * 1024
    assert official["slow transformer"].megabytes("float32") == 2 * official["slow transformer"].megabytes("float16")


def test_what_a_frame_reads(official: dict[str, Part]) -> None:
    """Layer by layer, by hand: attention, feed-forward, two norms."""
    layer = 1024 * (16 + 2 * 2) * 64 + 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    slow = 24 * layer + 1024 + 1025 * 1024 + 9 * 1024
    fast = 7 * (4 * layer + 1024 + 1024 * 1024 + 1024)
    assert frame_megabytes(list(official.values())) == pytest.approx(2 * (slow + fast) / 1e6)
    assert frame_megabytes(list(official.values()), "float32") == pytest.approx(4 * (slow + fast) / 1e6)
    assert pytest.approx(0.0464, abs=1e-4) == FRAME_SECONDS


def test_a_row_says_it_in_words(official: dict[str, Part]) -> None:
    row = official["token head"].row()
    assert row["parameters"] == "104,497,152"
    assert row["read per frame"] == "1,025 of 102,048 rows"
    assert official["fast transformer"].row()["read per frame"] == "7 times"
