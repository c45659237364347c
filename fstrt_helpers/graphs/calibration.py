"""Calibration data for the codec: what goes into it when real sentences are spoken, kept on disk.

Ranges of activations are only worth what the data is worth. So it comes from the pipeline itself, over texts of several
kinds: the codes the model says go into ``codec_decode``, and the sound they make, as log-mel, into ``codec_encode``.

One file per text, each written in one step, so an interrupted run goes on where it stopped. The folder's name is a hash
over model, texts and settings, and every file says for which of them it was made: a file of another model is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..audio import log_mel
from ..checkpoint import FRAME_SAMPLES, Checkpoint
from ..errors import GraphError, ParameterError

if TYPE_CHECKING:
    from ..speech import FishSpeech

__all__ = ["CALIBRATION_FOLDER", "TEXTS", "CalibrationSet", "calibration_key", "collect_calibration"]

CALIBRATION_FOLDER = Path(__file__).resolve().parents[2] / "outputs" / "calibration"
SILENCE_FRAMES = 32
MOST_SECONDS = 4.0
_METHOD = "spoken codes and their log-mel, 1"

TEXTS: Mapping[str, str] = {
    "short-1": "Yes.",
    "short-2": "Good morning!",
    "short-3": "Not today.",
    "long-1": "The old train to the coast was almost empty, so we took the seats beside the window and looked at the "
    "sea until the light was gone.",
    "long-2": "When the rain stopped, the children ran down to the river, where their father had left the small boat "
    "that he had painted green the summer before.",
    "numbers-1": "It costs 42 dollars and 17 cents.",
    "numbers-2": "Flight 308 leaves at 9:45 from gate 6.",
    "question-1": "What time is it?",
    "question-2": "Could you please tell me where the station is?",
    "plain-1": "A large dog slept under the table.",
    "plain-2": "She put the letter back into the box and said nothing.",
    "silence": "",
}
"""Texts by name: short, long, with numbers, questions, and silence, which is encoded rather than spoken."""


@dataclass(frozen=True)
class CalibrationSet:
    """Inputs of the codec's two graphs.

    Attributes:
        key: Hash over model, texts, seed and method.
        folder: Where the files lie.
        codes: int64 [1, 8, T] by text: inputs of ``codec_decode``.
        log_mels: float32 [1, 160, 4 T] by text: inputs of ``codec_encode``.
        refused: Files that were there and not used, with the reason.
        made: Texts that were spoken by this call; the others came from the cache.
    """

    key: str
    folder: Path
    codes: Mapping[str, np.ndarray]
    log_mels: Mapping[str, np.ndarray]
    refused: Mapping[str, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Length of all sound together."""
        return sum(c.shape[2] for c in self.codes.values()) * FRAME_SAMPLES / 44_100

    def inputs(self, graph: str, frames: int = 32) -> list[dict[str, np.ndarray]]:
        """Inputs of a graph in pieces.

        Args:
            graph: ``codec_decode`` or ``codec_encode``.
            frames: Longest piece; calibration keeps every activation of a piece in memory.

        Raises:
            ParameterError: Another graph.
        """
        if graph not in ("codec_decode", "codec_encode"):
            raise ParameterError(
                f"{graph!r} needs no calibration: only its weights are quantised",
                fix="use codec_decode or codec_encode",
            )
        name, step, all_of_it = (
            ("codes", frames, self.codes) if graph == "codec_decode" else ("log_mel", 4 * frames, self.log_mels)
        )
        return [{name: x[:, :, i : i + step]} for x in all_of_it.values() for i in range(0, x.shape[2], step)]

    def __repr__(self) -> str:
        return f"CalibrationSet({len(self.codes)} texts, {self.seconds:.1f} s, key {self.key[:12]})"


