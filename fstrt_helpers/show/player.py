"""Sound in a notebook: small clips that are stored with it, and a player with a text box on top of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FstrtError
from ..speech import Speech, Voice

if TYPE_CHECKING:
    from ..speech import FishSpeech

__all__ = ["Clip", "Comparison", "SpeechPlayer", "audio_clip", "compare", "wav_bytes"]

Sound = Speech | tuple[np.ndarray, int]
_LEVELS = (0.5, 0.75, 0.95)  # of compression; the first that fits is used
_STORED = 45_000  # bytes; base64 makes 60 kB of them
_TAKE_OVER = (
    "for (const a of this.closest('table').querySelectorAll('audio')) if (a !== this && !a.paused) "
    "{ this.currentTime = Math.min(a.currentTime, this.duration || 0); a.pause(); }"
)


@dataclass(frozen=True)
class Clip:
    """A short sound as a browser's own player; prints as one line of text.

    Attributes:
        data: The compressed file.
        seconds: Length.
        sample_rate: Hz.
        cut: Whether the end is missing.
    """

    data: bytes
    seconds: float
    sample_rate: int
    cut: bool = False

    def __repr__(self) -> str:
        return f"Clip: {self.seconds:.2f} s at {self.sample_rate} Hz{', its end cut off' if self.cut else ''}"

    def _repr_html_(self) -> str:
        source = base64.b64encode(self.data).decode()
        return f'<audio controls preload="metadata" src="data:audio/mpeg;base64,{source}"></audio>'


@dataclass(frozen=True)
class Comparison:
    """Clips below each other, with their names. Playing one while another plays goes on at the same moment in it."""

    clips: Mapping[str, Clip]

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {clip}" for name, clip in self.clips.items())

    def _repr_html_(self) -> str:
        takes_over = f'<audio onplay="{_TAKE_OVER}" '
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td>{clip.seconds:.2f} s</td>"
            f"<td>{clip._repr_html_().replace('<audio ', takes_over, 1)}</td></tr>"
            for name, clip in self.clips.items()
        )
        return f"<table>{rows}</table>"


def _unpack(sound: Sound) -> tuple[np.ndarray, int]:
    return (sound.audio, sound.sample_rate) if isinstance(sound, Speech) else sound


def wav_bytes(audio: np.ndarray, rate: int) -> bytes:
    """A 16-bit WAV file of float32 samples [N]."""
    import soundfile

    buffer = io.BytesIO()
    soundfile.write(buffer, audio, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def audio_clip(audio: np.ndarray, rate: int, *, seconds: float = 6.0) -> Clip:
    """Compresses a sound so that a notebook can store it: at most 60 kB once it is base64.

    MP3 is the one compressed format that every browser plays.

    Args:
        audio: float32 [N] in [-1, 1].
        rate: Sample rate in Hz.
        seconds: Longest clip; what is longer is cut, and cut shorter still if it does not fit otherwise.
    """
    import soundfile

    length = min(len(audio), int(seconds * rate))
    while True:
        for level in _LEVELS:
            buffer = io.BytesIO()
            piece = audio[:length]
            soundfile.write(buffer, piece, rate, format="MP3", compression_level=level, bitrate_mode="VARIABLE")
            if buffer.tell() <= _STORED:
                return Clip(buffer.getvalue(), length / rate, rate, length < len(audio))
        length = int(length * 0.95 * _STORED / buffer.tell())


def compare(clips: Mapping[str, Sound], *, seconds: float = 6.0) -> Comparison:
    """Players below each other, to hear one difference at a time.

    Args:
        clips: Speech, or samples float32 [N] with their rate in Hz, by name.
        seconds: Longest clip.
    """
    return Comparison({name: audio_clip(*_unpack(sound), seconds=seconds) for name, sound in clips.items()})


class SpeechPlayer:
    """A text box, a voice, the sampler's settings and a button. Works on widgets alone: nothing is drawn to use it.

    Args:
        engine: Speaks.
        text: What stands in the box at first.
        voices: Voices to offer besides the shipped ones.
        max_seconds: Longest speech, so that a pasted book does not block the notebook.
    """

    def __init__(
        self,
        engine: FishSpeech,
        text: str = "Type a sentence and press the button.",
        *,
        voices: Mapping[str, Voice] | None = None,
        max_seconds: float = 30.0,
    ) -> None:
        import ipywidgets as w

        self.engine, self.max_seconds = engine, max_seconds
        self.speech: Speech | None = None
        wide = {"style": {"description_width": "8em"}, "layout": w.Layout(width="36em")}
        offered = [("the model's own choice", None), *((name, name) for name in engine.voices), *(voices or {}).items()]
        self.text = w.Textarea(value=text, description="text", rows=3, **wide)
        self.voice = w.Dropdown(options=offered, index=min(1, len(offered) - 1), description="voice", **wide)
        self.seed = w.BoundedIntText(value=1, min=0, max=2**31 - 1, description="seed", **wide)

        def slider(value: float, low: float, high: float, name: str) -> w.FloatSlider:
            return w.FloatSlider(value=value, min=low, max=high, step=0.05, description=name, **wide)

        self.temperature = slider(0.7, 0.05, 2.0, "temperature")
        self.top_p = slider(0.7, 0.05, 1.0, "top-p")
        self.penalty = slider(1.2, 1.0, 2.0, "penalty")
        self.button = w.Button(description="Speak", button_style="primary", icon="volume-up")
        self.status = w.HTML("ready")
        self.audio = w.Audio(value=b"", format="wav", autoplay=False, layout=w.Layout(display="none"))
        self.button.on_click(lambda _: self.speak())
        settings = [self.text, self.voice, self.seed, self.temperature, self.top_p, self.penalty]
        self.box = w.VBox([*settings, w.HBox([self.button, self.status]), self.audio])

    def __repr__(self) -> str:
        return f"SpeechPlayer({self.engine.checkpoint.name!r}): run this cell to get the text box, voices and button"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return {**(self.box._repr_mimebundle_(**kwargs) or {}), "text/plain": repr(self)}

    def speak(self) -> Speech | None:
        """Speaks what the widgets say; the same as pressing the button.

        Returns:
            The speech, which is also in :attr:`speech` and in the audio element; None where the settings or the text
            cannot be used (the reason then stands beside the button) or while it speaks already.
        """
        if self.button.disabled:
            return None
        self.button.disabled = True
        self._say("speaking …")
        try:
            stream = self.engine.stream(
                self.text.value,
                voice=self.voice.value,
                seed=self.seed.value,
                temperature=self.temperature.value,
                top_p=self.top_p.value,
                repetition_penalty=self.penalty.value,
                max_seconds=self.max_seconds,
            )
            samples = 0
            for piece in stream:
                samples += len(piece)
                self._say(f"speaking … {samples / self.engine.sample_rate:.1f} s")
            self._show(stream.speech)
            return self.speech
        except FstrtError as error:
            self._say(str(error), error=True)
            return None
        except Exception as error:
            self._say(f"this should not have happened: {type(error).__name__}: {error}", error=True)
            raise
        finally:
            self.button.disabled = False

    def _show(self, speech: Speech) -> None:
        self.speech = speech
        self.audio.value = wav_bytes(speech.audio, speech.sample_rate)
        self.audio.layout.display = None
        t, ends = speech.timings, ", ".join(speech.stop_reasons)
        self._say(f"{t.audio:.2f} s of audio in {t.total:.2f} s, real-time factor {t.rtf:.2f}, ended by: {ends}")

    def _say(self, message: str, *, error: bool = False) -> None:
        shown = escape(message)
        self.status.value = f"<pre role='alert' style='color:#b00020'>{shown}</pre>" if error else shown
