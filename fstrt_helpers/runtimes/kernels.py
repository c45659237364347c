"""Triton kernels of one frame at small batch, where every kernel is bound by memory or by its own launch.

Five kernels make a layer: norm and QKV projection; rotation, cache write and attention; output projection and
residual; norm and gated projections; down projection and residual. Attention reads the filled prefix of the cache, a
length that lies in device memory, so a captured CUDA graph costs what the speech so far needs.

Sums are float32; what is stored is rounded to the weights' type. Imported only where Triton is installed.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend_fast", "attend_slow", "draw", "embed", "linear"]


@triton.jit
def _wait(PDL: tl.constexpr):
    """Until all that was enqueued before is done and visible; before it, only weights may be read.

    Programmatic dependent launch, as in https://docs.nvidia.com/cuda/cuda-programming-guide/ under that name.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _next_may_start(PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


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
    _next_may_start(PDL)
    if DOT:
        _wait(PDL)
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
        _wait(PDL)
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
    _next_may_start(PDL)
    _wait(PDL)
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
    _next_may_start(PDL)
    _wait(PDL)
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


@triton.jit
def embed(
    column,  # int64 [B, 1 + BOOKS]
    embeddings,  # [vocabulary, DIM]
    codebooks,  # [BOOKS ENTRIES, DIM]
    out,  # [B, DIM]
    begin,
    end,
    DIM: tl.constexpr,
    BOOKS: tl.constexpr,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum of a column's embeddings; codes count only where the token is a semantic one."""
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dtype = out.dtype.element_ty
    token = tl.load(column + b * (1 + BOOKS))
    coded = tl.zeros([BLOCK], tl.float32)
    for book in tl.static_range(BOOKS):
        code = tl.load(column + b * (1 + BOOKS) + 1 + book)
        coded += tl.load(codebooks + (book * ENTRIES + code) * DIM + d, mask=d < DIM, other=0.0).to(tl.float32)
    coded = tl.where((token >= begin) & (token <= end), coded.to(dtype).to(tl.float32), 0.0)
    x = tl.load(embeddings + token * DIM + d, mask=d < DIM, other=0.0).to(tl.float32) + coded
    tl.store(out + b * DIM + d, x.to(dtype), mask=d < DIM)


@triton.jit
def _penalised(logits, ids, window, penalty, v, V, WINDOW: tl.constexpr):
    logit = tl.load(logits + v, mask=v < V, other=-float("inf"))
    name = tl.load(ids + v, mask=v < V, other=-1)
    said = name < -1
    for i in tl.static_range(WINDOW):
        said = said | (name == tl.load(window + i))
    return tl.where(said, tl.where(logit < 0, logit * penalty, logit / penalty), logit)


@triton.jit
def draw(
    logits,  # float32 [B, V]
    ids,  # int64 [V], what each logit stands for
    window,  # int64 [B, ROWS, WINDOW]
    noise,  # float32 [B, NOISE], Exp(1)
    temperature,  # float32 [B]
    top_p,  # float32 [B]
    penalty,  # float32 [B]
    best,  # int64 [B], zero between launches
    arrived,  # int32 [B], zero between launches
    column,  # int64 [B, ROWS]: receives the id
    embeddings,  # [codes, DIM]: rows the next step starts from
    x,  # [B STRIDE, DIM]: receives the row of the code
    doubt,  # float32 [1]: set to NaN if no logit is a finite number
    V,
    row,  # of the window and the column
    noise_from,
    begin,  # id of code 0, taken off the id to get the code
    ROWS: tl.constexpr,
    NOISE: tl.constexpr,
    WINDOW: tl.constexpr,
    VP: tl.constexpr,
    BV: tl.constexpr,
    PROGRAMS: tl.constexpr,
    DIM: tl.constexpr,
    DP: tl.constexpr,
    STRIDE: tl.constexpr,
    TOKEN: tl.constexpr,  # also stores the code beside the token
    PDL: tl.constexpr,
):
    """Draws one id per row: penalty, top-p, temperature, noise, in the order of ``model.sampling.sample``.

    Nothing is sorted: an id is kept if the probability of all ids before it and its own is at most top_p, which is
    the sum over the ids whose logit is larger (or equal, at a lower index); program j sums for BV of them.
    """
    _next_may_start(PDL)
    _wait(PDL)
    b, block = tl.program_id(0), tl.program_id(1)
    logits += b * V
    window += (b * ROWS + row) * WINDOW
    weight = tl.load(penalty + b)
    v = tl.arange(0, VP)
    all_logits = _penalised(logits, ids, window, weight, v, V, WINDOW)
    peak = tl.max(all_logits)
    p = tl.exp(all_logits - peak)
    p = p / tl.sum(p)
    mine = block * BV + tl.arange(0, BV)
    logit = _penalised(logits, ids, window, weight, mine, V, WINDOW)
    ahead = (all_logits[None, :] > logit[:, None]) | (
        (all_logits[None, :] == logit[:, None]) & (v[None, :] < mine[:, None])
    )
    mass = tl.sum(tl.where(ahead, p[None, :], 0.0), 1)
    first = mass == 0.0
    own = tl.exp(logit - peak) / tl.sum(tl.exp(all_logits - peak))
    kept = (first | (mass + own <= tl.load(top_p + b))) & (mine < V)
    heat = tl.maximum(tl.load(temperature + b), 1e-5)
    draws = tl.load(noise + b * NOISE + noise_from + mine, mask=mine < V, other=1.0)
    score = tl.where(kept, tl.exp((logit - peak) / heat) / draws, 0.0)
    key = (score.to(tl.int32, bitcast=True).to(tl.int64) << 32) | mine
    tl.atomic_max(best + b, tl.max(key))
    if (block == 0) & ((peak != peak) | (tl.abs(peak) == float("inf"))):
        tl.store(doubt, float("nan"))
    tl.debug_barrier()
    if tl.atomic_add(arrived + b, 1) == PROGRAMS - 1:
        chosen = tl.atomic_xchg(best + b, 0) & 0x7FFFFFFF
        chosen = tl.minimum(chosen, V - 1)
        name = tl.load(ids + chosen)
        code = tl.maximum(name - begin, 0)
        tl.store(column + b * ROWS + row, name)
        if TOKEN:
            tl.store(column + b * ROWS + row + 1, code)
        d = tl.arange(0, DP)
        tl.store(
            x + (b * STRIDE + STRIDE - 1) * DIM + d, tl.load(embeddings + code * DIM + d, mask=d < DIM), mask=d < DIM
        )
        tl.store(arrived + b, 0)
