"""Clips that fit into a notebook, and the player: it speaks, it says why it cannot, it comes back."""

from __future__ import annotations

import io
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from fstrt_helpers.show.player import SpeechPlayer, audio_clip, compare, wav_bytes
from fstrt_helpers.speech import FishSpeech, Voice

RATE = 44_100


def tone(seconds: float, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * RATE)) / RATE)).astype(np.float32)


@pytest.fixture
def player(engine: FishSpeech) -> SpeechPlayer:
    player = SpeechPlayer(engine, "Hello there.", max_seconds=0.4)
    player.voice.value = None
    return player


def test_a_clip_is_the_sound_it_was_made_from() -> None:
    clip = audio_clip(tone(1.5), RATE)
    heard, rate = soundfile.read(io.BytesIO(clip.data))
    assert rate == RATE and not clip.cut
    loud = np.abs(np.fft.rfft(heard[RATE // 4 : RATE // 4 + RATE]))
    assert loud.argmax() == 440
    assert 'src="data:audio/mpeg;base64,' in clip._repr_html_()
    assert repr(clip) == "Clip: 1.50 s at 44100 Hz"


def test_a_clip_fits_whatever_it_holds() -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, 60 * RATE).astype(np.float32)  # the worst case
    clip = audio_clip(noise, RATE, seconds=60)
    assert len(clip._repr_html_()) < 61_000
    assert clip.cut and 1 < clip.seconds < 60 and "cut" in repr(clip)
    assert audio_clip(noise, RATE, seconds=2.0).seconds == pytest.approx(2.0)


def test_comparing_lists_names_and_players(engine: FishSpeech) -> None:
    speech = engine.synthesize("Hello.", seed=1, max_seconds=0.3)
    page = compare({"ours <a>": speech, "tone": (tone(1.0), RATE)})._repr_html_()
    assert page.count("<audio") == page.count("<audio onplay=") == 2 and "ours &lt;a&gt;" in page and "1.00 s" in page
    assert f"{speech.duration:.2f} s" in page


def test_wav_bytes_are_a_wav_file() -> None:
    audio = tone(0.1)
    heard, rate = soundfile.read(io.BytesIO(wav_bytes(audio, RATE)), dtype="float32")
    assert rate == RATE
    np.testing.assert_allclose(heard, audio, atol=2 / 2**15)


def test_the_player_speaks_what_the_widgets_say(player: SpeechPlayer, engine: FishSpeech) -> None:
    player.seed.value, player.temperature.value, player.top_p.value, player.penalty.value = 5, 0.9, 0.8, 1.1
    speech = player.speak()
    settings = {"temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.1}
    same = engine.synthesize("Hello there.", seed=5, max_seconds=0.4, **settings)
    np.testing.assert_array_equal(speech.audio, same.audio)
    heard, _ = soundfile.read(io.BytesIO(player.audio.value), dtype="float32")
    np.testing.assert_allclose(heard, speech.audio, atol=2 / 2**15)
    assert player.audio.layout.display is None
    assert f"{speech.duration:.2f} s of audio" in player.status.value and "ended by: length" in player.status.value


def test_the_button_is_off_while_it_speaks(player: SpeechPlayer) -> None:
    states, statuses = [], []
    player.button.observe(lambda change: states.append(change["new"]), "disabled")
    player.status.observe(lambda change: statuses.append((player.button.disabled, player.speak())), "value")
    player.button.click()
    assert states == [True, False]
    assert len(statuses) > 1
    assert set(statuses) == {(True, None)}, "a second call while speaking does nothing"
    assert player.speech is not None


@pytest.mark.parametrize(
    ("text", "reason"), [("🙂🙂", "nothing in the text can be spoken"), ("", "nothing in the text")]
)
def test_an_error_is_shown_as_text(player: SpeechPlayer, text: str, reason: str) -> None:
    first = player.speak()
    player.text.value = text
    assert player.speak() is None
    assert reason in player.status.value and "role='alert'" in player.status.value
    assert "fix: " in player.status.value and "Traceback" not in player.status.value
    assert player.speech is first and not player.button.disabled
    player.text.value = "Hello again."
    assert player.speak() is not None, "it speaks again after an error"


def test_an_error_cannot_smuggle_html_in(player: SpeechPlayer) -> None:
    player.text.value = "<>"
    assert player.speak() is None
    assert "<>" not in re.sub(r"</?pre[^>]*>", "", player.status.value) and "&lt;&gt;" in player.status.value


def test_voices_of_the_user_are_offered(engine: FishSpeech) -> None:
    mine = Voice("mine", "Some words.", np.full((8, 30), 7))
    player = SpeechPlayer(engine, "Hello.", voices={"mine": mine}, max_seconds=0.2)
    labels = [label for label, _ in player.voice.options]
    assert labels == ["the model's own choice", *engine.voices, "mine"]
    player.voice.value = mine
    assert player.speak().voice == "mine"


def test_it_shows_itself_with_a_line_of_text_to_fall_back_on(player: SpeechPlayer) -> None:
    bundle = player._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"].startswith("SpeechPlayer('random')")


def test_importing_brings_no_widgets_and_no_matplotlib() -> None:
    code = (
        "import sys, fstrt_helpers.show.player, fstrt_helpers.show.plots\n"
        "print([m for m in ('ipywidgets', 'matplotlib', 'IPython') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
