"""``FishSpeech``: text in, audio out, whole or as a stream."""

from __future__ import annotations

import os
import secrets
import threading
import time
from pathlib import Path

import numpy as np

from ..checkpoint import SAMPLE_RATE, Checkpoint, find_checkpoint
from ..errors import ParameterError
from ..runtimes.base import Runtime
from ..runtimes.pool import LoopPool
from ..text.clean import clean_text
from ..text.split import split_text
from .backends import Backend
from .decoding import left_context
from .fallback import Fallback, FallbackChain
from .generation import FRAMES_PER_SECOND, SamplingSettings
from .result import Speech
from .stream import SpeechStream
from .voice import Voice, encode_voice, shipped_voices

__all__ = ["FishSpeech"]


class FishSpeech:
    """A loaded checkpoint on a back end. Made by :meth:`from_checkpoint`; safe to share between threads.

    When the back end fails, the next one in the order of :data:`fstrt_helpers.speech.backends.AUTO_ORDER` takes over,
    for good: every later call speaks through it. The step is logged as a warning of the logger ``fstrt_helpers`` and
    stands in :attr:`fallbacks` and in ``Speech.fallbacks``. ``strict=True`` makes an error of it.

    Attributes:
        checkpoint: The checkpoint.
        backends: The back end in use and those that may take over.
        sample_rate: Hz.
        tokenizer: The checkpoint's.
        left_context: Frames the codec looks back.
    """

    def __init__(self, checkpoint: Checkpoint, backend: Backend | FallbackChain) -> None:
        self.checkpoint = checkpoint
        given = isinstance(backend, Backend)
        self.backends = FallbackChain(checkpoint, backend, strict=True) if given else backend
        self.sample_rate = SAMPLE_RATE
        self.tokenizer = checkpoint.tokenizer()
        self.left_context = left_context(checkpoint.codec_config)
        self._voices: dict[str, Voice] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_checkpoint(
        cls,
        name_or_path: str | os.PathLike[str] = "tiny",
        *,
        backend: str = "auto",
        precision: str = "auto",
        strict: bool = False,
    ) -> FishSpeech:
        """Loads a checkpoint and opens its four graphs on a back end.

        Args:
            name_or_path: ``tiny``, ``fish-speech-1.5``, ``full-random``, or a folder in the official layout.
            backend: ``auto`` or one of :data:`fstrt_helpers.speech.backends.BACKENDS`. ``auto`` takes the fastest
                that can run here; ``backend_reason`` says why. The graphs or engines of a back end that reads them
                must have been made before.
            precision: ``auto`` or one of :data:`fstrt_helpers.graphs.spec.PRECISIONS`. ``auto`` is float32 on a CPU
                and float16 on a GPU.
            strict: Whether a back end that cannot be opened, or fails while speaking, is an error. Without it the
                next one takes over; so use it wherever back ends or precisions are compared.

        Raises:
            CheckpointError: The folder is incomplete, damaged, or of another model.
            ParameterError: No such back end or precision.
            GraphError: Under `strict`: a graph is missing, damaged, or from another checkpoint.
            EngineError: Under `strict`: an engine is missing or stale.
            EnvironmentMissing: Under `strict`: what was asked for cannot run here.
            BackendFailed: No back end can be opened, or under `strict` this one failed in another way.
        """
        checkpoint = find_checkpoint(name_or_path)
        return cls(checkpoint, FallbackChain(checkpoint, backend, precision, strict=strict))

    @property
    def runtimes(self) -> dict[str, Runtime]:
        """The four graphs by name, on the back end in use."""
        return self.backends.current.backend.runtimes

    @property
    def loops(self) -> LoopPool | None:
        """Frame loops on the device, if the back end in use has them."""
        return self.backends.current.backend.loops

    @property
    def backend(self) -> str:
        """Name of the back end in use."""
        return self.backends.current.backend.name

    @property
    def backend_reason(self) -> str:
        """Why it is in use."""
        return self.backends.current.backend.reason

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The steps that led to it from the one first opened or asked for; ``chunk`` counts in the speech it was."""
        return self.backends.current.way

    def __repr__(self) -> str:
        facts = self.runtimes["frame"].describe()
        return f"FishSpeech({self.checkpoint.name!r}, " + ", ".join(f"{k}={v}" for k, v in facts.items()) + ")"

    @property
    def voices(self) -> list[str]:
        """Names of the reference voices that come with the repository."""
        return sorted(shipped_voices())

    def encode_voice(
        self,
        source: str | os.PathLike[str] | bytes | np.ndarray,
        text: str,
        *,
        sample_rate: int | None = None,
        name: str = "voice",
    ) -> Voice:
        """Turns a recording and its words into a reference voice.

        Args:
            source: A WAV, FLAC, OGG or MP3 file, its bytes, or samples: float [N] or [N, channels].
            text: The words spoken in it.
            sample_rate: Rate of an array in Hz; not for files.
            name: For messages and tables.

        Raises:
            AudioError: The sound cannot be read, or is silent, too short or too long.
            ParameterError: An array without its rate.
            TextError: The words clean to nothing.
        """
        longest = self.checkpoint.config.max_seq_len / 2 / FRAMES_PER_SECOND
        while True:
            try:
                with self.backends.lease() as held:
                    runtime = held.backend.runtimes["codec_encode"]
                    return encode_voice(runtime, source, text, sample_rate=sample_rate, longest=longest, name=name)
            except Exception as error:
                self.backends.move_on(held, error)

    def synthesize(
        self,
        text: str,
        *,
        voice: str | Voice | None = None,
        seed: int | None = None,
        temperature: float = 0.7,
        top_p: float = 0.7,
        repetition_penalty: float = 1.2,
        max_seconds: float | None = None,
    ) -> Speech:
        """Speaks a text. The audio is the concatenation of what :meth:`stream` yields.

        Args:
            text: Any length; it is split into chunks of at most 200 bytes.
            voice: Name of a shipped voice, a :class:`Voice`, or None: the model chooses a voice by the seed
                and keeps it for all chunks. Keys and values of the reference turns are computed once and kept, so
                later chunks and texts of the same voice begin sooner; the samples are the same either way.
            seed: The same seed gives the same samples on the same machine; None draws one (``Speech.seed``).
            temperature: Above 0, at most 2.
            top_p: Above 0, at most 1.
            repetition_penalty: 1 to 2.
            max_seconds: Most seconds of audio in all. Chunks that no longer fit are listed with stop reason
                ``length`` and no codes.

        Raises:
            TextError: Nothing in the text can be spoken.
            ParameterError: A setting is out of range.
            PromptTooLong: Reference voice and text leave no room in the KV cache.
            BackendFailed: The back end failed and no other one is left, or may take over.
            FstrtError: Under ``strict=True``: the fault of the back end.
        """
        stream = self.stream(
            text,
            voice=voice,
            seed=seed,
            temperature=temperature,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            max_seconds=max_seconds,
        )
        for _ in stream:
            pass
        return stream.speech

    def stream(
        self,
        text: str,
        *,
        voice: str | Voice | None = None,
        seed: int | None = None,
        temperature: float = 0.7,
        top_p: float = 0.7,
        repetition_penalty: float = 1.2,
        max_seconds: float | None = None,
    ) -> SpeechStream:
        """Speaks a text piece by piece: iterate for float32 samples; ``.speech`` holds the whole at the end.

        Arguments and errors are those of :meth:`synthesize`. Errors of the call are raised here, not at the first
        piece; those of a back end when it fails. If another back end takes over after pieces of a chunk were handed
        out, the chunk begins anew, and ``.discarded`` says which samples are void.
        """
        began = time.perf_counter()
        settings = SamplingSettings(temperature, top_p, repetition_penalty)
        if max_seconds is not None and not (isinstance(max_seconds, int | float) and 0 < max_seconds < float("inf")):
            raise ParameterError(f"max_seconds is {max_seconds!r}", fix="give a number of seconds above 0, or None")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63):
            raise ParameterError(f"seed is {seed!r}", fix="give a whole number from 0 to 2**63 - 1, or None")
        pieces = split_text(clean_text(text))
        spoken_by = self._resolve_voice(voice)
        limit = None if max_seconds is None else max(1, int(max_seconds * FRAMES_PER_SECOND))
        seed = secrets.randbits(32) if seed is None else seed
        stream = SpeechStream(self, pieces, spoken_by, settings, seed, limit, began)
        stream.check_room()
        return stream

    def _resolve_voice(self, voice: str | Voice | None) -> Voice | None:
        if voice is None or isinstance(voice, Voice):
            return voice
        shipped = shipped_voices()
        if voice not in shipped:
            names = ", ".join(sorted(shipped)) or "none"
            raise ParameterError(f"there is no voice named {voice!r}", fix=f"use one of: {names}; or encode_voice(...)")
        with self._lock:
            if voice not in self._voices:
                path, words = shipped[voice]
                self._voices[voice] = self.encode_voice(Path(path), words, name=voice)
            return self._voices[voice]
