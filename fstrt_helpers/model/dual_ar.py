"""The dual autoregressive transformer of Fish Speech 1.5 with an explicit KV cache.

The slow transformer reads one column per step (a token and 8 codes) and predicts the next token; the fast
transformer turns its hidden state into the 8 codes of a frame. Module names are the official ones, so
official state dicts load by name.

Sources: Fish-Speech (arXiv:2411.01156), RoPE (arXiv:2104.09864), grouped-query attention (arXiv:2305.13245),
SwiGLU (arXiv:2002.05202), RMSNorm (arXiv:1910.07467).
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoint import DualARConfig
from .ops import attend, rms_norm, rotate, write_cache

__all__ = ["DualAR", "GrowingCache", "KVCache", "StaticCache", "causal_mask", "rope_table"]


def rope_table(positions: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every rotary angle, rounded to bfloat16 and stored as float32.

    The rounding is part of the model: it was trained with a bfloat16 table, and an exact one changes the
    voice. Formula: angle(p, i) = p · base^(-2i / head_dim), arXiv:2104.09864, eq. (15).

    Returns:
        Two float32 tensors [positions, head_dim // 2].
    """
    inverse = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), inverse)
    return tuple(part(angles).bfloat16().float() for part in (torch.cos, torch.sin))


def causal_mask(start: Tensor, length: int, capacity: int) -> Tensor:
    """Which cache slots each new column may read.

    Args:
        start: int64 [B], columns already in the cache.
        length: New columns S.
        capacity: Cache slots C that are attended over.

    Returns:
        bool [B, 1, S, C], true where attention is allowed: slot c for column start + s if c <= start + s.
    """
    slots = torch.arange(capacity, device=start.device)
    positions = start[:, None] + torch.arange(length, device=start.device)  # [B, S]
    return slots <= positions[:, None, :, None]


class KVCache(Protocol):
    """Where a layer keeps the keys and values of earlier columns."""

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores k and v [B, H_kv, S, D] of the new columns; returns all keys and values to attend over."""


class StaticCache:
    """Two buffers [B, H_kv, C, D], written in place from slot ``start[b]`` on.

    Args:
        k: Key buffer.
        v: Value buffer.
        start: int64 [B], first slot to write per row.
    """

    def __init__(self, k: Tensor, v: Tensor, start: Tensor) -> None:
        self.k, self.v, self.start = k, v, start

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = write_cache(self.k, k, self.start), write_cache(self.v, v, self.start)
        return self.k, self.v


class GrowingCache:
    """Keys and values that are concatenated; the fast transformer never has more than 8 columns."""

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.k is not None:
            k, v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        self.k, self.v = k, v
        return k, v


class RMSNorm(nn.Module):
    """x / rms(x) · weight, the mean square taken in float32: arXiv:1910.07467, eq. (4)."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:  # [..., dim]
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.wqkv = nn.Linear(dim, (heads + 2 * kv_heads) * head_dim, bias=bias)
        self.wo = nn.Linear(heads * head_dim, dim, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """Attends from the columns of x [B, S, dim] to the cache and to themselves.

        Args:
            x: Normed input.
            cos: Rotary cosines, [B, S, head_dim / 2] or [S, head_dim / 2].
            sin: Rotary sines, same shape.
            mask: bool, broadcastable to [B, 1, S, C], true where allowed. None means causal over S columns.
            cache: Earlier keys and values; None attends within x alone.
        """
        heads = self.wqkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H + 2 H_kv, S, head_dim]
        qk, v = torch.split_with_sizes(heads, [self.heads + self.kv_heads, self.kv_heads], dim=1)
        q, k = torch.split_with_sizes(rotate(qk, cos, sin), [self.heads, self.kv_heads], dim=1)
        if cache is not None:
            k, v = cache.update(k, v)
        y = attend(q, k, v, mask)
        return self.wo(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) · w3 x)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, S, dim]
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to its input."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, hidden: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads, head_dim, bias)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = RMSNorm(dim, eps=eps)
        self.ffn_norm = RMSNorm(dim, eps=eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:  # [B, S, dim]
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, cache)
        return x + self.feed_forward(self.ffn_norm(x))


