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
from ..text.clean import clean_text
from ..text.split import split_text
from .backends import Backend, open_backend
from .decoding import left_context
from .device_generation import DeviceGeneration
from .generation import FRAMES_PER_SECOND, Generation, SamplingSettings
from .result import Speech
from .stream import SpeechStream
from .voice import Voice, encode_voice, shipped_voices

__all__ = ["FishSpeech"]


class FishSpeech:
    """A loaded checkpoint on a back end. Made by :meth:`from_checkpoint`; safe to share between threads."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend) -> None:
        self.checkpoint = checkpoint
        self.runtimes = backend.runtimes
        self.loops = backend.loops
        self.backend = backend.name
        self.backend_reason = backend.reason
        self.sample_rate = SAMPLE_RATE
        self.tokenizer = checkpoint.tokenizer()
        self.left_context = left_context(checkpoint.codec_config)
        self._voices: dict[str, Voice] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_checkpoint(
        cls, name_or_path: str | os.PathLike[str] = "tiny", *, backend: str = "auto", precision: str = "auto"
    ) -> FishSpeech:
        """Loads a checkpoint and opens its four graphs on a back end.

        Args:
            name_or_path: ``tiny``, ``fish-speech-1.5``, ``full-random``, or a folder in the official layout.
            backend: ``torch``, ``onnxruntime`` (its graphs must have been exported), or ``auto``: ONNX Runtime if
                it can, else PyTorch; ``backend_reason`` says why.
            precision: ``auto``, ``float32``, ``float16`` or ``bfloat16``. ``auto`` is float32 on a CPU and
                float16 on a GPU.

        Raises:
            CheckpointError: The folder is incomplete, damaged, or of another model.
            ParameterError: No such back end or precision.
            GraphError: ONNX Runtime was asked for and a graph is missing, damaged, or from another checkpoint.
            EnvironmentMissing: ONNX Runtime was asked for and cannot run here.
        """
        checkpoint = find_checkpoint(name_or_path)
        return cls(checkpoint, open_backend(checkpoint, backend, precision))

    def __repr__(self) -> str:
        facts = self.runtimes["frame"].describe()
        return f"FishSpeech({self.checkpoint.name!r}, " + ", ".join(f"{k}={v}" for k, v in facts.items()) + ")"

    def generation(
        self, prompt: np.ndarray, settings: SamplingSettings, budget: int, seed: int
    ) -> Generation | DeviceGeneration:
        """The frame loop for one prompt int64 [9, S]: on the device where the back end has loops there."""
        config, end = self.checkpoint.config, self.tokenizer.im_end_id
        if self.loops is not None:
            return DeviceGeneration(self.loops, config, prompt, settings, budget, seed, end)
        return Generation(self.runtimes, config, prompt, settings, budget, seed, end)

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
        runtime = self.runtimes["codec_encode"]
        return encode_voice(runtime, source, text, sample_rate=sample_rate, longest=longest, name=name)

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
                and keeps it for all chunks.
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

        Arguments and errors are those of :meth:`synthesize`; errors are raised here, not at the first piece.
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
