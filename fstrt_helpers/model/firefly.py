"""Firefly-GAN VQ, the audio codec of Fish Speech 1.5, as plain exportable PyTorch.

A frame is 8 codes and 2048 samples at 44.1 kHz. Every convolution looks to the left only, so the decoder
can be fed piece by piece. Module names are the official ones; weight norm is folded into the weights
(:func:`fold_weight_norm`), which changes no sample and saves its arithmetic.

Sources: HiFi-GAN (arXiv:2010.05646), ConvNeXt (arXiv:2201.03545), finite scalar quantisation
(arXiv:2309.15505), Fish-Speech (arXiv:2411.01156).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import ceil, prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoint import CodecConfig
from .fsq import GroupedFSQ

__all__ = ["Firefly", "fold_weight_norm", "look_back"]


class CausalConv1d(nn.Module):
    """Convolution padded on the left, so that sample t depends on no later sample."""

    def __init__(self, c_in: int, c_out: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1):
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel, stride=stride, dilation=dilation, groups=groups)
        self.left = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor) -> Tensor:  # [B, C, stride·T] -> [B, C', T]
        return self.conv(F.pad(x, (self.left, 0)))


class CausalConvTranspose1d(nn.Module):
    """Transposed convolution whose tail, which would reach into the next step, is cut off."""

    def __init__(self, c_in: int, c_out: int, kernel: int, *, stride: int):
        super().__init__()
        self.conv = nn.ConvTranspose1d(c_in, c_out, kernel, stride=stride)
        self.tail = kernel - stride

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T] -> [B, C', stride·T]
        y = self.conv(x)
        return y[..., : -self.tail] if self.tail else y


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [B, C, T]."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T]
        return F.layer_norm(x.mT, self.weight.shape, self.weight, self.bias, 1e-6).mT


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, then a two-layer perceptron on the channels, scaled and added."""

    def __init__(self, dim: int):
        super().__init__()
        self.dwconv = CausalConv1d(dim, dim, 7, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T]
        y = self.norm(self.dwconv(x).mT)  # [B, T, C]
        y = self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + (self.gamma * y).mT


class Encoder(nn.Module):
    """ConvNeXt stack from log-mel to features, one step per mel column."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        dims = config.encoder_dims
        stem = nn.Sequential(CausalConv1d(config.mel_bins, dims[0], 7), ChannelNorm(dims[0]))
        widen = [nn.Sequential(ChannelNorm(a), nn.Conv1d(a, b, 1)) for a, b in pairwise(dims)]
        self.downsample_layers = nn.ModuleList([stem, *widen])
        self.stages = nn.ModuleList(
            nn.Sequential(*[ConvNeXtBlock(dim) for _ in range(depth)])
            for dim, depth in zip(dims, config.encoder_depths, strict=True)
        )
        self.norm = ChannelNorm(dims[-1])

    def forward(self, log_mel: Tensor) -> Tensor:  # [B, 160, 4T] -> [B, D, 4T]
        x = log_mel
        for widen, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(widen(x))
        return self.norm(x)


class Quantizer(nn.Module):
    """Four mel columns to one frame, quantised, and back."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        dim = config.latent_dim
        self.downsample = nn.Sequential(
            *[
                nn.Sequential(CausalConv1d(dim, dim, factor, stride=factor), ConvNeXtBlock(dim))
                for factor in config.downsample
            ]
        )
        self.residual_fsq = GroupedFSQ(config)
        self.upsample = nn.Sequential(
            *[
                nn.Sequential(CausalConvTranspose1d(dim, dim, factor, stride=factor), ConvNeXtBlock(dim))
                for factor in reversed(config.downsample)
            ]
        )

    def project_in(self, z: Tensor) -> Tensor:  # [B, D, T] -> [B, T, G, 4]
        return self.residual_fsq.project_in(z)

    def codes_from_levels(self, q: Tensor) -> Tensor:  # [B, T, G, 4] -> [B, G, T]
        return self.residual_fsq.codes_from_levels(q)