def calibration_key(
    fingerprint: str, texts: Mapping[str, str], seed: int, voices: Sequence[str | None], max_seconds: float
) -> str:
    """Hash over everything that the data depends on."""
    facts = [fingerprint, list(texts.items()), seed, list(voices), max_seconds, _METHOD]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def collect_calibration(
    speech: FishSpeech,
    *,
    texts: Mapping[str, str] = TEXTS,
    seed: int = 0,
    voices: Sequence[str | None] | None = None,
    max_seconds: float = MOST_SECONDS,
    folder: Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> CalibrationSet:
    """Speaks a set of texts, or reads what an earlier call has spoken.

    Args:
        speech: The pipeline, best in float32.
        texts: By name. An empty text stands for silence.
        seed: Text number i is spoken with seed + i.
        voices: Reference voices in turn; None is no reference. By default the shipped ones and none, for `tiny`, and
            none for other checkpoints, whose model does not know them.
        max_seconds: Most speech per text; more of the same sentence adds little to a range.
        folder: Root of the cache; ``outputs/calibration`` by default.
        progress: Called with the text's name, number done, and number in all.

    Raises:
        ParameterError: There are no texts, or a name cannot be one of a file.
        TextError: A text cannot be spoken.
    """
    checkpoint = speech.checkpoint
    if not texts or not all(name and name.replace("-", "").isalnum() for name in texts):
        raise ParameterError("a calibration set needs texts, with names of letters, digits and -", fix="give texts=")
    if voices is None:
        voices = [*speech.voices, None] if checkpoint.name == "tiny" else [None]
    key = calibration_key(checkpoint.fingerprint, texts, seed, voices, max_seconds)
    place = (CALIBRATION_FOLDER if folder is None else folder) / checkpoint.name / key[:12]
    codes: dict[str, np.ndarray] = {}
    mels: dict[str, np.ndarray] = {}
    refused: dict[str, str] = {}
    made: list[str] = []
    for number, (name, text) in enumerate(texts.items()):
        if progress:
            progress(name, number, len(texts))
        file = place / f"{name}.npz"
        if file.is_file():
            try:
                codes[name], mels[name] = _read(file, key, checkpoint)
                continue
            except GraphError as error:
                refused[file.name] = error.what
        voice = voices[number % len(voices)]
        spoken = _speak(speech, text, seed + number, voice, max_seconds) if text else _silence(speech)
        codes[name], mels[name] = spoken
        _write(file, codes[name], mels[name], {"key": key, "fingerprint": checkpoint.fingerprint, "text": text})
        made.append(name)
    if progress:
        progress("", len(texts), len(texts))
    return CalibrationSet(key, place, codes, mels, refused, tuple(made))


def _speak(
    speech: FishSpeech, text: str, seed: int, voice: str | None, max_seconds: float
) -> tuple[np.ndarray, np.ndarray]:
    spoken = speech.synthesize(text, voice=voice, seed=seed, max_seconds=max_seconds)
    mel = log_mel(torch.from_numpy(spoken.audio)[None])
    return spoken.codes[None], mel.numpy()


def _silence(speech: FishSpeech) -> tuple[np.ndarray, np.ndarray]:
    runtime = speech.runtimes["codec_encode"]
    mel = log_mel(torch.zeros(1, SILENCE_FRAMES * FRAME_SAMPLES))
    codes = runtime.run({"log_mel": mel.to(runtime.device)})["codes"]
    return codes.cpu().numpy(), mel.numpy()


def _write(file: Path, codes: np.ndarray, mel: np.ndarray, facts: dict[str, Any]) -> None:
    """Writes one text's data in one step."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{file.stem}-", suffix=".npz", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, codes=codes, log_mel=mel, facts=np.array(json.dumps(facts)))
        os.replace(draft, file)
    finally:
        Path(draft).unlink(missing_ok=True)


def _read(file: Path, key: str, checkpoint: Checkpoint) -> tuple[np.ndarray, np.ndarray]:
    """Reads one text's data.

    Raises:
        GraphError: It is damaged, or was made from another model or with other settings.
    """
    fix = "nothing: it is made again"
    try:
        with np.load(file, allow_pickle=False) as stored:
            facts = json.loads(str(stored["facts"]))
            codes, mel = stored["codes"], stored["log_mel"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise GraphError(f"the calibration data cannot be read: {error}", where=file, fix=fix) from error
    if facts.get("fingerprint") != checkpoint.fingerprint:
        raise GraphError("the calibration data was made with another model", where=file, fix=fix)
    if facts.get("key") != key:
        raise GraphError("the calibration data was made from other texts or settings", where=file, fix=fix)
    if codes.dtype != np.int64 or codes.ndim != 3 or mel.shape != (1, 160, 4 * codes.shape[2]):
        raise GraphError("the calibration data has the wrong shape", where=file, fix=fix)
    return codes, mel
