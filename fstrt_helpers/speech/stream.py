"""One speech in the making: pieces of audio come out while the frame loop goes on.

A chunk of text is spoken by one back end from its first sample to its last. When the back end fails in the middle, the
next one speaks the chunk again from its beginning, with the same seed.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from ..text.prompt import build_prompt
from .backends import Backend
from .decoding import CodecStream
from .device_generation import DeviceGeneration
from .fallback import Fallback, Held
from .generation import Generation, SamplingSettings, frame_budget
from .result import Chunk, Speech, Timings
from .voice import Voice

if TYPE_CHECKING:
    from .pipeline import FishSpeech

__all__ = ["PIECES", "SpeechStream"]

# Frames per piece of audio: the first comes early, each is made while the one before it plays, and the later, longer
# ones repeat less of their left context.
PIECES = (10, 24, 64)


class SpeechStream:
    """Pieces of audio as they are made.

    Attributes:
        speech: The whole result, once the last piece was taken; None before.
        discarded: What was handed out in vain, because its chunk was spoken again by another back end: the number of
            the first sample and that behind the last, counted over all samples handed out. Empty without a fallback;
            then the pieces join to ``speech.audio``.
    """

    def __init__(
        self,
        engine: FishSpeech,
        pieces: list[str],
        voice: Voice | None,
        settings: SamplingSettings,
        seed: int,
        limit: int | None,
        began: float,
    ) -> None:
        self._engine, self._pieces, self._voice, self._settings = engine, pieces, voice, settings
        self._seed, self._limit, self._began = seed, limit, began
        # Each chunk's own columns; what stands before them is the same for all chunks.
        self._texts = [self._build(piece, []) for piece in pieces]
        self._prefix = self._reference(voice.text, voice.codes) if voice is not None else None
        self._pieces_iterator = self._run()
        self.speech: Speech | None = None
        self.discarded: list[tuple[int, int]] = []

    def __iter__(self) -> SpeechStream:
        return self

    def __next__(self) -> np.ndarray:
        return next(self._pieces_iterator)

    def check_room(self) -> None:
        """Looks at every prompt that is known before speaking, so that one that is too long fails early.

        Raises:
            PromptTooLong: One leaves too little room in the KV cache.
        """
        for index in range(len(self._pieces)):
            self._budget(self._prompt(index)[0].shape[1], [])

    def _build(self, piece: str, references: list[tuple[str, np.ndarray]]) -> np.ndarray:
        books = self._engine.checkpoint.config.num_codebooks
        return build_prompt(self._engine.tokenizer, piece.strip(), references, books)

    def _reference(self, text: str, codes: np.ndarray) -> np.ndarray:
        """System turn and reference turns, int64 [9, P]: what a prompt has before its text if it has a reference."""
        return self._build(self._pieces[0], [(text, codes)])[:, : -self._texts[0].shape[1]]

    def _prompt(self, index: int) -> tuple[np.ndarray, int]:
        """Prompt int64 [9, S] of a piece, and how many of its first columns it shares with the others."""
        if self._prefix is None:
            return self._texts[index], 0
        return np.concatenate([self._prefix, self._texts[index]], axis=1), self._prefix.shape[1]

    def _budget(self, columns: int, spoken: list[Chunk]) -> int:
        left = None if self._limit is None else self._limit - sum(c.codes.shape[1] for c in spoken)
        return frame_budget(columns, self._engine.checkpoint.config.max_seq_len, left)

    def _run(self) -> Iterator[np.ndarray]:
        engine = self._engine
        chunks: list[Chunk] = []
        audio: list[np.ndarray] = []
        seconds = dict.fromkeys(("text", "prefill", "frames", "codec", "codec_work"), 0.0)
        seconds["text"] = time.perf_counter() - self._began
        first_audio, handed_out = 0.0, 0
        way, taken = engine.backends.current.way, []  # fallbacks before this speech, and in it
        for index, piece in enumerate(self._pieces):
            prompt, shared = self._prompt(index)
            budget = self._budget(prompt.shape[1], chunks)
            if budget <= 0:
                chunks.append(Chunk(piece, self._codes([]), "length"))
                continue
            while True:
                attempt = _Attempt(dict.fromkeys(seconds, 0.0))
                begins = handed_out
                try:
                    with engine.backends.lease() as held:
                        way = held.way
                        for samples in self._speak(held.backend, attempt, prompt, shared, budget, index):
                            if not audio and handed_out == begins:
                                first_audio = time.perf_counter() - self._began
                            handed_out += len(samples)
                            attempt.audio.append(samples)
                            yield samples
                except Exception as error:
                    taken += engine.backends.move_on(held, error, index)
                    if handed_out > begins:
                        self.discarded.append((begins, handed_out))
                else:
                    break
            audio += attempt.audio
            for stage in seconds:
                seconds[stage] += attempt.seconds[stage]
            chunks.append(Chunk(piece, self._codes(attempt.columns), attempt.stop_reason, held.backend.name))
            if self._prefix is None and 0 < len(attempt.columns) <= engine.checkpoint.config.max_seq_len // 2:
                # TODO
                self._prefix = self._reference(piece.strip(), chunks[-1].codes)
        wave = np.concatenate(audio) if audio else np.zeros(0, dtype=np.float32)
        total = time.perf_counter() - self._began
        self.speech = Speech(
            audio=wave,
            sample_rate=engine.sample_rate,
            text="".join(self._pieces),
            chunks=tuple(chunks),
            timings=Timings(**seconds, total=total, first_audio=first_audio, audio=len(wave) / engine.sample_rate),
            settings=self._settings,
            seed=self._seed,
            voice=None if self._voice is None else self._voice.name,
            backend=engine.backend,
        )

def _keep_to_one_core() -> None:
    """The frame loop works on the other cores; a second thread for the codec would only make both wait."""
    import torch

    torch.set_num_threads(1)
