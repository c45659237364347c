"""Finite scalar quantisation: numbers rounded to a few levels each, their digits written as one index.

Source: arXiv:2309.15505.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checkpoint import CodecConfig

__all__ = ["GroupedFSQ", "fsq_bound"]


def fsq_bound(x: Tensor, levels: Tensor) -> Tensor:
    """Squashes each value into the span of its levels: eq. (1) of arXiv:2309.15505, appendix A.1.

    Args:
        x: Projected features, [..., len(levels)].
        levels: Number of levels per dimension, float.

    Returns:
        Values whose rounding gives integers from ``-(L // 2)`` to ``(L - 1) // 2``.
    """
    half = (levels - 1) * (1 + 1e-3) / 2
    offset = torch.where(levels % 2 == 0, 0.5, 0.0)
    return torch.tanh(x + torch.atanh(offset / half)) * half - offset


class FSQGroup(nn.Module):
    """The two projections of one group: ``dim -> len(levels)`` and back."""

    def __init__(self, dim: int, levels: int):
        super().__init__()
        self.project_in = nn.Linear(dim, levels)
        self.project_out = nn.Linear(levels, dim)


class GroupedFSQ(nn.Module):
    """Finite scalar quantisation of 8 channel groups, each to one index below 1000."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        levels = torch.tensor(config.levels)
        basis = torch.cumprod(torch.tensor([1, *config.levels[:-1]]), 0)
        self.groups = config.groups
        self.rvqs = nn.ModuleList(
            FSQGroup(config.latent_dim // config.groups, len(config.levels)) for _ in range(config.groups)
        )
        self.register_buffer("levels", levels, persistent=False)
        self.register_buffer("basis", basis, persistent=False)

    def project_in(self, z: Tensor) -> Tensor:  # [B, D, T] -> [B, T, G, 4]
        parts = z.mT.chunk(self.groups, dim=-1)
        return torch.stack([g.project_in(p) for g, p in zip(self.rvqs, parts, strict=True)], dim=2)

    def round_levels(self, x: Tensor) -> Tensor:
        """Bounds twice, as the quantiser 1.5 was trained with does, and rounds: [..., 4] -> integers."""
        levels = self.levels.to(x.dtype)
        return torch.round(fsq_bound(fsq_bound(x, levels), levels))

    def codes_from_levels(self, q: Tensor) -> Tensor:  # [B, T, G, 4] integers -> [B, G, T]
        digits = q.long() + self.levels // 2
        return (digits * self.basis).sum(-1).mT

    def levels_from_codes(self, codes: Tensor) -> Tensor:
        """Codes [B, G, T] to level values scaled to [-1, 1], [B, T, G, 4]."""
        digits = (codes.mT[..., None] // self.basis) % self.levels
        half = self.levels // 2
        return (digits - half).to(self.rvqs[0].project_out.weight.dtype) / half

    def project_out(self, values: Tensor) -> Tensor:  # [B, T, G, 4] -> [B, D, T]
        parts = [g.project_out(values[:, :, i]) for i, g in enumerate(self.rvqs)]
        return torch.cat(parts, dim=-1).mT
