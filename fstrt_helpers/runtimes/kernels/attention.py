"""Rotation, cache write and attention of one step, for the slow and for the fast transformer."""

from __future__ import annotations

import triton
import triton.language as tl

from .launching import next_may_start, wait

__all__ = ["attend_fast", "attend_slow"]


@triton.jit
def _rotated(base, row, d, cos, sin, mask):
    """Values [rows, D] at base + row + d with neighbours turned: pairs (2i, 2i + 1), arXiv:2104.09864."""
    value = tl.load(base + row + d, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(base + row + (d ^ 1), mask=mask, other=0.0).to(tl.float32)
    return value * cos + tl.where(d % 2 == 0, -other, other) * sin


@triton.jit
def attend_slow(
    qkv,  # [B, (H + 2 HKV) D]
    cos,  # float32 [P, D / 2]
    sin,  # float32 [P, D / 2]
    start,  # int64 [B], slot of the new column
    k_cache,  # [B, HKV, C, D]
    v_cache,  # [B, HKV, C, D]
    part,  # float32 [B HKV, SPLITS, GP, D + 2]: sums, then maximum and normaliser of each split
    arrived,  # int32 [B HKV], zero between launches
    out,  # [B, H D]
    C,
    scale,
    HKV: tl.constexpr,
    G: tl.constexpr,  # query heads per key head
    GP: tl.constexpr,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rotates q and k, stores k and v, attends over slots 0 to start: split as in Flash-Decoding, joined by the last.

    The filled prefix is divided among SPLITS programs per key head; online softmax: arXiv:1805.02867.
    """
    next_may_start(PDL)
    wait(PDL)
    pair, split = tl.program_id(0), tl.program_id(1)
    b, h = pair // HKV, pair % HKV
    position = tl.load(start + b)
    qkv += b * (G + 2) * HKV * D
    g, d = tl.arange(0, GP), tl.arange(0, D)
    c = tl.load(cos + position * (D // 2) + d // 2)
    s = tl.load(sin + position * (D // 2) + d // 2)
    heads = (g < G)[:, None] & (d < D)[None, :]
    q = _rotated(qkv, (h * G + g)[:, None] * D, d[None, :], c[None, :], s[None, :], heads)
    dtype = k_cache.dtype.element_ty
    q = q.to(dtype)

    share = tl.cdiv(tl.cdiv(position + 1, SPLITS), BLOCK) * BLOCK
    low = split * share
    high = tl.minimum(low + share, position + 1)
    k_cache += pair.to(tl.int64) * C * D
    v_cache += pair.to(tl.int64) * C * D
    if (low <= position) & (position < high):
        fresh = _rotated(qkv, (G * HKV + h) * D, d, c, s, d < D)
        tl.store(k_cache + position * D + d, fresh.to(dtype))
        tl.store(v_cache + position * D + d, tl.load(qkv + ((G + 1) * HKV + h) * D + d))
    tl.debug_barrier()

    peak = tl.full([GP], -1e30, tl.float32)
    weight = tl.zeros([GP], tl.float32)
    acc = tl.zeros([GP, D], tl.float32)
    first = low
    while first < high:
        slot = first + tl.arange(0, BLOCK)
        kept = (slot < high)[:, None] & (d < D)[None, :]
        keys = tl.load(k_cache + slot[:, None] * D + d[None, :], mask=kept, other=0.0)
        values = tl.load(v_cache + slot[:, None] * D + d[None, :], mask=kept, other=0.0)
        score = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where((slot < high)[None, :], score, -1e30)
        new_peak = tl.maximum(peak, tl.max(score, 1))
        p = tl.exp(score - new_peak[:, None])
        shrink = tl.exp(peak - new_peak)
        weight = weight * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(dtype), values, input_precision="ieee")
        peak = new_peak
        first += BLOCK
    out += b * HKV * G * D
    target = (h * G + g)[:, None] * D + d[None, :]
    if SPLITS == 1:
        tl.store(out + target, (acc / weight[:, None]).to(dtype), mask=heads)
    else:
        part += pair * SPLITS * GP * (D + 2)
        mine = part + split * GP * (D + 2) + g * (D + 2)
        tl.store(mine[:, None] + d[None, :], acc)
        tl.store(mine + D, peak)
        tl.store(mine + D + 1, weight)
        tl.debug_barrier()
        if tl.atomic_add(arrived + pair, 1) == SPLITS - 1:
            peak = tl.full([GP], -1e30, tl.float32)
            weight = tl.zeros([GP], tl.float32)
            acc = tl.zeros([GP, D], tl.float32)
            for other in range(SPLITS):
                theirs = part + other * GP * (D + 2) + g * (D + 2)
                their_peak = tl.load(theirs + D)
                new_peak = tl.maximum(peak, their_peak)
                shrink, grow = tl.exp(peak - new_peak), tl.exp(their_peak - new_peak)
                weight = weight * shrink + tl.load(theirs + D + 1) * grow
                acc = acc * shrink[:, None] + tl.load(theirs[:, None] + d[None, :]) * grow[:, None]
                peak = new_peak
            tl.store(out + target, (acc / weight[:, None]).to(dtype), mask=heads)
            tl.store(arrived + pair, 0)


@triton.jit
def attend_fast(
    qkv,  # [B COLUMNS, (H + 2 HKV) D]
    cos,  # float32 [8, D / 2]
    sin,
    k_cache,  # [B, HKV, POSITIONS, D]
    v_cache,
    out,  # [B COLUMNS, H D]
    first,  # position of the first column
    scale,
    HKV: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
    POSITIONS: tl.constexpr,
    QP: tl.constexpr,  # COLUMNS G, rounded up to at least 16
    PP: tl.constexpr,  # POSITIONS, likewise
    PDL: tl.constexpr,
):
    """Attention of the fast transformer: at most 8 positions, one program per row and key head."""
    next_may_start(PDL)
    wait(PDL)
    pair = tl.program_id(0)
    b, h = pair // HKV, pair % HKV
    width: tl.constexpr = (G + 2) * HKV * D
    qkv += b * COLUMNS * width
    d = tl.arange(0, D)
    dtype = k_cache.dtype.element_ty
    k_cache += pair * POSITIONS * D
    v_cache += pair * POSITIONS * D
    for column in tl.static_range(COLUMNS):
        c = tl.load(cos + (first + column) * (D // 2) + d // 2)
        s = tl.load(sin + (first + column) * (D // 2) + d // 2)
        fresh = _rotated(qkv, column * width + (G * HKV + h) * D, d, c, s, d < D)
        tl.store(k_cache + (first + column) * D + d, fresh.to(dtype))
        value = tl.load(qkv + column * width + ((G + 1) * HKV + h) * D + d)
        tl.store(v_cache + (first + column) * D + d, value)
    tl.debug_barrier()

    i = tl.arange(0, QP)
    column, g = i // G, i % G
    heads = (column < COLUMNS)[:, None] & (d < D)[None, :]
    angle = (first + tl.minimum(column, COLUMNS - 1))[:, None] * (D // 2) + (d // 2)[None, :]
    row = (column * width + (h * G + g) * D)[:, None]
    q = _rotated(qkv, row, d[None, :], tl.load(cos + angle), tl.load(sin + angle), heads).to(dtype)
    slot = tl.arange(0, PP)
    kept = (slot < first + COLUMNS)[:, None] & (d < D)[None, :]
    keys = tl.load(k_cache + slot[:, None] * D + d[None, :], mask=kept, other=0.0)
    values = tl.load(v_cache + slot[:, None] * D + d[None, :], mask=kept, other=0.0)
    score = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
    score = tl.where(slot[None, :] <= (first + column)[:, None], score, -1e30)
    p = tl.exp(score - tl.max(score, 1)[:, None])
    y = tl.dot(p.to(dtype), values, input_precision="ieee") / tl.sum(p, 1)[:, None]
    target = (b * COLUMNS + column)[:, None] * HKV * G * D + (h * G + g)[:, None] * D + d[None, :]
    tl.store(out + target, y.to(dtype), mask=heads)
