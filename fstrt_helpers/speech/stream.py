"""One speech in the making: pieces of audio come out while the frame loop goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from ..text.prompt import build_prompt
from .decoding import CodecStream
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
        self._pieces_iterator = self._run()
        self.speech: Speech | None = None

    def __iter__(self) -> SpeechStream:
        return self

    def __next__(self) -> np.ndarray:
        return next(self._pieces_iterator)

    def check_room(self) -> None:
        """Builds every prompt that is known before speaking, so that one that is too long fails early."""
        for piece in self._pieces:
            self._prompt(piece, [])

    def _prompt(self, piece: str, spoken: list[Chunk]) -> tuple[np.ndarray, int]:
        """Prompt int64 [9, S] and frame budget of a piece; `spoken` are the chunks before it."""
        config = self._engine.checkpoint.config
        references = []
        if self._voice is not None:
            references = [(self._voice.text, self._voice.codes)]
        elif spoken and 0 < spoken[0].codes.shape[1] <= config.max_seq_len // 2:
            references = [(spoken[0].text.strip(), spoken[0].codes)]  # keeps the voice of the first chunk
        prompt = build_prompt(self._engine.tokenizer, piece.strip(), references, config.num_codebooks)
        left = None if self._limit is None else self._limit - sum(c.codes.shape[1] for c in spoken)
        room = frame_budget(prompt.shape[1], config.max_seq_len, None)
        return prompt, room if left is None else min(room, left)

    def _run(self) -> Iterator[np.ndarray]:
        engine = self._engine
        chunks: list[Chunk] = []
        audio: list[np.ndarray] = []
        seconds = {
            "text": time.perf_counter() - self._began,
            "prefill": 0.0,
            "frames": 0.0,
            "codec": 0.0,
            "codec_work": 0.0,
        }
        first_audio = 0.0
        for index, piece in enumerate(self._pieces):
            began = time.perf_counter()
            prompt, budget = self._prompt(piece, chunks)
            seconds["text"] += time.perf_counter() - began
            if budget <= 0:
                chunks.append(Chunk(piece, np.zeros((prompt.shape[0] - 1, 0), dtype=np.int64), "length"))
                continue
            seed = (self._seed * 1_000_003 + index) % 2**63  # every chunk can be spoken again by itself
            generation = Generation(
                engine.runtimes,
                engine.checkpoint.config,
                prompt,
                self._settings,
                budget,
                seed,
                engine.tokenizer.im_end_id,
            )
            codec = CodecStream(engine.runtimes["codec_decode"], engine.left_context, PIECES)
            columns: list[np.ndarray] = []
            for samples in self._audio(generation, codec, columns, seconds):
                first_audio = first_audio or time.perf_counter() - self._began
                audio.append(samples)
                yield samples
            seconds["prefill"] += generation.prefill_seconds
            seconds["frames"] += generation.frame_seconds
            codes = np.stack(columns, axis=1) if columns else np.zeros((prompt.shape[0] - 1, 0), dtype=np.int64)
            chunks.append(Chunk(piece, codes, generation.stop_reason))
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

    @staticmethod
    def _audio(
        generation: Generation, codec: CodecStream, columns: list[np.ndarray], seconds: dict[str, float]
    ) -> Iterator[np.ndarray]:
        """Drives the frame loop; pieces are decoded in a second thread meanwhile, the last one in this thread."""

        def timed(stage: str, work: Callable[[], np.ndarray]) -> np.ndarray:
            began = time.perf_counter()
            samples = work()
            seconds[stage] += time.perf_counter() - began
            return samples

        with ThreadPoolExecutor(1, "codec", initializer=_keep_to_one_core) as beside:
            waiting: deque[Future[np.ndarray]] = deque()
            for column in generation:
                columns.append(column[1:])
                if decode := codec.push(column[1:]):
                    waiting.append(beside.submit(timed, "codec_work", decode))
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            for piece in waiting:
                yield timed("codec", piece.result)
        if decode := codec.flush():
            yield timed("codec", lambda: timed("codec_work", decode))


def _keep_to_one_core() -> None:
    """The frame loop works on the other cores; a second thread for the codec would only make both wait."""
    import torch

    torch.set_num_threads(1)
