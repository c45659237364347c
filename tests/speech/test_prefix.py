"""Reference turns are prefilled once per voice: the same samples with and without, within a budget of bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import NonFiniteOutput
from fstrt_helpers.runtimes.pool import torch_pool
from fstrt_helpers.speech import FishSpeech, Voice, generation
from fstrt_helpers.speech.backends import Backend, open_backend
from fstrt_helpers.speech.cache import PrefixCache, require_finite
from fstrt_helpers.speech.fallback import FallbackChain


def voice(name: str, seed: int, frames: int = 30) -> Voice:
    codes = np.random.default_rng(seed).integers(0, 1000, (8, frames))
    return Voice(name, f"What {name} says.", codes)


@pytest.fixture(params=["host", "device"])
def engine(request, decided) -> FishSpeech:
    """A pipeline of its own, with the frame loop driven by the host, and by the loops of the GPU back ends on a CPU."""
    runtimes = open_backend(decided.checkpoint, "torch", "float32").runtimes
    loops = torch_pool(runtimes, None) if request.param == "device" else None
    return FishSpeech(
        decided.checkpoint, FallbackChain(decided.checkpoint, Backend("torch", runtimes, "for a test", loops))
    )


def cache(engine: FishSpeech) -> PrefixCache:
    return engine.backends.current.backend.prefixes


def test_same_samples_with_and_without(engine):
    anna, ben = voice("anna", 1), voice("ben", 2)
    order = [(anna, "One."), (ben, "Two."), (anna, "A third one."), (anna, "One.")]
    kept = [engine.synthesize(text, voice=who, seed=5, max_seconds=0.5).audio for who, text in order]
    assert (cache(engine).hits, cache(engine).misses) == (2, 2)
    cache(engine).clear()
    cache(engine).limit = 0
    computed = [engine.synthesize(text, voice=who, seed=5, max_seconds=0.5).audio for who, text in order]
    assert cache(engine).hits == 2 and cache(engine).bytes == 0
    assert all(np.array_equal(a, b) for a, b in zip(kept, computed, strict=True))
    assert np.array_equal(kept[0], kept[3]) and not np.array_equal(kept[0], kept[1])


def test_first_chunk_is_kept_as_the_voice_of_the_others(engine, monkeypatch):
    monkeypatch.setattr(generation, "LONGEST_CHUNK", 12)  # frames per chunk
    speech = engine.synthesize("A sentence that is long enough for one chunk, nearly. " * 11, seed=1)
    assert len(speech.chunks) > 3
    assert (cache(engine).misses, cache(engine).hits) == (1, len(speech.chunks) - 2)


def test_other_capacity_is_another_entry(engine):
    engine.synthesize("One.", voice=voice("anna", 1), seed=1, max_seconds=0.2)
    engine.synthesize("Many words. " * 15, voice=voice("anna", 1, 30), seed=1, max_seconds=0.2)
    assert (cache(engine).hits, cache(engine).misses) == (0, 2)


def test_least_recently_used_go_first(decided):
    kept = PrefixCache()

    def fill(name: int) -> None:
        kv = {n: torch.zeros(1, 2, 16, 4) for n in ("k_0", "v_0")}
        kept.fill(np.full((9, 8), name), kv, lambda: [tensor.fill_(name) for tensor in kv.values()])
        assert all(bool((tensor[:, :, :8] == name).all()) for tensor in kv.values())

    fill(1)
    each = 2 * 2 * 8 * 4 * 4
    assert kept.bytes == each
    kept.limit = 2 * each
    for name in (2, 1, 3, 1, 2):
        fill(name)
    assert kept.bytes == 2 * each and (kept.hits, kept.misses) == (2, 4)  # 2 went when 3 came
    kept.clear()
    assert kept.bytes == 0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_no_number_is_never_kept(wrong, dtype):
    kept = PrefixCache()
    kv = {n: torch.ones(1, 2, 16, 4, dtype=dtype) for n in ("k_0", "v_0", "k_1", "v_1")}

    def prefill() -> None:
        kv["v_1"][0, 1, 7, 3] = wrong

    with pytest.raises(NonFiniteOutput, match="columns 0 to 7"):
        kept.fill(np.zeros((9, 8), np.int64), kv, prefill)
    assert kept.bytes == 0
    require_finite(kv, 8, 16)
    with pytest.raises(NonFiniteOutput):
        require_finite(kv, 7, 8)


def test_large_numbers_are_numbers():
    kv = {n: torch.full((1, 2, 300, 64), 65504.0, dtype=torch.float16) for n in ("k_0", "v_0")}
    require_finite(kv, 0, 300)


def test_prompts_are_built_once(decided, monkeypatch):
    from fstrt_helpers.speech import stream

    built: list[str] = []
    build = stream.build_prompt

    def counted(tokenizer, text, *rest):
        built.append(text)
        return build(tokenizer, text, *rest)

    monkeypatch.setattr(stream, "build_prompt", counted)
    text = "A sentence that is long enough for one chunk, nearly. " * 11
    for who, extra in ((None, 1), (voice("anna", 1), 1)):
        built.clear()
        speech = decided.synthesize(text, voice=who, seed=1, max_seconds=0.3)
        assert len(built) == len(speech.chunks) + extra  # the reference turns, once


def test_prompt_is_the_one_the_model_was_made_for(decided):
    from fstrt_helpers.text.prompt import build_prompt

    anna = voice("anna", 1)
    stream = decided.stream("Two sentences. " * 20, voice=anna, seed=1)
    for index, piece in enumerate(stream._pieces):
        prompt, shared = stream._prompt(index)
        whole = build_prompt(decided.tokenizer, piece.strip(), [(anna.text, anna.codes)])
        assert np.array_equal(prompt, whole) and 0 < shared < whole.shape[1]
