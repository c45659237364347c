"""Every fault of a back end: who speaks instead, what is told, and that strict means strict.

The failing back end is PyTorch in bfloat16, or the frame loop of the device path run on a CPU; the one that takes over
is PyTorch in float32, which says other samples for the same seed: so it shows which of them spoke.
"""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import (
    BackendFailed,
    EngineError,
    EngineRefused,
    EnvironmentMissing,
    FstrtError,
    NonFiniteOutput,
    ParameterError,
    ProfileError,
)
from fstrt_helpers.runtimes.pool import torch_pool
from fstrt_helpers.speech import FishSpeech, backends, generation
from fstrt_helpers.speech.backends import Backend, open_backend
from fstrt_helpers.speech.fallback import Fallback, FallbackChain, Held
from fstrt_helpers.speech.faults import fault_of

from .faults import inject, poison_keys, poison_waveform

TEXT = "The boat sails at noon."
SETTINGS = {"seed": 7, "max_seconds": 0.7}  # 15 frames: pieces of 10 and 5
TWO_CHUNKS = "The first of two sentences, long enough to be a chunk. " * 4
FAILING, WORKING = "torch in bfloat16", "torch in float32"


@functools.cache
def _opened(folder: Path) -> Backend:
    return FishSpeech.from_checkpoint(folder, backend="torch", precision="bfloat16").backends.current.backend


def narrow(decided: FishSpeech, *, name: str = "torch", strict: bool = False) -> FishSpeech:
    """A new pipeline that speaks in bfloat16; only the weights are those of the others."""
    backend = Backend(name, dict(_opened(decided.checkpoint.folder).runtimes), "for a test")
    return FishSpeech(decided.checkpoint, FallbackChain(decided.checkpoint, backend, "bfloat16", strict=strict))


@pytest.fixture(scope="module")
def alone(decided) -> dict[str, np.ndarray]:
    """What each of the two says when nothing fails."""
    said = {
        FAILING: narrow(decided).synthesize(TEXT, **SETTINGS).audio,
        WORKING: decided.synthesize(TEXT, **SETTINGS).audio,
    }
    assert decided.backend == "torch" and len(said[FAILING]) == len(said[WORKING]) == 15 * 2048
    assert not np.array_equal(said[FAILING], said[WORKING])
    return said


def allocate_too_much(tensors, out) -> None:
    torch.empty(1 << 52, dtype=torch.uint8)  # PyTorch's own error


