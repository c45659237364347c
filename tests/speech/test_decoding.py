"""Decoding in pieces: the left context is enough, and no more than one frame too much."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fstrt_helpers.checkpoint import FRAME_SAMPLES, CodecConfig
from fstrt_helpers.model.firefly import Firefly
from fstrt_helpers.speech.decoding import CodecStream, left_context


class Codec:
    """The decoder as a runtime, without input checks."""

    device = torch.device("cpu")

    def __init__(self, model: Firefly) -> None:
        self.model, self.lengths = model, []

    @torch.inference_mode()
    def run(self, tensors, *, skip=0):
        self.lengths.append(tensors["codes"].shape[2])
        return {"waveform": self.model.decode(tensors["codes"], skip)}


@pytest.fixture(scope="module")
def codec() -> Codec:
    torch.manual_seed(0)
    model = Firefly(CodecConfig(encoder_dims=(8, 8, 16, 32), encoder_depths=(1, 1, 1, 1), head_channels=32)).double()
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):  # near zero at first, which would hide the blocks
            parameter.data.fill_(0.5)
    return Codec(model.eval())


def test_left_context_is_exactly_how_far_a_sample_looks_back(codec):
    context = left_context(codec.model.config)
    values = torch.zeros(1, 40, 8, 4, dtype=torch.float64, requires_grad=True)
    first_sample_of_last_frame = codec.model.decode_levels(values)[0, 0, 39 * FRAME_SAMPLES]
    (gradient,) = torch.autograd.grad(first_sample_of_last_frame, values)
    reached = gradient[0].abs().sum((1, 2)).nonzero().flatten()
    reach = 39 - int(reached.min())
    assert reach <= context <= reach + 1


@pytest.mark.parametrize("frames", [1, 9, 10, 11, 42, 43, 106, 150])
@torch.inference_mode()
def test_pieces_equal_the_whole(codec, frames):
    codes = np.random.default_rng(frames).integers(0, 1000, (8, frames))
    stream = CodecStream(codec, left_context(codec.model.config), (10, 24, 64))
    decoders = [stream.push(column) for column in codes.T] + [stream.flush()]
    pieces = [decode() for decode in decoders if decode]
    whole = codec.model.decode(torch.from_numpy(codes)[None])[0, 0].numpy()
    assert len(np.concatenate(pieces)) == frames * FRAME_SAMPLES
    assert np.abs(np.concatenate(pieces) - whole).max() <= 1e-5


def test_few_lengths_occur(codec):
    codec.lengths.clear()
    for frames in range(1, 130):
        stream = CodecStream(codec, 15, (10, 24, 64))
        decoders = [stream.push(column) for column in np.zeros((frames, 8), dtype=np.int64)] + [stream.flush()]
        for decode in decoders:
            if decode:
                decode()
    assert set(codec.lengths) <= {10, 22, 34, 46, 58, 70, 79}
