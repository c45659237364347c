"""The pipeline on ONNX Runtime: what happens when it fails, when it takes over, and when many call it at once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fstrt_helpers.errors import BackendFailed
from fstrt_helpers.speech import FishSpeech, Voice
from fstrt_helpers.speech.backends import Backend, open_backend
from fstrt_helpers.speech.fallback import FallbackChain

from ..speech.faults import inject, poison_keys
from ..speech.test_fallback import in_threads

TEXT = "The boat sails at noon."
SETTINGS = {"seed": 7, "max_seconds": 0.7}


def pipeline(exported: SimpleNamespace, backend: str | Backend = "onnxruntime", *, strict: bool = False) -> FishSpeech:
    chain = FallbackChain(exported.checkpoint, backend, "float32", strict=strict, folder=exported.root)
    return FishSpeech(exported.checkpoint, chain)


@pytest.fixture(scope="module")
def alone(exported) -> dict[str, np.ndarray]:
    """What each says by itself; the two differ by float rounding."""
    said = {name: pipeline(exported, name).synthesize(TEXT, **SETTINGS).audio for name in ("onnxruntime", "torch")}
    assert not np.array_equal(said["onnxruntime"], said["torch"])
    return said


def out_of_memory() -> Exception:
    from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

    return RuntimeException("Non-zero status code: Failed to allocate memory for requested buffer of size 99999999")


def test_torch_speaks_when_onnxruntime_has_no_memory(exported, alone, caplog):
    engine = pipeline(exported)
    failed = engine.runtimes["prefill"]
    inject(engine, "frame", out_of_memory(), 5)
    speech = engine.synthesize(TEXT, **SETTINGS)
    (step,) = speech.fallbacks
    assert step[:2] == ("onnxruntime", "torch") and step.reason.startswith("out of memory: RuntimeException: ")
    assert speech.backend == engine.backend == "torch" and np.array_equal(speech.audio, alone["torch"])
    assert "onnxruntime in chunk 0 -> torch: out of memory" in caplog.text
    assert failed._session is None  # its memory is free again
    strict = pipeline(exported, strict=True)
    inject(strict, "frame", out_of_memory(), 5)
    with pytest.raises(BackendFailed, match="onnxruntime failed: out of memory"):
        strict.synthesize(TEXT, **SETTINGS)


def test_onnxruntime_speaks_when_the_one_before_fails(exported, alone):
    before = open_backend(exported.checkpoint, "torch", "bfloat16")
    engine = pipeline(exported, Backend("onnxruntime-cuda", before.runtimes, "for a test"))
    inject(engine, "frame", poison_keys, 3)
    speech = engine.synthesize(TEXT, **SETTINGS)
    assert [step[:2] for step in speech.fallbacks] == [("onnxruntime-cuda", "onnxruntime")]
    assert np.array_equal(speech.audio, alone["onnxruntime"])


def test_session_is_open_again_when_nothing_else_is_left(exported, alone, monkeypatch):
    engine = pipeline(exported)
    engine.backends._left = []
    sound = engine.runtimes["frame"]
    inject(engine, "frame", out_of_memory(), 2)
    with pytest.raises(BackendFailed, match="no back end could take over; onnxruntime: out of memory"):
        engine.synthesize(TEXT, **SETTINGS)
    engine.runtimes["frame"] = sound
    assert np.array_equal(engine.synthesize(TEXT, **SETTINGS).audio, alone["onnxruntime"])


def test_reference_turns_kept_or_computed_are_the_same_samples(exported):
    engine = pipeline(exported)
    voices = [
        Voice(n, f"What {n} says.", np.random.default_rng(s).integers(0, 1000, (8, 40))) for s, n in enumerate("ab")
    ]
    order = [(voices[0], "One."), (voices[1], "Two."), (voices[0], "A third one."), (voices[0], "One.")]
    kept = [engine.synthesize(text, voice=who, **SETTINGS).audio for who, text in order]
    prefixes = engine.backends.current.backend.prefixes
    assert (prefixes.hits, prefixes.misses) == (2, 2)
    prefixes.clear()
    prefixes.limit = 0
    computed = [engine.synthesize(text, voice=who, **SETTINGS).audio for who, text in order]
    assert all(np.array_equal(a, b) for a, b in zip(kept, computed, strict=True))
    assert prefixes.hits == 2


def test_eight_threads_on_onnxruntime(exported):
    engine = pipeline(exported)

    def speak(i: int) -> np.ndarray:
        return engine.synthesize(f"Number {i}.", seed=i, max_seconds=0.4).audio

    one_by_one = [speak(i) for i in range(8)]
    together = in_threads(8, speak)
    assert all(np.array_equal(a, b) for a, b in zip(one_by_one, together, strict=True))