FAULTS = {
    "keys that are no numbers": ("frame", poison_keys, 5, "not finite: "),
    "keys of the prompt": ("prefill", poison_keys, 0, "not finite: "),
    "waveform": ("codec_decode", poison_waveform, 1, "not finite: "),
    "host memory": ("frame", allocate_too_much, 3, "out of memory: RuntimeError: "),
    "MemoryError": ("codec_decode", MemoryError("no memory"), 0, "out of memory: MemoryError: "),
    "device memory": ("prefill", torch.OutOfMemoryError("CUDA out of memory."), 0, "out of memory: "),
    "device": ("frame", torch.AcceleratorError("CUDA error: unspecified launch failure", 719), 9, "failed inside the "),
    "profile": ("frame", ProfileError("S is 700; the profile ends at 512"), 0, "input outside the profile: S is 700"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_while_speaking(decided, alone, caplog, name):
    graph, fault, runs, reason = FAULTS[name]
    engine = narrow(decided)
    inject(engine, graph, fault, runs)
    with caplog.at_level(logging.WARNING, "fstrt_helpers"):
        speech = engine.synthesize(TEXT, **SETTINGS)
    assert np.array_equal(speech.audio, alone[WORKING])
    (step,) = speech.fallbacks
    assert isinstance(step, Fallback)
    assert (step.source, step.target, step.chunk) == ("torch", "torch", 0) and step.reason.startswith(reason)
    assert speech.backend == "torch" and speech.chunks[0].backend == "torch"
    assert engine.fallbacks == (step,) and step.reason in engine.backend_reason
    assert [r.getMessage() for r in caplog.records] == [f"back end torch in chunk 0 -> torch: {step.reason}"]


@pytest.mark.parametrize("loops", [False, True])
def test_overflow_behind_the_last_key(decided, alone, loops):
    runtimes = open_backend(decided.checkpoint, "torch", "bfloat16").runtimes  # weights of its own, to be spoiled
    backend = Backend("torch", runtimes, "for a test", torch_pool(runtimes, None) if loops else None)
    engine = FishSpeech(decided.checkpoint, FallbackChain(decided.checkpoint, backend, "bfloat16"))
    with torch.no_grad():
        runtimes["frame"].module.model.layers[-1].feed_forward.w2.weight.fill_(torch.inf)
    speech = engine.synthesize(TEXT, **SETTINGS)
    assert "in every codebook of 3 frames" in speech.fallbacks[0].reason
    assert speech.fallbacks[0].reason.startswith("not finite") and np.array_equal(speech.audio, alone[WORKING])


@pytest.mark.parametrize("name", FAULTS)
def test_strict_makes_an_error_of_it(decided, name):
    graph, fault, runs, reason = FAULTS[name]
    engine = narrow(decided, strict=True)
    inject(engine, graph, fault, runs)
    with pytest.raises(FstrtError) as caught:
        engine.synthesize(TEXT, **SETTINGS)
    wanted = NonFiniteOutput if reason.startswith("not finite") else BackendFailed
    assert isinstance(caught.value, ProfileError if name == "profile" else wanted)
    assert reason.rpartition(": ")[2] in str(caught.value)
    assert engine.fallbacks == ()


@pytest.mark.parametrize("error", [ValueError("x"), TypeError("x"), ParameterError("x"), RuntimeError("a mistake")])
def test_mistakes_are_no_faults(decided, error):
    engine = narrow(decided)
    inject(engine, "frame", error)
    with pytest.raises(type(error)):
        engine.synthesize(TEXT, **SETTINGS)
    assert engine.fallbacks == ()


def test_stream_says_which_samples_are_void(decided, alone):
    engine = narrow(decided)
    inject(engine, "codec_decode", poison_waveform, 1)  # the first piece has been handed out by then
    stream = engine.stream(TEXT, **SETTINGS)
    handed_out = np.concatenate(list(stream))
    assert stream.discarded == [(0, 10 * 2048)]
    first, last = stream.discarded[0]
    assert np.array_equal(handed_out[first:last], alone[FAILING][first:last])
    assert np.array_equal(handed_out[last:], alone[WORKING])
    assert np.array_equal(stream.speech.audio, alone[WORKING])
    assert stream.speech.timings.audio == 15 * 2048 / 44100


def test_nothing_is_void_before_the_first_piece(decided, alone):
    engine = narrow(decided)
    inject(engine, "frame", poison_keys, 5)
    stream = engine.stream(TEXT, **SETTINGS)
    assert np.array_equal(np.concatenate(list(stream)), alone[WORKING]) and stream.discarded == []


def test_chunks_already_spoken_stay(decided, monkeypatch):
    monkeypatch.setattr(generation, "LONGEST_CHUNK", 14)  # frames per chunk
    spoken = narrow(decided).synthesize(TWO_CHUNKS, seed=3)
    assert [chunk.codes.shape[1] for chunk in spoken.chunks] == [14, 14] and spoken.fallbacks == ()
    engine = narrow(decided)
    inject(engine, "frame", poison_keys, 18)
    stream = engine.stream(TWO_CHUNKS, seed=3)
    pieces = np.concatenate(list(stream))
    speech = stream.speech
    assert np.array_equal(speech.chunks[0].codes, spoken.chunks[0].codes)
    first = 14 * 2048
    assert np.array_equal(speech.audio[:first], spoken.audio[:first])
    assert not np.array_equal(speech.audio[first:], spoken.audio[first:])
    assert [step.chunk for step in speech.fallbacks] == [1]
    assert np.array_equal(pieces, speech.audio) and len(pieces) == 28 * 2048


def test_the_chain_skips_what_cannot_run_here(decided, alone, caplog):
    engine = narrow(decided, name="tensorrt")
    inject(engine, "frame", poison_keys, 2)
    with caplog.at_level(logging.WARNING, "fstrt_helpers"):
        speech = engine.synthesize(TEXT, **SETTINGS)
    names = [step.source for step in speech.fallbacks] + [speech.fallbacks[-1].target]
    assert names == ["tensorrt", "torch-cudagraph", "onnxruntime-cuda", "onnxruntime", "torch"]
    kinds = [step.reason.partition(":")[0] for step in speech.fallbacks]
    assert kinds == ["not finite", "cannot run here", "cannot run here", "graph unusable"]
    assert {step.chunk for step in speech.fallbacks} == {0} and len(caplog.records) == 4
    assert speech.backend == "torch" and np.array_equal(speech.audio, alone[WORKING])


OPENING = {
    "no library": (ModuleNotFoundError("No module named 'tensorrt'"), "cannot run here", BackendFailed),
    "no device": (EnvironmentMissing("tensorrt_rtx runs no engines on 9.0"), "cannot run here", EnvironmentMissing),
    "build failed": (EngineError("no kernel for Attention"), "engine unusable", EngineError),
    "stale": (EngineRefused("the engine was built from something else"), "engine unusable", EngineRefused),
    "no memory": (MemoryError("1.7 GB"), "out of memory", BackendFailed),
}


@pytest.mark.parametrize("name", OPENING)
def test_fault_while_opening(decided, alone, monkeypatch, name):
    error, kind, typed = OPENING[name]

    def refuse(*_: object) -> Backend:
        raise error

    monkeypatch.setattr(backends, "_open_tensorrt", refuse)
    engine = FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="tensorrt")
    first = engine.fallbacks[0]
    assert (first.source, first.target, first.chunk) == ("tensorrt", "torch-cudagraph", None)
    assert first.reason.startswith(f"{kind}: ") and str(error.args[0]) in first.reason
    speech = engine.synthesize(TEXT, **SETTINGS)
    assert speech.fallbacks == engine.fallbacks and len(speech.fallbacks) == 4
    assert np.array_equal(speech.audio, alone[WORKING])
    with pytest.raises(typed, match=str(error.args[0])):
        FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="tensorrt", strict=True)
    assert FishSpeech.from_checkpoint(decided.checkpoint.folder).fallbacks == ()  # auto promised nothing


