"""The pipeline: same seed same samples, streaming equals one-shot, and what bad input gets."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import soundfile
import torch

from fstrt_helpers.errors import AudioError, ParameterError, PromptTooLong, TextError
from fstrt_helpers.speech import FishSpeech, Voice

TEXT = "One short sentence. " + "And then a much longer one that goes on, and on, and on, until it must be cut. " * 4


@torch.inference_mode()
def unchunked(engine: FishSpeech, codes: np.ndarray) -> np.ndarray:
    return engine.runtimes["codec_decode"].run({"codes": torch.from_numpy(codes)[None]})["waveform"][0, 0].numpy()


def test_three_calls_a_b_a_give_a_twice(babble):
    first = babble.synthesize("The first sentence.", seed=7, max_seconds=1)
    other = babble.synthesize("Another one.", seed=8, max_seconds=1)
    again = babble.synthesize("The first sentence.", seed=7, max_seconds=1)
    assert np.array_equal(first.audio, again.audio)
    assert not np.array_equal(first.audio, other.audio)


def test_stream_concatenates_to_the_same_samples_and_to_unchunked_decoding(babble):
    whole = babble.synthesize("Hello there.", seed=1, max_seconds=6)
    stream = babble.stream("Hello there.", seed=1, max_seconds=6)
    pieces = list(stream)
    assert len(pieces) >= 3
    assert np.array_equal(np.concatenate(pieces), whole.audio)
    assert np.array_equal(stream.speech.audio, whole.audio)
    at_once = unchunked(babble, whole.codes)
    assert at_once.std() > 1e-3
    assert np.abs(at_once - whole.audio).max() <= 1e-4


def test_every_chunk_of_text_is_accounted_for(babble):
    speech = babble.synthesize(TEXT, seed=2, max_seconds=4)
    assert "".join(chunk.text for chunk in speech.chunks) == speech.text
    assert set(speech.stop_reasons) == {"length"}
    assert speech.chunks[0].codes.shape[1] > 0 and speech.chunks[-1].codes.shape[1] == 0
    assert speech.codes.shape == (8, int(4 * 44100 / 2048))
    assert len(speech.audio) == speech.codes.shape[1] * 2048
    assert speech.audio.dtype == np.float32 and np.isfinite(speech.audio).all()


def test_seed_that_was_drawn_reproduces_the_speech(babble):
    drawn = babble.synthesize("Hello.", max_seconds=0.5)
    again = babble.synthesize("Hello.", max_seconds=0.5, seed=drawn.seed)
    assert np.array_equal(drawn.audio, again.audio)


def test_threads_get_what_one_caller_gets(babble):
    alone = [babble.synthesize(f"Sentence {i}.", seed=i, max_seconds=0.5).audio for i in range(4)]
    together: list[np.ndarray | None] = [None] * 4

    def speak(i: int) -> None:
        together[i] = babble.synthesize(f"Sentence {i}.", seed=i, max_seconds=0.5).audio

    threads = [threading.Thread(target=speak, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


def test_timings_add_up(babble):
    timings = babble.synthesize("Hello there.", seed=1, max_seconds=2).timings
    assert 0 < timings.first_audio <= timings.total
    assert sum(row["ms"] for row in timings.rows()) == pytest.approx(1e3 * timings.total, abs=1)
    assert timings.rtf == pytest.approx(timings.total / timings.audio)


@pytest.mark.parametrize("text", ["", "   \n\t ", "?!... --", "😀🎉", "\x00\x01\x02", b"bytes", None, 3])
def test_text_that_cannot_be_spoken(babble, text):
    with pytest.raises(TextError):
        babble.stream(text)


def test_control_characters_are_dropped_and_the_rest_is_spoken(babble):
    assert babble.synthesize("He\x00llo\x07 you", seed=0, max_seconds=0.2).text == "Hello you"


def test_5000_characters_lose_none(babble):
    text = ("Every word of this long text is kept. " * 140)[:5000]
    speech = babble.synthesize(text, seed=0, max_seconds=1)
    assert "".join(chunk.text for chunk in speech.chunks) == speech.text
    assert len(speech.chunks) > 20
    assert all(len(chunk.text.encode()) <= 200 for chunk in speech.chunks)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": "warm"},
        {"temperature": 2.5},
        {"top_p": 0},
        {"top_p": 1.5},
        {"top_p": True},
        {"repetition_penalty": 0.5},
        {"max_seconds": 0},
        {"max_seconds": float("inf")},
        {"seed": -1},
        {"seed": 1.5},
        {"voice": "nobody"},
    ],
    ids=str,
)
def test_settings_out_of_range(babble, setting):
    with pytest.raises(ParameterError) as caught:
        babble.stream("Hello.", **setting)
    assert caught.value.fix


@pytest.mark.parametrize("choice", [{"backend": "abacus"}, {"precision": "int3"}])
def test_unknown_backend_or_precision(babble, choice):
    with pytest.raises(ParameterError):
        FishSpeech.from_checkpoint(babble.checkpoint.folder, **choice)


def tone(seconds: float, rate: int = 44100) -> np.ndarray:
    t = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * 220 * t)).astype(np.float32)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_reference_files_of_every_kind(babble, tmp_path, kind):
    path = tmp_path / f"voice.{kind.lower()}"
    soundfile.write(path, np.stack([tone(1.0, 24000)] * 2, axis=1), 24000, format=kind)
    voice = babble.encode_voice(path, "a steady tone")
    assert voice.codes.shape[0] == 8 and 21 <= voice.codes.shape[1] <= 24
    assert voice.text == "a steady tone"


def test_reference_array_equals_file_and_is_used(babble, tmp_path):
    soundfile.write(tmp_path / "voice.wav", tone(1.0), 44100, subtype="FLOAT")
    from_file = babble.encode_voice(tmp_path / "voice.wav", "a tone")
    from_bytes = babble.encode_voice((tmp_path / "voice.wav").read_bytes(), "a tone")
    stereo = babble.encode_voice(np.stack([tone(1.0)] * 2, axis=1), "a tone", sample_rate=44100)
    assert np.array_equal(from_file.codes, from_bytes.codes)
    assert np.array_equal(from_file.codes, stereo.codes)
    plain = babble.synthesize("Hello.", seed=1, max_seconds=0.5)
    cloned = babble.synthesize("Hello.", seed=1, max_seconds=0.5, voice=from_file)
    assert cloned.voice == "voice" and not np.array_equal(plain.codes, cloned.codes)


def test_loudness_of_the_reference_does_not_matter(babble):
    loud = babble.encode_voice(0.9 * tone(1.0), "a tone", sample_rate=44100)
    quiet = babble.encode_voice(0.01 * tone(1.0), "a tone", sample_rate=44100)
    assert (loud.codes == quiet.codes).mean() > 0.99


def jpeg() -> bytes:
    return bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffdb0043") + bytes(200)


@pytest.mark.parametrize(
    ("source", "rate", "error"),
    [
        (jpeg(), None, AudioError),
        (b"", None, AudioError),
        ("no/such/file.wav", None, AudioError),
        (tone(0.1), 44100, AudioError),
        (np.zeros(44100, np.float32), 44100, AudioError),
        (np.full(44100, np.nan, np.float32), 44100, AudioError),
        (tone(600.0, 8000), 8000, AudioError),
        (tone(1.0), None, ParameterError),
        (tone(1.0), 0, ParameterError),
        (np.zeros((2, 2, 2)), 44100, AudioError),
    ],
    ids=["jpeg", "empty", "missing", "short", "silent", "nan", "ten minutes", "no rate", "rate 0", "3 dimensions"],
)
def test_reference_that_cannot_be_used(babble, source, rate, error):
    with pytest.raises(error) as caught:
        babble.encode_voice(source, "words", sample_rate=rate)
    assert caught.value.fix


def test_ten_minutes_names_the_seconds_allowed(babble):
    with pytest.raises(AudioError, match=r"600\.0 s long; at most 23\.8 s"):
        babble.encode_voice(tone(600.0, 8000), "words", sample_rate=8000)


def test_reference_that_leaves_no_room_fails_before_anything_runs(babble):
    codes = np.zeros((8, 960), dtype=np.int64)
    with pytest.raises(PromptTooLong, match="would fit"):
        babble.stream("Hello.", voice=Voice("long", "words", codes))


def test_save_is_atomic_and_readable(babble, tmp_path):
    speech = babble.synthesize("Hello.", seed=1, max_seconds=0.5)
    path = speech.save(tmp_path / "new" / "speech.wav")
    audio, rate = soundfile.read(path, dtype="float32")
    assert rate == 44100 and np.abs(audio - speech.audio).max() < 1e-4
    assert [p.name for p in path.parent.iterdir()] == ["speech.wav"]
    with pytest.raises(AudioError):
        speech.save(tmp_path / "speech.docx")
