"""Fish Speech 1.5's sampler as tensor arithmetic, noise included, so that it can live inside a graph.

The order matters, a different one gives a flat voice: repetition penalty, top-p on the untempered logits,
temperature, softmax, and the Gumbel-max trick in its exponential form, ``argmax(p / e)`` with
``e ~ Exp(1)``. Feeding the same noise gives the same tokens everywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["PENALTY_WINDOW", "penalise", "probabilities", "sample"]

PENALTY_WINDOW = 16
"""Frames the repetition penalty looks back over."""


def penalise(logits: Tensor, ids: Tensor, window: Tensor, penalty: Tensor) -> Tensor:
    """Lowers the logits of ids that occur in the window (CTRL, arXiv:1909.05858, section 4.1).

    Args:
        logits: float32 [B, V].
        ids: int64 [V], the id that each logit stands for.
        window: int64 [B, W], ids of the last frames. Before W frames exist it holds zeros, and id 0 counts
            as said.
        penalty: [B, 1], 1 changes nothing.
    """
    said = (window[:, :, None] == ids).any(dim=1)  # [B, V]
    lowered = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(said, lowered, logits)


def probabilities(logits: Tensor, temperature: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Top-p (arXiv:1904.09751) on the untempered logits, then temperature and softmax.

    The token that crosses ``top_p`` is dropped; the likeliest always stays.

    Args:
        logits: float32 [B, V].
        temperature: [B, 1], below 1e-5 counts as 1e-5.
        top_p: [B, 1], in (0, 1].

    Returns:
        Probabilities in descending order of logit, [B, V], and the index each belongs to, int64 [B, V].
    """
    ordered, index = torch.sort(logits, dim=-1, descending=True)
    dropped = torch.cumsum(torch.softmax(ordered, dim=-1), dim=-1) > top_p
    first = torch.arange(logits.shape[-1], device=logits.device) == 0
    kept = torch.where(dropped & ~first, float("-inf"), ordered)
    return torch.softmax(kept / temperature.clamp(min=1e-5), dim=-1), index


def sample(
    logits: Tensor, ids: Tensor, window: Tensor, noise: Tensor, temperature: Tensor, top_p: Tensor, penalty: Tensor
) -> Tensor:
    """Draws one id per row.

    Args:
        logits: [B, V], any float type; the arithmetic is float32.
        ids: int64 [V], the id that each logit stands for.
        window: int64 [B, W], ids the penalty applies to.
        noise: float32 [B, V], Exp(1) draws, one per logit.
        temperature: float32 [B, 1].
        top_p: float32 [B, 1].
        penalty: float32 [B, 1].

    Returns:
        int64 [B].
    """
    p, index = probabilities(penalise(logits.float(), ids, window, penalty), temperature, top_p)
    best = torch.argmax(p / noise.gather(-1, index), dim=-1, keepdim=True)
    return ids[index.gather(-1, best)[:, 0]]