def test_library_that_is_not_installed(decided, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    engine = FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="onnxruntime-cuda")
    assert engine.backend == "torch" and "onnxruntime" in engine.fallbacks[0].reason
    assert engine.fallbacks[0].reason.startswith("cannot run here")


@pytest.mark.parametrize("name", ["torch-cudagraph", "onnxruntime-cuda", "onnxruntime"])
def test_what_this_machine_lacks_is_a_step_or_an_error(decided, name):
    if name != "onnxruntime" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert FishSpeech.from_checkpoint(decided.checkpoint.folder, backend=name).fallbacks[0].source == name
    with pytest.raises(FstrtError) as caught:
        FishSpeech.from_checkpoint(decided.checkpoint.folder, backend=name, strict=True)
    assert not isinstance(caught.value, BackendFailed) and caught.value.fix


@pytest.mark.parametrize("strict", [False, True])
def test_wrong_names_never_fall_back(decided, strict):
    for choice in ({"backend": "abacus"}, {"precision": "int3"}):
        with pytest.raises(ParameterError):
            FishSpeech.from_checkpoint(decided.checkpoint.folder, strict=strict, **choice)


def test_precision_pytorch_cannot_run_ends_in_float32(decided):
    engine = FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="torch", precision="int8")
    assert engine.runtimes["frame"].describe()["precision"] == "float32"
    assert "int8" in engine.fallbacks[0].reason
    with pytest.raises(EnvironmentMissing):
        FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="torch", precision="int8", strict=True)


def test_when_nothing_is_left_the_last_one_stays(decided, alone):
    engine = FishSpeech.from_checkpoint(decided.checkpoint.folder, backend="torch", precision="float32")
    sound = dict(engine.runtimes)
    inject(engine, "frame", poison_keys, 2)
    for _ in range(2):
        with pytest.raises(BackendFailed, match="torch: not finite"):
            engine.synthesize(TEXT, **SETTINGS)
    engine.runtimes.update(sound)
    assert np.array_equal(engine.synthesize(TEXT, **SETTINGS).audio, alone[WORKING])


def test_recording_is_encoded_by_the_next_one(decided):
    tone = np.sin(np.arange(44100) / 30).astype(np.float32)
    engine = narrow(decided)
    inject(engine, "codec_encode", MemoryError("no memory"))
    voice = engine.encode_voice(tone, "a tone", sample_rate=44100)
    assert np.array_equal(voice.codes, decided.encode_voice(tone, "a tone", sample_rate=44100).codes)
    assert engine.fallbacks[0].chunk is None and engine.fallbacks[0].reason.startswith("out of memory")


def device_loops(decided: FishSpeech) -> Backend:
    """The frame loop of the GPU back ends, on a CPU."""
    runtimes = open_backend(decided.checkpoint, "torch", "bfloat16").runtimes
    return Backend("torch-cudagraph", runtimes, "for a test", torch_pool(runtimes, None))


def test_doubt_on_the_device_is_a_fault(decided, alone):
    backend = device_loops(decided)
    engine = FishSpeech(decided.checkpoint, FallbackChain(decided.checkpoint, backend))
    assert engine.synthesize(TEXT, **SETTINGS).fallbacks == ()
    state = backend.loops.loops[0].state
    draw, drawn = state.draw_noise, []

    def spoil() -> None:
        drawn.append(1)
        if len(drawn) == 9:
            state.doubt.fill_(torch.nan)
        draw()

    state.draw_noise = spoil
    speech = engine.synthesize(TEXT, **SETTINGS)
    assert speech.fallbacks[0].reason.startswith("not finite: a value that is no number within frames ")
    assert speech.backend == "torch" and np.array_equal(speech.audio, alone[WORKING])
    assert backend.loops.loops == []  # closed: nobody used it any more


