"""Sampling and whole frames against upstream's, fed the same noise."""

from __future__ import annotations

import pytest
import torch

from fstrt_helpers.model.dual_ar import StaticCache, causal_mask
from fstrt_helpers.model.frame import Frame, SamplingInputs, legal_rows
from fstrt_helpers.model.sampling import penalise, probabilities, sample

from .conftest import IM_END, SEMANTIC_BEGIN, SHAPE, random_prompt


class NoiseTape:
    """Stands where upstream keeps its random generator and hands out prepared draws, one frame a call."""

    def __init__(self, frames: torch.Tensor) -> None:
        self.frames = iter(frames)

    def exponential_parts(self, shapes, *, device, dtype):
        return tuple(next(self.frames).split([s[0] for s in shapes]))


def settings(**values: float) -> list[torch.Tensor]:
    return [torch.full((1, 1), values[name]) for name in ("temperature", "top_p", "repetition_penalty")]


@pytest.mark.parametrize(
    "values",
    [
        dict(temperature=0.7, top_p=0.7, repetition_penalty=1.2),
        dict(temperature=1.0, top_p=0.95, repetition_penalty=1.5),
        dict(temperature=0.3, top_p=1.0, repetition_penalty=1.0),
        dict(temperature=0.7, top_p=1e-6, repetition_penalty=1.2),
    ],
    ids=str,
)
def test_distribution_and_draw_equal_upstream(pair, values):
    generator = torch.Generator().manual_seed(5)
    ids = torch.arange(1024)
    for _ in range(50):
        logits = 3 * torch.randn(1, 1024, generator=generator)
        window = torch.randint(0, 1024, (1, 16), generator=generator)
        window[0, :3] = window[0, 3]  # repeated ids are penalised once
        noise = torch.empty(1, 1024).exponential_(1, generator=generator)
        theirs = pair.lib.inference.logits_to_probs(logits[0].clone(), window[0], **values)
        temperature, top_p, penalty = settings(**values)
        p, index = probabilities(penalise(logits, ids, window, penalty), temperature, top_p)
        ours = torch.zeros(1, 1024).scatter(1, index, p)[0]
        assert (ours - theirs).abs().max() <= 1e-6
        drawn = pair.lib.inference.multinomial_sample_one_no_sync(theirs, noise=noise[0])
        assert sample(logits, ids, window, noise, temperature, top_p, penalty).tolist() == drawn.tolist()


def run_frames(model, rows, prompt, noise, values, frames):
    """Prefills all columns but the last, then runs frames with upstream's window and penalty rules."""
    frame = Frame(model, rows)
    c = model.config
    shape = (1, c.n_local_heads, c.max_seq_len, c.head_dim)
    buffers = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.layers]

    def caches(start):
        return [StaticCache(k, v, start) for k, v in buffers]

    start = torch.zeros(1, dtype=torch.long)
    model.slow(prompt[:, :, :-1], start, causal_mask(start, prompt.shape[2] - 1, c.max_seq_len), caches(start))
    column, window = prompt[:, :, -1:], torch.zeros(1, 9, 16, dtype=torch.long)
    temperature, top_p, penalty = settings(**values)
    out = []
    for i in range(frames):
        start = torch.tensor([prompt.shape[2] - 1 + i])
        first = torch.ones(1, 1) if i == 0 else penalty
        sampling = SamplingInputs(noise[i][None], window, temperature, top_p, first)
        column = frame(column, start, causal_mask(start, 1, c.max_seq_len), caches(start), sampling)[:, :, None]
        if i > 0:  # upstream never puts the first frame into its window
            window = torch.cat([window[:, :, 1:], column], dim=2)
        out.append(column[0, :, 0])
    return torch.stack(out, dim=1)


@torch.inference_mode()
def test_200_frames_with_the_same_noise_are_the_same_tokens(pair):
    values = dict(temperature=0.7, top_p=0.8, repetition_penalty=1.2)
    frames, prompt = 200, random_prompt(13)
    sizes = SHAPE["vocab_size"] + 7 * 1024
    noise = torch.empty(frames, sizes).exponential_(1, generator=torch.Generator().manual_seed(11))
    noise[:, IM_END] = 1e9  # never stop early
    pair.theirs.setup_caches(1, SHAPE["max_seq_len"], dtype=torch.float32)
    theirs = pair.lib.inference.generate(
        model=pair.theirs,
        prompt=prompt[0],
        max_new_tokens=frames,
        decode_one_token=pair.lib.inference.decode_one_token_ar,
        rng=NoiseTape(noise),
        **values,
    )[:, prompt.shape[2] :]
    for layer in [*pair.theirs.layers, *pair.theirs.fast_layers]:
        layer.attention.kv_cache = None
    pair.theirs.max_seq_len = pair.theirs.max_batch_size = -1
    ours = run_frames(pair.ours, None, prompt, noise, values, frames)
    assert theirs.shape == ours.shape == (9, frames)
    assert torch.equal(ours, theirs)
    assert len(set(ours[0].tolist())) > 20


@torch.inference_mode()
def test_sliced_head_is_upstreams_distribution_on_the_legal_rows(pair):
    rows = legal_rows(pair.ours, IM_END)
    hidden = torch.randn(4, SHAPE["dim"], generator=torch.Generator().manual_seed(2))
    whole = Frame(pair.ours).token_logits(hidden).softmax(-1)
    restricted = whole[:, rows] / whole[:, rows].sum(-1, keepdim=True)
    sliced = Frame(pair.ours, rows).token_logits(hidden).softmax(-1)
    assert (sliced - restricted).abs().max() <= 1e-6
    assert rows.tolist() == [*range(SEMANTIC_BEGIN, SEMANTIC_BEGIN + 1024), IM_END]
    assert restricted.max() < 0.9


def test_sampled_frequencies_follow_the_probabilities():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    n = 40_000
    noise = torch.empty(n, 4).exponential_(1, generator=torch.Generator().manual_seed(0))
    one = torch.ones(n, 1)
    drawn = sample(logits.expand(n, 4), torch.arange(4), torch.full((n, 16), 9), noise, one, one, one)
    share = torch.bincount(drawn, minlength=4) / n
    assert (share - logits.softmax(0)).abs().max() < 0.01
