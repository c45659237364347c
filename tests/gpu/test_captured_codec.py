"""The codec's decoder as CUDA graphs: the same samples as without, whichever thread asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fstrt_helpers.runtimes.captured_codec import LONGEST, CapturedCodec

pytestmark = pytest.mark.gpu


def codes(frames: int, gpu: torch.device, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1000, (1, 8, frames), generator=generator).to(gpu)


@pytest.mark.parametrize("frames", [1, 10, 34, LONGEST, LONGEST + 1])
@pytest.mark.parametrize("skip", [0, 1])
def test_same_samples_as_without_a_graph(torch_models, gpu, frames, skip):
    plain = torch_models(torch.float32).runtimes["codec_decode"]
    captured = CapturedCodec(plain)
    for seed in range(2):
        given = {"codes": codes(frames, gpu, seed)}
        ours, theirs = (runtime.run(given, skip=skip)["waveform"] for runtime in (captured, plain))
        assert ours.shape == theirs.shape
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert captured.describe()["captured"] == ([frames] if frames <= LONGEST else [])


def test_eight_threads_get_their_own_samples(torch_models, gpu):
    captured = CapturedCodec(torch_models(torch.float16).runtimes["codec_decode"])
    alone = [captured.run({"codes": codes(20, gpu, seed)})["waveform"].cpu() for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        together = list(
            threads.map(lambda seed: captured.run({"codes": codes(20, gpu, seed)})["waveform"].cpu(), range(8))
        )
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
