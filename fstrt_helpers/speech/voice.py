"""Reference voices: a short recording and its words, as codes the model can continue from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..audio import load_audio, log_mel, resample
from ..checkpoint import FRAME_SAMPLES, SAMPLE_RATE
from ..errors import AudioError, ParameterError
from ..runtimes.base import Runtime
from ..text.clean import clean_text
from .generation import FRAMES_PER_SECOND

__all__ = ["REFERENCE_RMS", "VOICE_FOLDER", "Voice", "encode_voice", "shipped_voices"]

VOICE_FOLDER = Path(__file__).resolve().parents[2] / "data" / "voices"
SHORTEST = 0.3  # seconds; below that there is no voice to hear
REFERENCE_RMS = 0.08
"""Loudness that recordings are brought to, root mean square over all of it: what `tiny` was trained at. Fish Speech 1.5
heard every loudness and answers in that of its reference, so its speech comes out at this one."""


@dataclass(frozen=True, eq=False)
class Voice:
    """A reference voice.

    Attributes:
        name: For messages and tables.
        text: The words that are spoken, cleaned.
        codes: int64 [8, T], T frames of 46.4 ms.
    """

    name: str
    text: str
    codes: np.ndarray

    @property
    def seconds(self) -> float:
        """Length of the recording in seconds."""
        return self.codes.shape[1] / FRAMES_PER_SECOND


def shipped_voices(folder: Path = VOICE_FOLDER) -> dict[str, tuple[Path, str]]:
    """Names of the recordings in ``data/voices`` with their file and words."""
    listing = folder / "voices.json"
    if not listing.is_file():
        return {}
    entries: Mapping[str, Mapping[str, str]] = json.loads(listing.read_text(encoding="utf-8"))
    return {name: (folder / entry["file"], entry["text"]) for name, entry in entries.items()}


def encode_voice(
    runtime: Runtime,
    source: str | os.PathLike[str] | bytes | np.ndarray,
    text: str,
    *,
    sample_rate: int | None,
    longest: float,
    name: str = "voice",
) -> Voice:
    """Turns a recording into codes, at a root mean square of :data:`REFERENCE_RMS`.

    Args:
        runtime: ``codec_encode``, open.
        source: A WAV, FLAC, OGG or MP3 file, its bytes, or samples: float [N], or [N, channels].
        text: The words spoken in it.
        sample_rate: Rate of an array in Hz; files know theirs.
        longest: Longest recording in seconds that leaves room for speech.
        name: For messages and tables.

    Raises:
        AudioError: The sound cannot be read, or is silent, too short, too long, or not finite.
        ParameterError: An array without its rate, or a file with one.
        TextError: The words clean to nothing.
    """
    words = clean_text(text)
    if isinstance(source, np.ndarray):
        wave, where = _from_array(source, sample_rate), "the array given"
    else:
        if sample_rate is not None:
            raise ParameterError("a file carries its own sample rate", fix="leave sample_rate out")
        where = "the bytes given" if isinstance(source, bytes) else str(source)
        wave = load_audio(source)
    seconds = len(wave) / SAMPLE_RATE
    if not np.isfinite(wave).all():
        raise AudioError("the recording holds NaN or infinite samples", where=where, fix="export it again")
    if seconds < SHORTEST:
        raise AudioError(f"the recording is {seconds:.2f} s long", where=where, fix="use 2 to 10 s of speech")
    if seconds > longest:
        raise AudioError(
            f"the recording is {seconds:.1f} s long; at most {longest:.1f} s leave room for speech",
            where=where,
            fix=f"cut it to under {longest:.0f} s; 2 to 10 s are enough",
        )
    if np.abs(wave).max() < 1e-4:
        raise AudioError("the recording is silent", where=where, fix="check the microphone or the file")
    level = REFERENCE_RMS / float(np.sqrt(np.mean(np.square(wave, dtype=np.float64))))
    wave = np.clip(wave * level, -1, 1).astype(np.float32)
    padded = np.pad(wave, (0, -len(wave) % FRAME_SAMPLES))
    mel = log_mel(torch.from_numpy(padded)[None].to(runtime.device))
    codes = runtime.run({"log_mel": mel})["codes"][0].cpu().numpy()
    return Voice(name, words, codes)


def _from_array(samples: np.ndarray, sample_rate: int | None) -> np.ndarray:
    if sample_rate is None:
        raise ParameterError("an array does not know its sample rate", fix="pass sample_rate=, in Hz")
    whole = isinstance(sample_rate, int | np.integer) and not isinstance(sample_rate, bool)
    if not whole or not 4000 <= sample_rate <= 384_000:
        raise ParameterError(f"sample_rate is {sample_rate!r}", fix="give a whole number of Hz from 4000 to 384000")
    if samples.dtype.kind not in "fiu" or samples.ndim not in (1, 2) or not samples.size:
        raise AudioError(f"the array is {samples.dtype}{list(samples.shape)}", fix="give samples [N] or [N, channels]")
    if samples.dtype.kind in "iu":
        span = np.iinfo(samples.dtype)
        samples = (samples.astype(np.float64) - (span.max + 1 + span.min) / 2) / ((span.max - span.min) / 2)
    mono = samples.astype(np.float32) if samples.ndim == 1 else samples.astype(np.float32).mean(axis=1)
    return resample(mono, int(sample_rate))
