"""Debian's flite through ctypes, and worker processes that speak a corpus into shard files.

The voices ``slt`` (female) and ``rms`` (male) are CMU's, 16 kHz; their licence permits any use. A shard is a
``.npz`` with the samples of some hundred utterances one after another.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import zlib
from pathlib import Path

import numpy as np

__all__ = ["FLITE_RATE", "VOICES", "Flite", "start_speakers", "voice_of"]

FLITE_RATE = 16_000
VOICES = ("slt", "rms")
SHARD_SAMPLES = 8_000_000  # 500 seconds


class _Wave(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    ]


class Flite:
    """The synthesiser with both voices loaded.

    Args:
        folder: Where ``libflite.so.1`` and its voices lie; None lets the system's loader look.

    Raises:
        OSError: The library or a voice is not installed (Debian: ``apt-get install flite``).
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        def load(name: str) -> ctypes.CDLL:
            return ctypes.CDLL(str(Path(folder) / name) if folder else name, mode=ctypes.RTLD_GLOBAL)

        if folder:
            for name in ("libasound.so.2", "libflite.so.1", "libflite_usenglish.so.1", "libflite_cmulex.so.1"):
                load(name)
        self._flite = load("libflite.so.1")
        self._flite.flite_init()
        self._flite.flite_text_to_wave.restype = ctypes.POINTER(_Wave)
        self._flite.flite_text_to_wave.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        self._flite.delete_wave.argtypes = [ctypes.POINTER(_Wave)]
        self._voices: dict[str, int] = {}
        for voice in VOICES:
            library = load(f"libflite_cmu_us_{voice}.so.1")
            register = getattr(library, f"register_cmu_us_{voice}")
            register.restype, register.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
            self._voices[voice] = register(None)

    def speak(self, text: str, voice: str) -> np.ndarray:
        """Speaks a line: int16 [N] at 16 kHz."""
        wave = self._flite.flite_text_to_wave(text.encode("ascii", "ignore"), self._voices[voice])
        content = wave.contents
        assert content.sample_rate == FLITE_RATE and content.num_channels == 1
        samples = np.ctypeslib.as_array(content.samples, (content.num_samples,)).copy()
        self._flite.delete_wave(wave)
        return samples


def voice_of(line: str) -> str:
    """The voice that speaks a line: half of the lines each, fixed by the text."""
    return VOICES[zlib.crc32(line.encode()) & 1]


def _work(worker: int, workers: int, lines: list[str], out: str, folder: str | None) -> None:
    os.nice(5)
    flite = Flite(folder)
    waves: list[np.ndarray] = []
    ids: list[int] = []
    total = number = 0

    def save() -> None:
        nonlocal waves, ids, total, number
        if not waves:
            return
        name = Path(out) / f"shard-{worker:02d}-{number:04d}"
        with open(f"{name}.tmp", "wb") as handle:
            np.savez(handle, audio=np.concatenate(waves), sizes=np.array([len(w) for w in waves]), ids=np.array(ids))
        os.rename(f"{name}.tmp", f"{name}.npz")
        waves, ids, total, number = [], [], 0, number + 1

    for index in range(worker, len(lines), workers):
        wave = flite.speak(lines[index], voice_of(lines[index]))
        if len(wave) < FLITE_RATE // 10 or not wave.any():
            continue
        waves.append(wave)
        ids.append(index)
        total += len(wave)
        # Small shards first, so that training finds something within seconds.
        if total >= SHARD_SAMPLES * min(1.0, (number + 1) / 8):
            save()
    save()


def start_speakers(
    lines: list[str], out: Path, workers: int, folder: str | None = None
) -> list[multiprocessing.process.BaseProcess]:
    """Starts processes that speak every line once and leave ``shard-*.npz`` files in `out`.

    Worker w takes lines w, w + workers, ... so that the first shards are a fair sample. The processes are daemons:
    they end with the parent.
    """
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")  # before CUDA is used; a fresh interpreter would load torch again
    processes = [
        context.Process(target=_work, args=(w, workers, lines, str(out), folder), daemon=True) for w in range(workers)
    ]
    for process in processes:
        process.start()
    return processes
