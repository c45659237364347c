"""Writes ``data/samples``: five held-out sentences per voice, flite's recording and ours, and ``data/voices``.

python data/tiny/make_samples.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import soundfile

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from corpus import held_out  # noqa: E402
from evaluate import loudness  # noqa: E402
from fstrt_helpers.speech import FishSpeech  # noqa: E402
from speak import FLITE_RATE, VOICES, Flite  # noqa: E402

REFERENCES = {
    "slt": "The museum opens a bit later when the weather turns rainy.",
    "rms": "Most visitors prefer the quiet rooms beside the old courtyard.",
}
CHOSEN = (0, 9, 19, 30, 48)  # lines of heldout.txt; the line's number is the seed, as in evaluate.py


def main() -> None:
    data = HERE.parent
    flite = Flite()
    listing = {}
    for voice, text in REFERENCES.items():
        wave = loudness(flite.speak(text, voice).astype(np.float32) / 32768)
        soundfile.write(data / "voices" / f"{voice}.flac", wave, FLITE_RATE, subtype="PCM_16")
        listing[voice] = {"file": f"{voice}.flac", "text": text}
    (data / "voices" / "voices.json").write_text(json.dumps(listing, indent=2) + "\n", encoding="utf-8")

    speech, sentences, rows = FishSpeech.from_checkpoint("tiny"), held_out(), []
    for voice in VOICES:
        for number in CHOSEN:
            text = sentences[number]
            original = loudness(flite.speak(text, voice).astype(np.float32) / 32768)
            ours = speech.synthesize(text, voice=voice, seed=number)
            for kind, wave, rate in (("flite", original, FLITE_RATE), ("tiny", ours.audio, ours.sample_rate)):
                name = f"{voice}-{number:02d}-{kind}.ogg"
                soundfile.write(data / "samples" / name, wave, rate, format="OGG", subtype="VORBIS")
                rows.append({"file": name, "voice": voice, "by": kind, "text": text})
    (data / "samples" / "samples.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
