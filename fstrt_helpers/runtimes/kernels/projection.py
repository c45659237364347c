"""One matrix product with what stands around it: norm, gate, bias, residual."""

from __future__ import annotations

import triton
import triton.language as tl

from .launching import next_may_start, wait

__all__ = ["linear"]


@triton.jit
def linear(
    x,  # [ROWS, K]
    w,  # [N, K]
    gate,  # [N, K], multiplied into silu(x w) if GATE
    bias,  # [N] if BIAS
    norm,  # [K] weight of the RMS norm of x if NORM
    residual,  # [ROWS, N] if RESIDUAL; may be `out`
    out,  # [ROWS, N]
    N,
    eps,
    K: tl.constexpr,
    KP: tl.constexpr,  # K, rounded up to a power of two
    ROWS: tl.constexpr,
    RP: tl.constexpr,  # ROWS, rounded up to 16, for tensor cores
    BN: tl.constexpr,
    BK: tl.constexpr,
    NORM: tl.constexpr,
    GATE: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    DOT: tl.constexpr,
    PDL: tl.constexpr,
):
    """out = norm(x) wᵀ, optionally silu'd and gated (SwiGLU, arXiv:2002.05202), plus bias and residual."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = n[:, None] < N
    next_may_start(PDL)
    if DOT:
        wait(PDL)
        r = tl.arange(0, RP)
        scale = tl.full([RP], 1.0, tl.float32)
        if NORM:
            squares = tl.zeros([RP], tl.float32)
            for k0 in range(0, K, BK):
                k = k0 + tl.arange(0, BK)
                part = tl.load(x + r[:, None] * K + k[None, :], mask=(r < ROWS)[:, None] & (k < K)[None, :], other=0.0)
                squares += tl.sum(part.to(tl.float32) * part.to(tl.float32), 1)
            scale = tl.rsqrt(squares / K + eps)
        acc = tl.zeros([BN, RP], tl.float32)
        acc_gate = tl.zeros([BN, RP], tl.float32)
        for k0 in range(0, K, BK):
            k = k0 + tl.arange(0, BK)
            tile = inside & (k < K)[None, :]
            weights = tl.load(w + n[:, None] * K + k[None, :], mask=tile, other=0.0)
            part = tl.load(x + r[None, :] * K + k[:, None], mask=(r < ROWS)[None, :] & (k < K)[:, None], other=0.0)
            if NORM:
                factor = tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
                part = (part.to(tl.float32) * scale[None, :] * factor[:, None]).to(weights.dtype)
            acc = tl.dot(weights, part, acc, input_precision="ieee")
            if GATE:
                weights = tl.load(gate + n[:, None] * K + k[None, :], mask=tile, other=0.0)
                acc_gate = tl.dot(weights, part, acc_gate, input_precision="ieee")
        if GATE:
            acc = acc / (1.0 + tl.exp(-acc)) * acc_gate
        if BIAS:
            acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
        where = r[None, :] * N + n[:, None]
        kept = inside & (r < ROWS)[None, :]
        if RESIDUAL:
            acc += tl.load(residual + where, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + where, acc.to(out.dtype.element_ty), mask=kept)
    else:
        # The first weights are on their way before the kernel that makes x is done.
        k = tl.arange(0, BK)
        weights = tl.load(w + n[:, None] * K + k[None, :], mask=inside & (k < K)[None, :], other=0.0)
        if GATE:
            gates = tl.load(gate + n[:, None] * K + k[None, :], mask=inside & (k < K)[None, :], other=0.0)
        wait(PDL)
        if ROWS == 1:
            whole = tl.arange(0, KP)
            scale = 1.0
            if NORM:
                squares = tl.load(x + whole, mask=whole < K, other=0.0).to(tl.float32)
                scale = tl.rsqrt(tl.sum(squares * squares) / K + eps)
            total = tl.zeros([BN], tl.float32)
            total_gate = tl.zeros([BN], tl.float32)
            where = n
            kept = n < N
        else:
            r = tl.arange(0, ROWS)
            scale = tl.full([ROWS], 1.0, tl.float32)
            if NORM:
                whole = tl.arange(0, KP)[None, :]
                squares = tl.load(x + r[:, None] * K + whole, mask=whole < K, other=0.0).to(tl.float32)
                scale = tl.rsqrt(tl.sum(squares * squares, 1) / K + eps)
            total = tl.zeros([ROWS, BN], tl.float32)
            total_gate = tl.zeros([ROWS, BN], tl.float32)
            where = r[:, None] * N + n[None, :]
            kept = (n < N)[None, :] & (r >= 0)[:, None]
        for k0 in tl.static_range(0, K, BK):
            k = k0 + tl.arange(0, BK)
            if k0 > 0:
                tile = inside & (k < K)[None, :]
                weights = tl.load(w + n[:, None] * K + k[None, :], mask=tile, other=0.0)
                if GATE:
                    gates = tl.load(gate + n[:, None] * K + k[None, :], mask=tile, other=0.0)
            if ROWS == 1:
                value = tl.load(x + k, mask=k < K, other=0.0).to(tl.float32)
                if NORM:
                    value = value * scale * tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
                total += tl.sum(weights.to(tl.float32) * value[None, :], 1)
                if GATE:
                    total_gate += tl.sum(gates.to(tl.float32) * value[None, :], 1)
            else:
                value = tl.load(x + r[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0.0).to(tl.float32)
                if NORM:
                    value = value * scale[:, None] * tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)[None, :]
                total += tl.sum(weights.to(tl.float32)[None, :, :] * value[:, None, :], 2)
                if GATE:
                    total_gate += tl.sum(gates.to(tl.float32)[None, :, :] * value[:, None, :], 2)
        if GATE:
            total = total / (1.0 + tl.exp(-total)) * total_gate
        if BIAS:
            total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)
        if RESIDUAL:
            total += tl.load(residual + where, mask=kept, other=0.0).to(tl.float32)
        tl.store(out + where, total.to(out.dtype.element_ty), mask=kept)
