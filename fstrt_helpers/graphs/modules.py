"""The four graphs as modules whose inputs and outputs are exactly the tensors of the exported files."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..model.dual_ar import KVCache, StaticCache
from ..model.firefly import Firefly
from ..model.frame import Frame, SamplingInputs

__all__ = [
    "CodecDecodeGraph",
    "CodecEncodeGraph",
    "FrameGraph",
    "PrefillGraph",
    "example_inputs",
    "transpose_linears",
]


class TransposedLinear(nn.Module):
    """``x @ weight + bias`` with the weight stored as [in, out], which is how MatMul reads it.

    ``nn.Linear`` stores [out, in]; exported, that leaves a Transpose before every MatMul, or an unnamed copy.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().mT.contiguous(), requires_grad=False)
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


def transpose_linears(module: nn.Module) -> nn.Module:
    """Replaces every ``nn.Linear`` inside by a :class:`TransposedLinear`, one at a time; returns the module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, TransposedLinear(child))
    return module


def _caches(kv: tuple[Tensor, ...], start: Tensor) -> list[KVCache]:
    return [StaticCache(k, v, start) for k, v in zip(kv[::2], kv[1::2], strict=True)]


def _flat(caches: list[KVCache]) -> tuple[Tensor, ...]:
    return tuple(tensor for cache in caches for tensor in (cache.k, cache.v))


class PrefillGraph(nn.Module):
    """All prompt columns but the last into the KV cache."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame  # not its model alone, so that weights have the same names as in the frame graph

    def forward(self, columns: Tensor, start: Tensor, mask: Tensor, *kv: Tensor) -> tuple[Tensor, ...]:
        caches = _caches(kv, start)
        self.frame.model.slow(columns, start, mask, caches)
        return _flat(caches)


class FrameGraph(nn.Module):
    """The last column to the next one: slow step, sampling, and the fast steps.

    Args:
        frame: The module.
        logits: Whether to return the logits as well, in float32: the token's [B, V] and the codes' [B, 7, 1024].
    """

    def __init__(self, frame: Frame, *, logits: bool = False) -> None:
        super().__init__()
        self.frame, self.logits = frame, logits

    def forward(
        self,
        column: Tensor,
        start: Tensor,
        mask: Tensor,
        noise: Tensor,
        window: Tensor,
        temperature: Tensor,
        top_p: Tensor,
        penalty: Tensor,
        *kv: Tensor,
    ) -> tuple[Tensor, ...]:
        caches = _caches(kv, start)
        sampling = SamplingInputs(noise, window, temperature, top_p, penalty)
        column, logits = self.frame.step(column, start, mask, caches, sampling)
        extra = (logits[0].float(), torch.stack(logits[1:], dim=1).float()) if self.logits else ()
        return (column, *extra, *_flat(caches))


class CodecDecodeGraph(nn.Module):
    """Codes to samples."""

    def __init__(self, codec: Firefly) -> None:
        super().__init__()
        self.codec = codec

    def forward(self, codes: Tensor) -> Tensor:
        return self.codec.decode(codes).float()


class CodecEncodeGraph(nn.Module):
    """Log-mel to codes."""

    def __init__(self, codec: Firefly) -> None:
        super().__init__()
        self.codec = codec

    def forward(self, log_mel: Tensor) -> Tensor:
        return self.codec.encode(log_mel.to(next(self.codec.parameters()).dtype))


def example_inputs(spec_inputs: tuple, *, batch: int = 2, sizes: dict[str, int] | None = None) -> tuple[Tensor, ...]:
    """Zero tensors of the right types for tracing; sizes are such that no two free dimensions agree by chance."""
    free = {"B": batch, "S": 5, "C": 48, "T": 7, "M": 28} | (sizes or {})
    shapes = [[free[d] if isinstance(d, str) else d for d in t.shape] for t in spec_inputs]
    return tuple(torch.zeros(shape, dtype=t.dtype) for shape, t in zip(shapes, spec_inputs, strict=True))
