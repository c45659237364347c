"""The four operations that PyTorch and ONNX spell differently.

Run in PyTorch they are ordinary tensor arithmetic. During ``torch.onnx.export`` each becomes one operator of
opset 24, which ONNX Runtime and TensorRT map to one kernel: RMSNormalization, RotaryEmbedding,
TensorScatter and Attention.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["attend", "decomposed_attention", "rms_norm", "rotate", "write_cache"]

_OPSET = 24
_decomposed = contextvars.ContextVar("decomposed_attention", default=False)


def _onnx(op: str, inputs: tuple[Tensor | None, ...], attrs: dict, like: Tensor) -> Tensor:
    return torch.onnx.ops.symbolic(op, inputs, attrs, dtype=like.dtype, shape=like.shape, version=_OPSET)


@contextlib.contextmanager
def decomposed_attention() -> Iterator[None]:
    """Exports attention as MatMul, Softmax, MatMul: TensorRT has no float32 kernel for several query rows."""
    token = _decomposed.set(True)
    try:
        yield
    finally:
        _decomposed.reset(token)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) · weight over the last axis, the mean square taken in float32: arXiv:1910.07467, eq. (4)."""
    if torch.onnx.is_in_onnx_export():
        return _onnx("RMSNormalization", (x, weight), {"axis": -1, "epsilon": eps, "stash_type": 1}, x)
    return F.rms_norm(x, weight.shape, weight, eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates neighbouring pairs (2i, 2i + 1) of the last axis.

    Args:
        x: [B, H, S, D].
        cos: [B, S, D / 2] or [S, D / 2], float32.
        sin: Same.
    """
    if torch.onnx.is_in_onnx_export():
        return _onnx("RotaryEmbedding", (x, cos.type_as(x), sin.type_as(x)), {"interleaved": 1}, x)
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)  # the same for all heads
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    turned = [torch.addcmul(even * cos, odd, sin, value=-1), torch.addcmul(odd * cos, even, sin)]
    return torch.stack(turned, dim=-1).flatten(-2).type_as(x)


def write_cache(cache: Tensor, new: Tensor, start: Tensor) -> Tensor:
    """Writes [B, H, S, D] into [B, H, C, D] from slot ``start[b]`` on; in place in PyTorch."""
    if torch.onnx.is_in_onnx_export():
        return _onnx("TensorScatter", (cache, new, start), {"axis": 2, "mode": "linear"}, cache)
    slots = start[:, None]
    if new.shape[2] > 1:
        slots = slots + torch.arange(new.shape[2], device=new.device)  # [B, S]
    return cache.scatter_(2, slots[:, None, :, None].expand_as(new), new)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention: [B, H, S, D] over [B, H_kv, C, D]; mask bool [B, 1, S, C]; None is causal."""
    causal = mask is None and q.shape[2] > 1
    if not torch.onnx.is_in_onnx_export():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
    if not _decomposed.get():
        return _onnx("Attention", (q, k, v, mask), {"is_causal": int(causal)}, q)
    group = q.shape[1] // k.shape[1]
    q5 = q.unflatten(1, (k.shape[1], group))  # [B, H_kv, G, S, D]
    scores = q5 @ k[:, :, None].mT * q.shape[-1] ** -0.5
    if causal:
        rows = torch.arange(q.shape[2])
        mask = (rows <= rows[:, None])[None, None]
    if mask is not None:
        scores = torch.where(mask[:, :, None], scores, float("-inf"))
    return (torch.softmax(scores.float(), -1).type_as(v) @ v[:, :, None]).flatten(1, 2)