class DualAR(nn.Module):
    """Slow and fast transformer with the official parameter names.

    Args:
        config: Widths and depths.
        semantic_begin_id: Token id of code 0 of the first codebook.
        semantic_end_id: Token id of its last code.
    """

    def __init__(self, config: DualARConfig, semantic_begin_id: int, semantic_end_id: int) -> None:
        super().__init__()
        c = self.config = config
        self.semantic_begin_id, self.semantic_end_id = semantic_begin_id, semantic_end_id
        self.embeddings = nn.Embedding(c.vocab_size, c.dim)
        self.codebook_embeddings = nn.Embedding(c.codebook_size * c.num_codebooks, c.dim)
        self.layers = nn.ModuleList(
            Block(c.dim, c.n_head, c.n_local_heads, c.head_dim, c.intermediate_size, c.norm_eps, c.attention_qkv_bias)
            for _ in range(c.n_layer)
        )
        self.norm = RMSNorm(c.dim, eps=c.norm_eps)
        if not c.tie_word_embeddings:
            self.output = nn.Linear(c.dim, c.vocab_size, bias=False)
        self.fast_project_in = nn.Linear(c.dim, c.fast_dim) if c.fast_dim != c.dim else nn.Identity()
        self.fast_embeddings = nn.Embedding(c.codebook_size, c.fast_dim)
        self.fast_layers = nn.ModuleList(
            Block(
                c.fast_dim,
                c.fast_n_head,
                c.fast_n_local_heads,
                c.fast_head_dim,
                c.fast_intermediate_size,
                c.norm_eps,
                c.fast_attention_qkv_bias,
            )
            for _ in range(c.n_fast_layer)
        )
        self.fast_norm = RMSNorm(c.fast_dim, eps=c.norm_eps)
        self.fast_output = nn.Linear(c.fast_dim, c.codebook_size, bias=False)
        self.rope = rope_table(c.max_seq_len, c.head_dim, c.rope_base)
        self.fast_rope = rope_table(c.num_codebooks, c.fast_head_dim, c.rope_base)

    def _apply(self, fn, recurse: bool = True) -> DualAR:
        """Moves the rotary tables along with the weights, but keeps them float32 (see :func:`rope_table`)."""
        super()._apply(fn, recurse)
        device = self.embeddings.weight.device
        if device.type != "meta":
            self.rope = tuple(t.to(device) for t in self.rope)
            self.fast_rope = tuple(t.to(device) for t in self.fast_rope)
        return self

    @property
    def output_weight(self) -> Tensor:
        """Weight of the token head, [vocab_size, dim]."""
        return self.embeddings.weight if self.config.tie_word_embeddings else self.output.weight

    def embed(self, columns: Tensor) -> Tensor:
        """Sums token and codebook embeddings; codes count only where the token is a semantic one.

        Args:
            columns: int64 [B, 9, S]: row 0 token ids, rows 1-8 codes.

        Returns:
            [B, S, dim].
        """
        token, codes = columns[:, 0], columns[:, 1:]
        offsets = torch.arange(self.config.num_codebooks, device=codes.device) * self.config.codebook_size
        coded = self.codebook_embeddings(codes + offsets[:, None]).sum(dim=1)  # [B, S, dim]
        semantic = (token >= self.semantic_begin_id) & (token <= self.semantic_end_id)
        return self.embeddings(token) + torch.where(semantic[..., None], coded, 0)

    def slow(self, columns: Tensor, start: Tensor, mask: Tensor | None, caches: list[KVCache]) -> Tensor:
        """Runs new columns through the slow transformer and stores their keys and values.

        Args:
            columns: int64 [B, 9, S].
            start: int64 [B], position of the first new column per row.
            mask: bool [B, 1, S, C] from :func:`causal_mask`; None is causal over the S columns alone.
            caches: One per layer.

        Returns:
            Hidden state before the final norm, [B, S, dim]: what the fast transformer reads.
        """
        positions = start[:, None] + torch.arange(columns.shape[2], device=columns.device)  # [B, S]
        cos, sin = (table[positions] for table in self.rope)  # [B, S, head_dim / 2]
        x = self.embed(columns)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cos, sin, mask, cache)
        return x

    def fast(self, x: Tensor, first: int, caches: list[KVCache]) -> Tensor:
        """Runs codebook positions ``first`` to ``first + S - 1`` through the fast transformer.

        Args:
            x: [B, S, fast_dim]. Position 0 is the projected slow hidden state, position k + 1 the
                embedding of code k.
            first: Position of the first column of x.
            caches: One per fast layer.

        Returns:
            Logits of the last position, [B, codebook_size]: the distribution of codebook first + S - 1.
        """
        stop = first + x.shape[1]
        cos, sin = (table[first:stop].expand(x.shape[0], -1, -1) for table in self.fast_rope)
        for layer, cache in zip(self.fast_layers, caches, strict=True):
            x = layer(x, cos, sin, None, cache)
        return self.fast_output(self.fast_norm(x[:, -1]))
