"""The pipeline on every back end that runs on this GPU: streaming, repeating, threads, memory."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from fstrt_helpers.errors import FstrtError
from fstrt_helpers.speech import FishSpeech
from fstrt_helpers.speech.backends import open_backend

pytestmark = pytest.mark.gpu
TEXT = "The boat sails at noon. It is a long way home for the men, and the sea is cold."
BACKENDS = ("torch", "torch-cudagraph", "onnxruntime-cuda", "tensorrt")


@pytest.fixture(scope="module", params=BACKENDS)
def engine(request, gpu, tiny, graphs) -> Iterator[FishSpeech]:
    name, root = request.param, None
    if name == "tensorrt":
        request.getfixturevalue("trt")
        root = graphs("float16")
    elif name == "onnxruntime-cuda":
        if importlib.util.find_spec("onnxruntime") is None:
            pytest.skip("ONNX Runtime is not installed")
        root = graphs("float16")
    try:
        backend = open_backend(tiny, name, "float16", root)
    except FstrtError as error:
        if name in ("torch", "torch-cudagraph", "tensorrt"):
            raise
        pytest.skip(error.what)
    yield FishSpeech(tiny, backend)
    backend.close()


def test_it_speaks(engine, record_property):
    speech = engine.synthesize(TEXT, seed=1)
    assert speech.backend == engine.backend and set(speech.stop_reasons) == {"eos"}
    assert 1 < len(speech.audio) / speech.sample_rate < 20
    assert np.isfinite(speech.audio).all() and 0.01 < np.abs(speech.audio).max() <= 2
    again = engine.synthesize(TEXT, seed=2).timings
    record_property("rtf", round(again.rtf, 4))
    record_property("first_audio_ms", round(1e3 * again.first_audio, 1))


def test_streaming_equals_one_shot(engine):
    whole = engine.synthesize(TEXT, seed=3)
    stream = engine.stream(TEXT, seed=3)
    pieces = list(stream)
    assert len(pieces) > 2
    assert np.array_equal(np.concatenate(pieces), whole.audio)
    assert np.array_equal(stream.speech.codes, whole.codes)


def test_a_b_a_gives_a_twice(engine):
    first, other, again = (engine.synthesize(text, seed=5).audio for text in (TEXT, "Good night.", TEXT))
    assert np.array_equal(first, again) and not np.array_equal(first[:1000], other[:1000])


def test_a_reference_voice_is_used(engine):
    if not engine.voices:
        pytest.skip("data/voices is not there")
    plain = engine.synthesize("Good night.", seed=1)
    cloned = engine.synthesize("Good night.", seed=1, voice=engine.voices[0])
    assert cloned.voice == engine.voices[0] and not np.array_equal(plain.codes, cloned.codes)
    assert np.array_equal(engine.synthesize("Good night.", seed=1, voice=engine.voices[0]).audio, cloned.audio)


def test_eight_threads_get_what_one_caller_gets(engine):
    words = [f"Sentence number {n}." for n in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    alone = [engine.synthesize(text, seed=i, max_seconds=3).audio for i, text in enumerate(words)]
    together: list[np.ndarray | None] = [None] * 8

    def speak(i: int) -> None:
        together[i] = engine.synthesize(words[i], seed=i, max_seconds=3).audio

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [i for i, (a, b) in enumerate(zip(alone, together, strict=True)) if not np.array_equal(a, b)] == []


def test_fifty_calls_hold_no_more_memory_than_ten(engine, driver_mb, record_property):
    def speak(count: int) -> float:
        for i in range(count):
            engine.synthesize("Good night, and good luck.", seed=i % 5, max_seconds=2)
        return driver_mb()

    after_ten = speak(10)
    growth = speak(50) - after_ten
    record_property("growth_mb", round(growth, 1))
    assert growth <= 16
