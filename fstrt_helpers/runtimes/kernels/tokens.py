"""From ids to vectors, and from logits back to ids."""

from __future__ import annotations

import triton
import triton.language as tl

from .launching import next_may_start, wait

__all__ = ["draw", "embed"]


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
    next_may_start(PDL)
    wait(PDL)
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
