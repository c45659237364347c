"""Tiny random models, ours and upstream's, with the same weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fstrt_helpers.checkpoint import CodecConfig, DualARConfig
from fstrt_helpers.model.dual_ar import DualAR
from fstrt_helpers.model.firefly import Firefly, fold_weight_norm

from ..upstream import import_upstream_lib

SEMANTIC_BEGIN, IM_END = 40, 4
SHAPE = dict(
    dim=48,
    n_layer=3,
    n_head=6,
    n_local_heads=2,
    intermediate_size=64,
    vocab_size=SEMANTIC_BEGIN + 1024,
    max_seq_len=256,
    codebook_size=1024,
    num_codebooks=8,
    n_fast_layer=2,
    rope_base=1e6,
    norm_eps=1e-6,
    tie_word_embeddings=False,
)
CODEC = CodecConfig(
    encoder_dims=(16, 24, 32, 64), encoder_depths=(1, 1, 2, 1), head_channels=64, pre_kernel=13, post_kernel=13
)


class UpstreamTokenizer:
    """The three facts upstream's model asks its tokenizer for."""

    semantic_begin_id = SEMANTIC_BEGIN

    def get_token_id(self, token: str) -> int:
        return IM_END if token == "<|im_end|>" else SEMANTIC_BEGIN + int(token.split(":")[1].removesuffix("|>"))


def randomise(module: torch.nn.Module, seed: int) -> None:
    """Fills every parameter with noise large enough that no two outputs are alike."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("norm.weight", "original0")):
            parameter.data = 1 + 0.2 * noise if "norm.weight" in name else parameter.data * (1 + 0.1 * noise)
        else:
            fan_in = parameter.shape[-1] if parameter.ndim == 2 else parameter[0].numel()
            parameter.data = noise * (1.0 if "embeddings" in name else fan_in**-0.5)


@pytest.fixture(scope="session", params=["same width", "narrower fast transformer"])
def pair(request: pytest.FixtureRequest) -> SimpleNamespace:
    """Upstream's DualARTransformer and ours, float32, same weights."""
    lib = import_upstream_lib()
    shape = (
        SHAPE
        if request.param == "same width"
        else SHAPE | dict(fast_dim=32, fast_n_head=4, fast_n_local_heads=2, fast_intermediate_size=48)
    )
    extra = {} if request.param == "same width" else dict(fast_head_dim=8)
    theirs = lib.llama.DualARTransformer(lib.llama.DualARModelArgs(**shape, **extra), UpstreamTokenizer()).eval()
    randomise(theirs, seed=0)
    ours = DualAR(DualARConfig.from_dict(shape | extra), SEMANTIC_BEGIN, SEMANTIC_BEGIN + 1023).eval()
    ours.load_state_dict(theirs.state_dict())
    return SimpleNamespace(lib=lib, theirs=theirs, ours=ours)


@pytest.fixture(scope="session")
def codecs() -> SimpleNamespace:
    """Upstream's FireflyArchitecture (weight norm in place) and ours (folded), float32, same weights."""
    lib = import_upstream_lib()
    dims = list(CODEC.encoder_dims)
    theirs = lib.firefly.FireflyArchitecture(
        backbone=lib.firefly.ConvNeXtEncoder(
            input_channels=160, depths=list(CODEC.encoder_depths), dims=dims, kernel_size=7
        ),
        head=lib.firefly.HiFiGANGenerator(
            hop_length=512,
            upsample_rates=[8, 8, 2, 2, 2],
            upsample_kernel_sizes=[16, 16, 4, 4, 4],
            num_mels=dims[-1],
            upsample_initial_channel=CODEC.head_channels,
            pre_conv_kernel_size=13,
            post_conv_kernel_size=13,
        ),
        quantizer=lib.fsq.DownsampleFiniteScalarQuantize(
            input_dim=dims[-1], n_groups=8, n_codebooks=1, levels=[8, 5, 5, 5], downsample_factor=[2, 2]
        ),
        spec_transform=torch.nn.Identity(),
    ).eval()
    randomise(theirs, seed=1)
    state = fold_weight_norm(theirs.state_dict())
    ours = Firefly(CodecConfig.from_state_dict(state)).eval()
    ours.load_state_dict(state)
    return SimpleNamespace(lib=lib, theirs=theirs, ours=ours)


def random_prompt(length: int, seed: int = 0) -> torch.Tensor:
    """A prompt [1, 9, S] whose second half is spoken columns."""
    generator = torch.Generator().manual_seed(seed)
    columns = torch.zeros(9, length, dtype=torch.long)
    columns[0] = torch.randint(0, SEMANTIC_BEGIN, (length,), generator=generator)
    spoken = torch.arange(length) >= length // 2
    codes = torch.randint(0, 1000, (8, length), generator=generator)
    columns[1:, spoken] = codes[:, spoken]
    columns[0, spoken] = SEMANTIC_BEGIN + codes[0, spoken]
    return columns[None]
