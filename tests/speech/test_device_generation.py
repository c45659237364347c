"""The loop that reads a few frames late says what the host-driven one says, whatever happens on the way."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import NonFiniteOutput
from fstrt_helpers.runtimes.pool import LoopPool, torch_pool
from fstrt_helpers.speech import FishSpeech
from fstrt_helpers.speech.backends import open_backend
from fstrt_helpers.speech.device_generation import BLOCK, FIRST_ROOM, DeviceGeneration
from fstrt_helpers.speech.generation import Generation, SamplingSettings
from fstrt_helpers.text.prompt import build_prompt

from ..checkpoints import write_random_checkpoint

WORDS = "The boat sails at noon."


@pytest.fixture(scope="module")
def tiny() -> FishSpeech:
    return FishSpeech.from_checkpoint("tiny", backend="torch", strict=True)


def random_engine(folder: Path) -> FishSpeech:
    """One whose weights a test may change."""
    return FishSpeech.from_checkpoint(write_random_checkpoint(folder / "random"), backend="torch", strict=True)


def prompt_of(engine: FishSpeech, text: str = WORDS) -> np.ndarray:
    return build_prompt(engine.tokenizer, text, [], engine.checkpoint.config.num_codebooks)


def said(engine: FishSpeech, source, prompt: np.ndarray, budget: int, seed: int, **settings: float):
    """Columns [T, 9] and stop reason."""
    kind = DeviceGeneration if isinstance(source, LoopPool) else Generation
    speaker = kind(
        source,
        engine.checkpoint.config,
        prompt,
        SamplingSettings(**settings),
        budget,
        seed,
        engine.tokenizer.im_end_id,
    )
    columns = list(speaker)
    assert speaker.prefill_seconds > 0 and speaker.frame_seconds > 0
    return np.array(columns).reshape(-1, 9), speaker.stop_reason


def both(engine: FishSpeech, prompt: np.ndarray, budget: int, seed: int, **settings: float):
    """What both loops say, which must be the same; and the pool."""
    pool = torch_pool(engine.runtimes, None)
    late, why_late = said(engine, pool, prompt, budget, seed, **settings)
    host, why = said(engine, engine.runtimes, prompt, budget, seed, **settings)
    assert why_late == why
    assert np.array_equal(late, host)
    return host, why, pool


def test_ends_where_the_speech_ends(tiny):
    columns, why, pool = both(tiny, prompt_of(tiny, "Good night."), 200, seed=5)
    assert why == "eos" and 10 < len(columns) < 100
    assert pool.loops[0].state.step.item() > len(columns)  # frames that were computed beyond the end are dropped


@pytest.mark.parametrize("budget", [1, BLOCK - 1, BLOCK, 3 * BLOCK + 1])
def test_ends_where_the_budget_ends(babble, budget):
    columns, why, pool = both(babble, prompt_of(babble), budget, seed=budget)
    assert why == "length" and len(columns) == budget == pool.loops[0].state.step.item()


def test_ends_where_it_loops(tmp_path):
    engine = random_engine(tmp_path)
    with torch.no_grad():  # no column tells anything, so that all frames are alike
        for embedding in (
            engine.runtimes["prefill"].module.embeddings,
            engine.runtimes["prefill"].module.codebook_embeddings,
        ):
            embedding.weight.zero_()
    columns, why, _ = both(engine, prompt_of(engine), 200, seed=1, top_p=1e-9, repetition_penalty=1.0)
    assert why == "loop" and 43 < len(columns) < 80


def test_grows_in_mid_speech(babble):
    prompt, settings = prompt_of(babble, "And so on. " * 15), {"temperature": 1.5, "top_p": 1.0}
    length = prompt.shape[1]
    assert length + FIRST_ROOM <= 256 < length + 90
    columns, why, pool = both(babble, prompt, 90, seed=3, **settings)
    assert why == "length" and len(columns) == 90
    assert [loop.state.capacity for loop in pool.loops] == [256, 512]
    pool.reads_prefix = True  # then all the room that may be needed is taken at once
    again, _ = said(babble, pool, prompt, 90, 3, **settings)
    assert np.array_equal(again, columns) and len(pool.loops) == 2


def test_a_shared_prefix_changes_nothing_and_is_kept(babble):
    from fstrt_helpers.speech.cache import PrefixCache

    prompt, prefixes, pool = prompt_of(babble), PrefixCache(), torch_pool(babble.runtimes, None)
    runs = []
    for _ in range(2):
        speaker = DeviceGeneration(
            pool,
            babble.checkpoint.config,
            prompt,
            SamplingSettings(),
            20,
            3,
            babble.tokenizer.im_end_id,
            shared=30,
            prefixes=prefixes,
        )
        runs.append(np.array(list(speaker)))
    plain, _ = said(babble, pool, prompt, 20, 3)
    assert np.array_equal(runs[0], runs[1]) and np.array_equal(runs[0], plain)
    assert (prefixes.hits, prefixes.misses) == (1, 1)


def test_what_is_no_number_is_an_error_and_the_loop_is_given_back(tmp_path):
    engine = random_engine(tmp_path)
    pool = torch_pool(engine.runtimes, None)
    with torch.no_grad():  # read by columns of speech only: the prompt is text, the second frame is the first to see it
        engine.runtimes["prefill"].module.codebook_embeddings.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteOutput, match=r"within frames 0 to 3"):
        said(engine, pool, prompt_of(engine), 40, 3)
    assert pool._idle == pool.loops and len(pool.loops) == 1


def test_a_listener_who_leaves_gives_the_loop_back(babble):
    pool = torch_pool(babble.runtimes, None)
    config, end = babble.checkpoint.config, babble.tokenizer.im_end_id
    speaker = iter(DeviceGeneration(pool, config, prompt_of(babble), SamplingSettings(), 50, 1, end))
    next(speaker)
    assert pool._idle == []
    speaker.close()
    assert pool._idle == pool.loops


def with_loops(engine: FishSpeech) -> FishSpeech:
    """The same checkpoint on a back end whose frames are driven by loops."""
    plain = open_backend(engine.checkpoint, "torch", "float32")
    return FishSpeech(engine.checkpoint, dataclasses.replace(plain, loops=torch_pool(plain.runtimes, None)))


def test_the_pipeline_streams_the_same_through_loops(tiny):
    plain, stream = tiny.synthesize("Good night.", seed=5), with_loops(tiny).stream("Good night.", seed=5)
    pieces = list(stream)
    assert len(pieces) > 1 and np.array_equal(np.concatenate(pieces), plain.audio)
    assert np.array_equal(stream.speech.audio, plain.audio) and stream.speech.stop_reasons == ("eos",)


def test_threads_on_one_pool_get_what_one_caller_gets(babble):
    engine = with_loops(babble)
    alone = [engine.synthesize(f"Sentence {i}.", seed=i, max_seconds=0.5).audio for i in range(4)]
    together: list[np.ndarray | None] = [None] * 4

    def speak(i: int) -> None:
        together[i] = engine.synthesize(f"Sentence {i}.", seed=i, max_seconds=0.5).audio

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert len(engine.loops.loops) <= 4
