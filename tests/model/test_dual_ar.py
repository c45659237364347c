"""The transformers against upstream's, on tiny random configurations in float32."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.model.dual_ar import GrowingCache, StaticCache, causal_mask, rope_table

from .conftest import SEMANTIC_BEGIN, random_prompt

LENGTHS = [1, 7, 33]


def empty_caches(model, capacity: int, start: torch.Tensor) -> list[StaticCache]:
    c = model.config
    shape = (len(start), c.n_local_heads, capacity, c.head_dim)
    return [StaticCache(torch.zeros(shape), torch.zeros(shape), start) for _ in model.layers]


def run_slow(model, columns: torch.Tensor, capacity: int = 64) -> torch.Tensor:
    start = torch.zeros(len(columns), dtype=torch.long)
    mask = causal_mask(start, columns.shape[2], capacity)
    return model.slow(columns, start, mask, empty_caches(model, capacity, start))


@pytest.mark.parametrize("length", LENGTHS)
@torch.inference_mode()
def test_slow_logits_and_hidden_equal_upstream(pair, length):
    prompt = random_prompt(length)
    theirs = pair.theirs.forward(prompt)
    hidden = run_slow(pair.ours, prompt)
    logits = pair.ours.norm(hidden) @ pair.ours.output_weight.mT
    upstream_hidden = super(type(pair.theirs), pair.theirs).forward(prompt).hidden_states
    assert (hidden - upstream_hidden).abs().max() <= 1e-5
    assert (logits - theirs.token_logits).abs().max() <= 1e-5
    assert logits.std() > 0.1  # the comparison is of something


@pytest.mark.parametrize("length", LENGTHS)
@torch.inference_mode()
def test_fast_logits_equal_upstream(pair, length):
    prompt = random_prompt(length + 1, seed=3)
    theirs = pair.theirs.forward(prompt).codebook_logits  # [1, S, 8, 1024]; position k predicts codebook k
    hidden = run_slow(pair.ours, prompt)[0]  # [S, dim]
    for column in range(length // 2, length):  # columns followed by a spoken one
        codes = prompt[0, 1:, column + 1]
        x = torch.cat([pair.ours.fast_project_in(hidden[column])[None], pair.ours.fast_embeddings(codes[:-1])])[None]
        caches = [GrowingCache() for _ in pair.ours.fast_layers]
        ours = [pair.ours.fast(x[:, :2], 0, caches)]
        ours += [pair.ours.fast(x[:, k : k + 1], k, caches) for k in range(2, 8)]
        assert (torch.stack(ours, dim=1)[0] - theirs[0, column, 1:]).abs().max() <= 1e-5


@torch.inference_mode()
def test_cached_steps_equal_full_recomputation(pair):
    prompt = random_prompt(33)
    full = run_slow(pair.ours, prompt)
    start = torch.zeros(1, dtype=torch.long)
    caches = empty_caches(pair.ours, 64, start)
    parts = []
    for begin, end in [(0, 1), (1, 20), (20, 21), (21, 33)]:
        start = torch.tensor([begin])
        caches = [StaticCache(c.k, c.v, start) for c in caches]
        mask = causal_mask(start, end - begin, 64)
        parts.append(pair.ours.slow(prompt[:, :, begin:end], start, mask, caches))
    assert (torch.cat(parts, dim=1) - full).abs().max() <= 1e-5


@torch.inference_mode()
def test_rows_of_a_batch_keep_their_own_positions(pair):
    short, long = random_prompt(9, seed=1), random_prompt(20, seed=2)
    single = [run_slow(pair.ours, p)[:, -1] for p in (short, long)]
    lengths = torch.tensor([8, 19])
    padded = torch.zeros(2, 9, 19, dtype=torch.long)
    padded[0, :, :8], padded[1] = short[0, :, :8], long[0, :, :19]
    zero = torch.zeros(2, dtype=torch.long)
    caches = empty_caches(pair.ours, 64, zero)
    pair.ours.slow(padded, zero, causal_mask(zero, 19, 64), caches)
    last = torch.stack([short[0, :, 8:], long[0, :, 19:]])
    caches = [StaticCache(c.k, c.v, lengths) for c in caches]
    together = pair.ours.slow(last, lengths, causal_mask(lengths, 1, 64), caches)[:, -1]
    assert (together - torch.cat(single)).abs().max() <= 1e-5


def test_rope_table_is_upstreams_bfloat16_one(pair):
    ours = torch.stack(rope_table(256, 8, 1e6), dim=-1)
    theirs = pair.lib.llama.precompute_freqs_cis(256, 8, 1e6)
    assert torch.equal(ours, theirs.float())
    exact = torch.outer(torch.arange(256.0), 1e6 ** (-torch.arange(0, 8, 2) / 8)).cos()
    assert (ours[..., 0] - exact).abs().max() > 1e-3  # the rounding is visible, so the test means something


def test_rope_table_stays_float32_in_half_precision(pair):
    import copy

    model = copy.deepcopy(pair.ours).half()
    assert {t.dtype for t in (*model.rope, *model.fast_rope)} == {torch.float32}


def test_codes_count_only_beside_a_semantic_token(pair):
    column = torch.zeros(1, 9, 1, dtype=torch.long)
    column[0, 1:] = 5
    assert torch.equal(pair.ours.embed(column), pair.ours.embed(column * 0))
    column[0, 0] = SEMANTIC_BEGIN
    assert not torch.equal(pair.ours.embed(column), pair.ours.embeddings(column[:, 0]))
