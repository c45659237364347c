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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..text.prompt import build_prompt
from .backends import Backend
from .decoding import CodecStream
from .fallback import Fallback
from .generation import SamplingSettings, frame_budget
from .result import Chunk, Speech, Timings
from .voice import Voice

if TYPE_CHECKING:
    from .pipeline import FishSpeech

__all__ = ["PIECES", "SpeechStream"]

# Frames per piece of audio: the first comes early, each is made while the one before it plays, and the later, longer
# ones repeat less of their left context.
PIECES = (10, 24, 64)


class SpeechStream:
    """Pieces of audio as they are made. As a context manager it stops when the block is left.

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

    def __enter__(self) -> SpeechStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops speaking and frees what that holds: for a stream that is not read to its end."""
        self._pieces_iterator.close()

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
        seconds = dict.fromkeys(("prefill", "frames", "codec", "codec_work"), 0.0)
        prepared = time.perf_counter() - self._began
        first_audio, handed_out = 0.0, 0
        fallbacks: list[Fallback] = []
        known = 0  # steps on the way to the back end in use that are among them
        for index, piece in enumerate(self._pieces):
            prompt, shared = self._prompt(index)
            budget = self._budget(prompt.shape[1], chunks)
            if budget <= 0:
                chunks.append(Chunk(piece, _codes([], prompt), "length"))
                continue
            while True:
                attempt, first = _Attempt(), handed_out
                try:
                    with engine.backends.lease() as held:
                        fallbacks += [step._replace(chunk=None) for step in held.way[known:]]
                        known = len(held.way)
                        for samples in self._speak(held.backend, attempt, prompt, shared, budget, index):
                            if not audio and handed_out == first:
                                first_audio = time.perf_counter() - self._began
                            handed_out += len(samples)
                            attempt.audio.append(samples)
                            yield samples
                except Exception as error:
                    steps, known = engine.backends.move_on(held, error, index)
                    fallbacks += steps
                    if handed_out > first:
                        self.discarded.append((first, handed_out))
                else:
                    break
            audio += attempt.audio
            for stage in seconds:
                seconds[stage] += attempt.seconds[stage]
            codes = _codes(attempt.columns, prompt)
            chunks.append(Chunk(piece, codes, attempt.stop_reason, held.backend.name))
            if index == 0 and self._voice is None and 0 < codes.shape[1] <= engine.checkpoint.config.max_seq_len // 2:
                self._prefix = self._reference(piece.strip(), codes)  # keeps the voice of the first chunk
        wave = np.concatenate(audio) if audio else np.zeros(0, dtype=np.float32)
        total = time.perf_counter() - self._began
        length = len(wave) / engine.sample_rate
        self.speech = Speech(
            audio=wave,
            sample_rate=engine.sample_rate,
            text="".join(self._pieces),
            chunks=tuple(chunks),
            timings=Timings(text=prepared, **seconds, total=total, first_audio=first_audio, audio=length),
            settings=self._settings,
            seed=self._seed,
            voice=None if self._voice is None else self._voice.name,
            backend=held.backend.name,
            fallbacks=tuple(fallbacks),
        )

    def _speak(
        self, backend: Backend, attempt: _Attempt, prompt: np.ndarray, shared: int, budget: int, index: int
    ) -> Iterator[np.ndarray]:
        """Drives the frame loop; pieces are decoded in a second thread meanwhile, the last one in this thread."""
        engine = self._engine
        seed = (self._seed * 1_000_003 + index) % 2**63  # every chunk can be spoken again by itself
        generation = backend.generation(
            engine.checkpoint.config, prompt, self._settings, budget, seed, engine.tokenizer.im_end_id, shared
        )
        codec = CodecStream(backend.runtimes["codec_decode"], engine.left_context, PIECES)
        timed = attempt.timed
        with (
            ThreadPoolExecutor(1, "codec", initializer=_keep_to_one_core) as beside,
            contextlib.closing(iter(generation)) as columns,
        ):
            waiting: deque[Future[np.ndarray]] = deque()
            for column in columns:
                attempt.columns.append(column[1:])
                if decode := codec.push(column[1:]):
                    waiting.append(beside.submit(timed, "codec_work", decode))
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            for piece in waiting:
                yield timed("codec", piece.result)
        if decode := codec.flush():
            yield timed("codec", lambda: timed("codec_work", decode))
        attempt.seconds |= {"prefill": generation.prefill_seconds, "frames": generation.frame_seconds}
        attempt.stop_reason = generation.stop_reason


@dataclass
class _Attempt:
    """What one back end makes of one chunk; thrown away if it fails."""

    stop_reason: str = ""
    columns: list[np.ndarray] = field(default_factory=list)
    audio: list[np.ndarray] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"codec": 0.0, "codec_work": 0.0})

    def timed(self, stage: str, work: Callable[[], np.ndarray]) -> np.ndarray:
        """Does the work and adds its seconds to a stage."""
        began = time.perf_counter()
        samples = work()
        self.seconds[stage] += time.perf_counter() - began
        return samples


def _codes(columns: list[np.ndarray], prompt: np.ndarray) -> np.ndarray:
    """int64 [8, T]."""
    return np.stack(columns, axis=1) if columns else np.zeros((len(prompt) - 1, 0), dtype=np.int64)


def _keep_to_one_core() -> None:
    """The frame loop works on the other cores; a second thread for the codec would only make both wait."""
    import torch

    torch.set_num_threads(1)
