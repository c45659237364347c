"""The codec against upstream's, same weights, weight norm folded on our side only."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.checkpoint import CodecConfig
from fstrt_helpers.model.firefly import fold_weight_norm

from .conftest import CODEC

FRAMES = [1, 7, 20, 50]


def random_mel(frames: int) -> torch.Tensor:
    return torch.randn(1, 160, 4 * frames, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("frames", FRAMES)
@torch.inference_mode()
def test_encode_gives_upstreams_indices(codecs, frames):
    mel = random_mel(frames)
    theirs = codecs.theirs.quantizer.encode(codecs.theirs.backbone(mel))
    ours = codecs.ours.encode(mel)
    assert ours.shape == (1, 8, frames)
    assert torch.equal(ours, theirs.long())
    assert ours.max() < 1000 and len(ours.unique()) > min(4, frames)


@pytest.mark.parametrize("frames", FRAMES)
@torch.inference_mode()
def test_decode_is_upstreams_waveform(codecs, frames):
    codes = torch.randint(0, 1000, (1, 8, frames), generator=torch.Generator().manual_seed(frames))
    theirs = codecs.theirs.head(codecs.theirs.quantizer.decode(codes))
    ours = codecs.ours.decode(codes)
    assert ours.shape == (1, 1, 2048 * frames)
    assert (ours - theirs).abs().max() <= 1e-4
    assert ours.std() > 1e-3


@pytest.mark.parametrize("skip", [1, 7, 15, 16, 40])
@torch.inference_mode()
def test_skipped_frames_change_no_later_sample(codecs, skip):
    codes = torch.randint(0, 1000, (2, 8, 60), generator=torch.Generator().manual_seed(skip))
    whole = codecs.ours.decode(codes)
    rest = codecs.ours.decode(codes, skip)
    assert rest.shape == (2, 1, 2048 * (60 - skip))
    assert (rest - whole[..., 2048 * skip :]).abs().max() <= 1e-5


@torch.inference_mode()
def test_codes_survive_levels_and_back(codecs):
    fsq = codecs.ours.quantizer.residual_fsq
    codes = torch.arange(1000).expand(1, 8, 1000)
    levels = torch.round(fsq.levels_from_codes(codes) * (fsq.levels // 2))
    assert torch.equal(fsq.codes_from_levels(levels), codes)


def test_widths_are_read_off_the_tensors(codecs):
    assert codecs.ours.config == CODEC


def test_both_spellings_of_weight_norm_fold_alike(codecs):
    state = codecs.theirs.state_dict()
    old = {
        name.replace(".parametrizations.weight.original0", ".weight_g").replace(
            ".parametrizations.weight.original1", ".weight_v"
        ): tensor
        for name, tensor in state.items()
    }
    assert old.keys() != state.keys()
    new, folded = fold_weight_norm(state), fold_weight_norm(old)
    assert new.keys() == folded.keys()
    assert all(torch.equal(new[name], folded[name]) for name in new)
    assert isinstance(CodecConfig.from_state_dict(folded), CodecConfig)