class ResBlock(nn.Module):
    """Three pairs of dilated convolutions, each pair added to its input."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]):
        super().__init__()
        self.convs1 = nn.ModuleList(CausalConv1d(channels, channels, kernel, dilation=d) for d in dilations)
        self.convs2 = nn.ModuleList(CausalConv1d(channels, channels, kernel, dilation=d) for d in dilations)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T]
        for first, second in zip(self.convs1, self.convs2, strict=True):
            x = x + second(F.silu(first(F.silu(x))))
        return x


class ParallelBlock(nn.Module):
    """Mean of residual blocks with different kernel sizes."""

    def __init__(self, channels: int, config: CodecConfig):
        super().__init__()
        self.blocks = nn.ModuleList(ResBlock(channels, k, config.resblock_dilations) for k in config.resblock_kernels)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, T]
        total = self.blocks[0](x)
        for block in self.blocks[1:]:
            total = total + block(x)
        return total / len(self.blocks)


class Head(nn.Module):
    """HiFi-GAN generator: features at the mel rate to samples, 512 per step."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.head_channels
        self.config = config
        self.conv_pre = CausalConv1d(config.latent_dim, width, config.pre_kernel)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate, kernel in zip(config.upsample_rates, config.upsample_kernels, strict=True):
            self.ups.append(CausalConvTranspose1d(width, width // 2, kernel, stride=rate))
            width //= 2
            self.resblocks.append(ParallelBlock(width, config))
        self.conv_post = CausalConv1d(width, 1, config.post_kernel)

    def forward(self, x: Tensor, skip: int = 0) -> Tensor:  # [B, D, 4T] -> [B, 1, 2048·(T - skip)]
        """Samples of all frames but the first ``skip``, which are computed only as far as later ones need them."""
        per_frame = prod(self.config.downsample)  # steps of x per frame
        dropped = 0.0  # frames
        x = self.conv_pre(x)
        for stage, (up, block) in enumerate(zip(self.ups, self.resblocks, strict=True)):
            x = block(up(F.silu(x)))
            per_frame *= self.config.upsample_rates[stage]
            spare = int(skip - dropped - look_back(self.config)[stage + 1])
            if spare > 0:
                x = x[..., spare * per_frame :]
                dropped += spare
        x = torch.tanh(self.conv_post(F.silu(x)))
        return x[..., int(skip - dropped) * per_frame :] if skip else x


def look_back(config: CodecConfig) -> list[float]:
    """How many frames to the left a sample depends on, seen from the codes and from behind each stage of the head.

    Adds up, from the samples back to the codes, how far each layer reaches.

    Returns:
        ``len(upsample_rates) + 1`` numbers of frames: the whole decoder first, what follows its last stage last.
    """
    rate = float(prod(config.downsample) * prod(config.upsample_rates))  # samples per frame
    frames = [(config.post_kernel - 1) / rate]
    reach = (max(config.resblock_kernels) - 1) * 2 * sum(config.resblock_dilations)
    for factor, kernel in reversed(list(zip(config.upsample_rates, config.upsample_kernels, strict=True))):
        block = reach / rate
        rate /= factor
        frames.insert(0, frames[0] + block + ceil(kernel / factor - 1) / rate)
    frames[0] += (config.pre_kernel - 1) / rate
    for factor in config.downsample:
        frames[0] += 6 / rate  # depthwise convolution of 7
        rate /= factor
    return frames


class Firefly(nn.Module):
    """The codec: ``encode`` log-mel to codes, ``decode`` codes to samples.

    Args:
        config: Widths and depths; :meth:`CodecConfig.from_state_dict` reads them off the weights.
    """

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.config = config
        self.backbone = Encoder(config)
        self.quantizer = Quantizer(config)
        self.head = Head(config)

    def features(self, log_mel: Tensor) -> Tensor:
        """Log-mel [B, 160, 4T] to the features that are quantised, [B, D, T]."""
        return self.quantizer.downsample(self.backbone(log_mel))

    def encode(self, log_mel: Tensor) -> Tensor:
        """Log-mel [B, 160, 4T] to codes int64 [B, 8, T], each below 1000."""
        fsq = self.quantizer.residual_fsq
        return fsq.codes_from_levels(fsq.round_levels(fsq.project_in(self.features(log_mel))))

    def decode_levels(self, values: Tensor, skip: int = 0) -> Tensor:
        """Level values in [-1, 1], [B, T, 8, 4], to samples [B, 1, 2048·(T - skip)]."""
        return self.head(self.quantizer.upsample(self.quantizer.residual_fsq.project_out(values)), skip)

    def decode(self, codes: Tensor, skip: int = 0) -> Tensor:
        """Codes [B, 8, T] to samples in [-1, 1], [B, 1, 2048·(T - skip)].

        Args:
            codes: All frames, those included that are only context.
            skip: Frames at the start whose samples are not wanted.
        """
        return self.decode_levels(self.quantizer.residual_fsq.levels_from_codes(codes), skip)


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replaces each weight-norm pair (g, v) by its product ``g · v / |v|``.

    Both spellings are known: ``weight_g``/``weight_v`` and ``parametrizations.weight.original0/1``.
    A ``generator.`` prefix and buffers that are recomputed are dropped. Source: arXiv:1602.07868, eq. (2).
    """
    state = {name.removeprefix("generator."): tensor for name, tensor in state.items()}
    spellings = (
        (".weight_g", ".weight_v"),
        (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    )
    folded: dict[str, Tensor] = {}
    for name, tensor in state.items():
        for g_name, v_name in spellings:
            if name.endswith(v_name):
                stem = name.removesuffix(v_name)
                g, v = state[stem + g_name].float(), tensor.float()
                folded[stem + ".weight"] = g * v / v.norm(dim=(1, 2), keepdim=True)
                break
            if name.endswith(g_name):
                break
        else:
            if not name.startswith(("spec_transform.", "discriminator.")):
                folded[name] = tensor
    return folded
