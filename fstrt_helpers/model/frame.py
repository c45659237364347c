"""One frame of speech as a single module: slow step, token, and the seven sampled codes.

Nothing returns to Python in between, and every sampling setting is a tensor, so the module can be captured
in a CUDA graph or exported as one ONNX graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .dual_ar import DualAR, GrowingCache, KVCache
from .sampling import sample

__all__ = ["Frame", "SamplingInputs", "legal_rows"]


def legal_rows(model: DualAR, im_end_id: int) -> Tensor:
    """Token ids that may follow a voice prompt: the semantic ones and the end token, int64 [1025]."""
    semantic = torch.arange(model.semantic_begin_id, model.semantic_end_id + 1)
    return torch.cat([semantic, torch.tensor([im_end_id])])


@dataclass(frozen=True)
class SamplingInputs:
    """Tensors that steer the sampler, per batch row.

    Attributes:
        noise: float32 [B, V + 7 · 1024], Exp(1): the token head's part first.
        window: int64 [B, 9, 16], the last columns, oldest first; zeros before there are that many.
        temperature: float32 [B, 1].
        top_p: float32 [B, 1].
        penalty: float32 [B, 1]; 1 for the first frame after the prompt.
    """

    noise: Tensor
    window: Tensor
    temperature: Tensor
    top_p: Tensor
    penalty: Tensor


class Frame(nn.Module):
    """Computes the next column from the last one.

    Args:
        model: Both transformers; weights are shared, not copied.
        rows: int64 [V], the token ids the head may choose from. None keeps the whole vocabulary.
    """

    def __init__(self, model: DualAR, rows: Tensor | None = None) -> None:
        super().__init__()
        self.model = model
        vocab = torch.arange(model.config.vocab_size)
        weight = model.output_weight
        self.register_buffer("rows", (vocab if rows is None else rows).to(weight.device), persistent=False)
        codes = torch.arange(model.config.codebook_size, device=weight.device)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("head", weight if rows is None else weight[rows].detach().clone(), persistent=False)

    @property
    def noise_size(self) -> int:
        """Number of noise values one frame consumes per row."""
        return len(self.rows) + (self.model.config.num_codebooks - 1) * len(self.codes)

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the rows the head keeps, [B, V], from the last hidden state [B, dim]."""
        return self.model.norm(hidden) @ self.head.mT

    def forward(
        self, column: Tensor, start: Tensor, mask: Tensor | None, caches: list[KVCache], sampling: SamplingInputs
    ) -> Tensor:
        """One step.

        Args:
            column: int64 [B, 9, 1], the last column of the prompt or the previous frame.
            start: int64 [B], its position.
            mask: bool [B, 1, 1, C], the cache slots it may read.
            caches: The slow transformer's, one per layer.
            sampling: Noise and settings.

        Returns:
            int64 [B, 9]: token id, then 8 codes.
        """
        return self.step(column, start, mask, caches, sampling)[0]

    def step(
        self, column: Tensor, start: Tensor, mask: Tensor | None, caches: list[KVCache], sampling: SamplingInputs
    ) -> tuple[Tensor, list[Tensor]]:
        """Same as :meth:`forward`, and the logits that were drawn from: [B, V], then 7 times [B, 1024]."""
        hidden = self.model.slow(column, start, mask, caches)[:, -1]  # [B, dim]
        sizes = [len(self.rows)] + [len(self.codes)] * (self.model.config.num_codebooks - 1)
        noise = sampling.noise.split(sizes, dim=-1)
        settings = (sampling.temperature, sampling.top_p, sampling.penalty)
        logits = [self.token_logits(hidden)]
        token = sample(logits[0], self.rows, sampling.window[:, 0], noise[0], *settings)

        # Code 0 is the token itself, so positions 0 and 1 of the fast transformer run together.
        code = (token - self.model.semantic_begin_id).clamp(min=0)
        x = torch.stack([self.model.fast_project_in(hidden), self.model.fast_embeddings(code)], dim=1)
        fast_caches = [GrowingCache() for _ in self.model.fast_layers]
        column = [token, code]
        first = 0
        for k in range(1, self.model.config.num_codebooks):
            logits.append(self.model.fast(x, first, fast_caches))
            first += x.shape[1]
            code = sample(logits[-1], self.codes, sampling.window[:, k + 1], noise[k], *settings)
            column.append(code)
            x = self.model.fast_embeddings(code)[:, None]
        return torch.stack(column, dim=1), logits
