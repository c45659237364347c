"""The player that begins early: what it hands to the browser is the speech, and its account of the pieces adds up."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from fstrt_helpers.errors import NonFiniteOutput
from fstrt_helpers.show.streaming import Arrival, Heard, live_page, play_stream, plot_arrivals
from fstrt_helpers.speech import FishSpeech
from fstrt_helpers.speech.backends import open_backend
from fstrt_helpers.speech.fallback import FallbackChain

from ..speech.faults import inject, poison_waveform

RATE = 44_100


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> CapturingDisplayPublisher:
    """What a notebook's front end would be told, in order."""
    shell = InteractiveShell.instance()
    publisher = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", publisher)
    return publisher


def scripts(outputs: CapturingDisplayPublisher) -> list[str]:
    pages = [output["data"].get("text/html", "") for output in outputs.outputs]
    return [page for page in pages if "<script>" in page]


def samples_in(page: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(re.search(r'atob\("([^"]*)"\)', page)[1]), "<i2") / 32767


def first_in(page: str) -> int:
    return int(re.search(r"first: (\d+), node", page)[1])


def void_in(page: str) -> list[int]:
    return json.loads(re.search(r"const from of (\[.*?\])", page)[1])


def test_the_browser_is_handed_the_speech_piece_by_piece(
    engine: FishSpeech, outputs: CapturingDisplayPublisher
) -> None:
    stream = engine.stream("Hello there.", seed=1, max_seconds=1.0)
    heard = play_stream(stream)
    pages = scripts(outputs)
    assert len(pages) == len(heard.arrivals) == 2
    pieces = [samples_in(page) for page in pages]
    np.testing.assert_allclose(np.concatenate(pieces), heard.speech.audio, atol=1 / 32767)
    assert [first_in(page) for page in pages] == [0, len(pieces[0])]
    assert f"{heard.speech.duration:.1f} s made so far" in pages[-1]


def test_the_output_is_one_and_ends_as_a_clip(engine: FishSpeech, outputs: CapturingDisplayPublisher) -> None:
    heard = play_stream(engine.stream("Hello there.", seed=1, max_seconds=1.0))
    names = {output["transient"]["display_id"] for output in outputs.outputs}
    assert names == {heard.live} and [o.get("update", False) for o in outputs.outputs] == [False, True, True]
    last = outputs.outputs[-1]["data"]
    assert "<script" not in last["text/html"] and last["text/html"].count("<audio ") == 1
    assert f"'{heard.live}'" in last["text/html"], "playing the clip stops the live sound"
    assert last["text/plain"].startswith(f"{heard.speech.duration:.2f} s of audio: began after")


def test_the_first_piece_is_shown_before_the_last_one_is_made(engine: FishSpeech) -> None:
    shell = InteractiveShell.instance()
    stream, unfinished = engine.stream("Hello there.", seed=1, max_seconds=1.0), []

    class Watching(CapturingDisplayPublisher):
        def publish(self, *args: object, **kwargs: object) -> None:
            unfinished.append(stream.speech is None)

    before, shell.display_pub = shell.display_pub, Watching()
    try:
        play_stream(stream)
    finally:
        shell.display_pub = before
    assert unfinished == [True, True, False]


def test_what_another_back_end_says_again_is_taken_back(
    engine: FishSpeech, outputs: CapturingDisplayPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = engine.checkpoint
    narrow = open_backend(checkpoint, "torch", "bfloat16")
    failing = FishSpeech(checkpoint, FallbackChain(checkpoint, narrow, "bfloat16"))
    inject(failing, "codec_decode", poison_waveform, 1)  # the first piece is out by then
    heard = play_stream(failing.stream("Hello there.", seed=1, max_seconds=1.0))
    pages = scripts(outputs)
    assert [void_in(page) for page in pages] == [[], [0], []]
    assert len(heard.speech.fallbacks) == 1
    again = np.concatenate([samples_in(page) for page in pages[1:]])
    np.testing.assert_allclose(again, heard.speech.audio, atol=1 / 32767)


def test_a_fault_is_raised(engine: FishSpeech, outputs: CapturingDisplayPublisher) -> None:
    narrow = open_backend(engine.checkpoint, "torch", "bfloat16")
    strict = FishSpeech(engine.checkpoint, narrow)
    inject(strict, "codec_decode", poison_waveform, 1)
    with pytest.raises(NonFiniteOutput):
        play_stream(strict.stream("Hello there.", seed=1, max_seconds=1.0))
    assert len(scripts(outputs)) == 1, "the piece that was right had been handed out"


def test_a_page_cannot_be_broken_by_its_text() -> None:
    page = live_page("p1", np.array([0.0, 2.0, -2.0], np.float32), RATE, first=0, said="</script><b>")
    assert page.count("</script>") == 1 and "&lt;/script&gt;" in page
    assert samples_in(page).tolist() == [0.0, 1.0, -1.0], "louder than full scale is cut, not wrapped"
    assert "__" not in page


@pytest.mark.parametrize(
    ("arrivals", "waits"),
    [
        ([(1.0, 0.5), (1.2, 2.0), (3.0, 1.0)], 0.0),
        ([(1.0, 0.5), (2.0, 2.0), (4.5, 1.0)], 1.0),
        ([(1.0, 0.5)], 0.0),
    ],
)
def test_waiting_is_what_the_listener_waits(
    engine: FishSpeech, arrivals: list[tuple[float, float]], waits: float
) -> None:
    speech = engine.synthesize("Hello.", seed=1, max_seconds=0.3)
    heard = Heard(speech, tuple(Arrival(*a) for a in arrivals), clip=None)
    assert heard.waits == pytest.approx(waits) and heard.first_audio == 1.0


def test_the_picture_has_what_was_there_and_what_was_heard(engine: FishSpeech) -> None:
    speech = engine.synthesize("Hello.", seed=1, max_seconds=0.3)
    figure = plot_arrivals(Heard(speech, (Arrival(1.0, 0.5), Arrival(2.0, 2.0)), clip=None))
    there, heard, _ = figure.axes[0].lines
    assert list(there.get_ydata()) == [0.0, 0.5, 2.5, 2.5]
    assert list(zip(*heard.get_data(), strict=True))[-2:] == [(2.0, 0.5), (4.0, 2.5)]
    assert len(figure._repr_png_()) < 20_000
