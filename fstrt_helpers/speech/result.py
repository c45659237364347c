"""What a synthesis returns: samples, codes, how each piece ended, and where the time went."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import AudioError
from .fallback import Fallback
from .generation import SamplingSettings

__all__ = ["Chunk", "Speech", "Timings"]


@dataclass(frozen=True, eq=False)
class Chunk:
    """One piece of text and what became of it.

    Attributes:
        text: The cleaned text of the piece.
        codes: int64 [8, T]; T is 0 if it was not spoken.
        stop_reason: ``eos``: the model ended it. ``length``: the time allowed ran out, its end (or all of it,
            if T is 0) was not spoken. ``loop``: frames repeated and it was stopped.
        backend: Back end that spoke all of it; None if it was not spoken.
    """

    text: str
    codes: np.ndarray
    stop_reason: str
    backend: str | None = None


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds per stage.

    Attributes:
        text: Clean, split, tokenise, build prompts.
        prefill: Prompts through the slow transformer.
        frames: The frame loop.
        codec: Waiting for the codec: what of its work was not hidden behind the frame loop.
        codec_work: All work of the codec, most of it done in a second thread; not a part of ``total`` of its own.
        total: From the call to the last sample.
        first_audio: From the call to the first piece of audio.
        audio: Seconds of audio made.
    """

    text: float
    prefill: float
    frames: float
    codec: float
    codec_work: float
    total: float
    first_audio: float
    audio: float

    @property
    def rtf(self) -> float:
        """Real-time factor: seconds of work per second of audio; below 1 is faster than speech."""
        return self.total / self.audio if self.audio else float("inf")

    def rows(self) -> list[dict[str, object]]:
        """One row per stage: milliseconds and share of the total."""
        stages = ("text", "prefill", "frames", "codec")
        rest = self.total - sum(getattr(self, name) for name in stages)
        seconds = {name: getattr(self, name) for name in stages} | {"rest": rest}
        return [{"stage": k, "ms": round(1e3 * v, 1), "share": f"{v / self.total:.0%}"} for k, v in seconds.items()]


@dataclass(frozen=True, eq=False)
class Speech:
    """Audio and everything known about how it was made.

    Attributes:
        audio: float32 [N], mono, in [-1, 1].
        sample_rate: Hz.
        text: The cleaned text; the chunks' texts joined.
        chunks: One per piece of text.
        timings: Seconds per stage.
        settings: Sampling settings.
        seed: Seed that reproduces it on the same machine.
        voice: Name of the reference voice, or None.
        backend: Back end that spoke the last chunk; each chunk has its own.
        fallbacks: The steps that led to it from the back end first opened or asked for. ``chunk`` is None for those
            that were not taken in this speech.
    """

    audio: np.ndarray
    sample_rate: int
    text: str
    chunks: tuple[Chunk, ...]
    timings: Timings
    settings: SamplingSettings
    seed: int
    voice: str | None
    backend: str
    fallbacks: tuple[Fallback, ...] = ()

    @property
    def codes(self) -> np.ndarray:
        """All codes, int64 [8, T]."""
        return np.concatenate([chunk.codes for chunk in self.chunks], axis=1)

    @property
    def stop_reasons(self) -> tuple[str, ...]:
        """How each chunk ended."""
        return tuple(chunk.stop_reason for chunk in self.chunks)

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return len(self.audio) / self.sample_rate

    def __repr__(self) -> str:
        reasons = ", ".join(self.stop_reasons)
        return f"Speech({self.duration:.2f} s at {self.sample_rate} Hz, {len(self.chunks)} chunks: {reasons})"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a 16-bit WAV (or FLAC, OGG, MP3, by the suffix) in one step: a crash leaves no half a file.

        Raises:
            AudioError: The suffix names no format that can be written.
        """
        import soundfile

        path = Path(path)
        if path.suffix[1:].upper() not in soundfile.available_formats():
            raise AudioError(f"{path.suffix!r} is no sound format", where=path, fix="use .wav, .flac, .ogg or .mp3")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=path.suffix, dir=path.parent)
        os.close(handle)
        try:
            soundfile.write(temporary, self.audio, self.sample_rate)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
        return path