def test_failed_back_end_is_closed_when_its_last_user_is_done(decided):
    closed: list[str] = []

    class Watched(Backend):
        def close(self) -> None:
            closed.append(self.name)

    chain = FallbackChain(decided.checkpoint, Watched("torch", narrow(decided).runtimes, "for a test"), "bfloat16")
    with chain.lease() as mine:
        with chain.lease() as other:
            assert other is mine
        steps, known = chain.move_on(other, NonFiniteOutput("x"), 4)
        assert [s.chunk for s in steps] == [4] and known == 1 and closed == []
        with chain.lease() as now:
            assert now is not mine and now is chain.current
        assert closed == []
    assert closed == ["torch"]
    again, known = chain.move_on(mine, NonFiniteOutput("y"), 0)  # a second thread, too late
    assert again == (Fallback("torch", "torch", "not finite: y", 0),) and known == 1
    assert chain.current.way == steps and isinstance(chain.current, Held)


def test_a_broken_back_end_that_cannot_be_closed_is_left(decided, alone, caplog):
    engine = narrow(decided)
    inject(engine, "frame", poison_keys, 2)
    engine.runtimes["frame"].close = lambda: 1 / 0
    speech = engine.synthesize(TEXT, **SETTINGS)
    assert np.array_equal(speech.audio, alone[WORKING])
    assert any("could not be closed" in record.getMessage() for record in caplog.records)


def in_threads(count: int, work) -> list:
    """Results of work(i) in so many threads that start together."""
    results: list = [None] * count
    gate = threading.Barrier(count)

    def run(i: int) -> None:
        gate.wait()
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def speak(engine: FishSpeech, i: int):
    return engine.synthesize(f"Number {i}.", seed=i, max_seconds=0.4)


def test_eight_threads_say_what_one_caller_says(decided):
    alone = [speak(decided, i).audio for i in range(8)]
    together = in_threads(8, lambda i: speak(decided, i).audio)
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_eight_threads_lose_no_request_and_mix_no_voices(decided):
    said = {name: [speak(e, i).audio for i in range(8)] for name, e in ((FAILING, narrow(decided)), (WORKING, decided))}
    engine = narrow(decided)
    inject(engine, "frame", poison_keys, 20)  # some are done by then, some in the middle, some have not begun
    together = in_threads(8, lambda i: speak(engine, i))
    for i, speech in enumerate(together):
        told = WORKING if speech.fallbacks else FAILING
        assert np.array_equal(speech.audio, said[told][i])
    assert any(speech.fallbacks for speech in together) and len(engine.fallbacks) == 1
    assert np.array_equal(speak(engine, 3).audio, said[WORKING][3])


def test_a_b_a_after_a_fallback(decided):
    engine = narrow(decided)
    inject(engine, "frame", poison_keys, 2)
    first, other, again = (engine.synthesize(t, **SETTINGS) for t in (TEXT, "Another one.", TEXT))
    assert np.array_equal(first.audio, again.audio) and not np.array_equal(first.audio, other.audio)
    assert [step.chunk for step in first.fallbacks + again.fallbacks] == [0, None]  # the one that works stays


def test_stream_left_in_the_middle_gives_its_back_end_back(decided):
    engine = narrow(decided)
    stream = engine.stream(TEXT, seed=1, max_seconds=6)
    next(stream)
    assert engine.backends.current.users == 1
    stream.close()
    assert engine.backends.current.users == 0 and list(stream) == [] and stream.speech is None
    with engine.stream(TEXT, seed=1, max_seconds=6) as stream:
        next(stream)
    assert engine.backends.current.users == 0


def test_words_for_faults_of_libraries():
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

    full = RuntimeException("Failed to allocate memory for requested buffer of size 4585490524328388608")
    assert fault_of(full).startswith("out of memory: RuntimeException: Failed to allocate")
    assert fault_of(Fail("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700")).startswith("failed inside the library")
    assert fault_of(EngineError("Error Code 2: OutOfMemory (no further information)")).startswith("out of memory")
    assert fault_of(RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED")).startswith("failed on the device")
    assert len(fault_of(RuntimeError("CUDA error: " + "x" * 10_000))) < 400
    assert fault_of(KeyboardInterrupt()) is None
