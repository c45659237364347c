"""A player that begins while the sentence is still being made, and the account of when each piece came.

In the browser every piece is handed to the Web Audio API with the time at which the one before it ends
(https://developer.mozilla.org/docs/Web/API/AudioBufferSourceNode/start), so pieces join without a gap as long as they
come in time. What stays in the notebook is an ordinary clip, which also plays where no script may run.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..speech.result import Speech
from .player import Clip, audio_clip
from .plots import BLUE, GREY, INK, ORANGE, _figure, _plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..speech.stream import SpeechStream

__all__ = ["Arrival", "Heard", "live_page", "play_stream", "plot_arrivals"]

_SCRIPT = """
(() => {
  const all = window.fstrtPlayers = window.fstrtPlayers || {};
  const context = all.context = all.context || new (window.AudioContext || window.webkitAudioContext)();
  const me = all[__ID__] = all[__ID__] || {end: 0, sources: [], log: []};
  me.stop = (from) => {
    me.sources = me.sources.filter((s) => {
      if (s.first >= from) { try { s.node.stop(); } catch (e) {} return false; }
      return true;
    });
    me.end = Math.max(0, ...me.sources.map((s) => s.until));
  };
  for (const from of __VOID__) me.stop(from);
  const bytes = Uint8Array.from(atob(__DATA__), (c) => c.charCodeAt(0));
  const samples = new Int16Array(bytes.buffer);
  if (!samples.length) return;
  const buffer = context.createBuffer(1, samples.length, __RATE__);
  buffer.getChannelData(0).set(Float32Array.from(samples, (s) => s / 32768));
  const node = context.createBufferSource();
  node.buffer = buffer;
  node.connect(context.destination);
  const at = Math.max(context.currentTime + 0.02, me.end);
  node.start(at);
  context.resume();
  me.end = at + buffer.duration;
  me.sources.push({first: __FIRST__, node, until: me.end});
  me.log.push({first: __FIRST__, seconds: buffer.duration, starts: at, came: performance.now() / 1000});
})();
"""


@dataclass(frozen=True)
class Arrival:
    """One piece of audio.

    Attributes:
        after: Seconds until it was there, from the beginning of the playing.
        seconds: Its length.
    """

    after: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Heard:
    """A speech that was played while it was made; shows itself as a clip.

    Attributes:
        speech: The whole.
        arrivals: The pieces that were played, in order; those in vain after a fallback among them.
        clip: What a notebook stores.
        live: Name of its player in the browser, empty if it was not shown.
    """

    speech: Speech
    arrivals: tuple[Arrival, ...]
    clip: Clip
    live: str = ""

    @property
    def first_audio(self) -> float:
        """Seconds until the sound began."""
        return self.arrivals[0].after

    @property
    def waits(self) -> float:
        """Seconds of silence, after the sound began, in which the listener waited for the next piece."""
        ready, waited = self.arrivals[0].after, 0.0
        for arrival in self.arrivals:
            waited += max(0.0, arrival.after - ready)
            ready = max(ready, arrival.after) + arrival.seconds
        return waited

    def __repr__(self) -> str:
        return (
            f"{self.speech.duration:.2f} s of audio: began after {self.first_audio:.2f} s, made in "
            f"{self.speech.timings.total:.2f} s, listener waited {self.waits:.2f} s in between"
        )

    def _repr_html_(self) -> str:
        # Whoever plays the clip wants the live sound to end.
        stop = f"onplay=\"window.fstrtPlayers?.['{self.live}']?.stop(0)\" " if self.live else ""
        player = self.clip._repr_html_().replace("<audio ", f"<audio {stop}", 1)
        return f"{player}<br>{self!r}"


def live_page(
    player: str, samples: np.ndarray, rate: int, *, first: int, said: str = "", void: Sequence[int] = ()
) -> str:
    """HTML that makes the browser play a piece right after the one before it.

    Args:
        player: Name of the player; pieces of one speech share it.
        samples: float32 [N] in [-1, 1].
        rate: Hz.
        first: Number of the first sample, counted over all pieces.
        said: A line of text to be seen meanwhile.
        void: Sample numbers from which on what has not been heard yet is dropped first.
    """
    whole = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    script = _SCRIPT
    for name, value in {
        "ID": player, "VOID": list(void), "DATA": base64.b64encode(whole).decode(), "RATE": rate, "FIRST": first
    }.items():  # fmt: skip
        script = script.replace(f"__{name}__", json.dumps(value))
    return f"<span>{escape(said)}</span><script>{script}</script>"


@dataclass
class _Page:
    """One output of a cell that is replaced again and again."""

    handle: Any = None
    name: str = field(default_factory=lambda: "p" + secrets.token_hex(6))

    def show(self, thing: object) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(thing, display_id=self.name)
        else:
            self.handle.update(thing)


def play_stream(stream: SpeechStream, *, rate: int = 44_100, seconds: float = 6.0) -> Heard:
    """Plays a stream in the notebook while it is made. The cell's output ends as a clip and one line of text.

    If another back end begins a chunk anew, what was scheduled of it and not heard yet is dropped.

    Args:
        stream: From :meth:`fstrt_helpers.speech.FishSpeech.stream`; it must not have been read from.
        rate: Its sample rate in Hz.
        seconds: Longest clip that is stored; what is played live is the whole.

    Raises:
        FstrtError: As the stream does; what was heard until then stays in the output.
    """
    from IPython.display import HTML

    began = time.perf_counter()
    page = _Page()
    arrivals: list[Arrival] = []
    first = dropped = 0
    for samples in stream:
        arrivals.append(Arrival(time.perf_counter() - began, len(samples) / rate))
        void, dropped = [begin for begin, _ in stream.discarded[dropped:]], len(stream.discarded)
        said = f"playing, {(first + len(samples)) / rate:.1f} s made so far"
        page.show(HTML(live_page(page.name, samples, rate, first=first, said=said, void=void)))
        first += len(samples)
    speech = stream.speech
    heard = Heard(speech, tuple(arrivals), audio_clip(speech.audio, rate, seconds=seconds), page.name)
    page.show(heard)
    return heard


def plot_arrivals(heard: Heard) -> Figure:
    """Audio that was there and audio that was heard, against the time since the call.

    Args:
        heard: From :func:`play_stream`.
    """
    figure = _figure(f"arrival of {len(heard.arrivals)} pieces of audio", 9, 2.6)
    axes = figure.subplots()
    after = [0.0, *(a.after for a in heard.arrivals)]
    there = np.cumsum([0.0, *(a.seconds for a in heard.arrivals)])
    played, ready = [(0.0, 0.0), (heard.first_audio, 0.0)], heard.first_audio
    for arrival, before in zip(heard.arrivals, there, strict=False):
        begins = max(ready, arrival.after)
        ready = begins + arrival.seconds
        played += [(begins, before), (ready, before + arrival.seconds)]
    total = heard.speech.timings.total
    axes.axvspan(0, total, color=GREY, label=f"being made: {total:.2f} s")
    axes.step([*after, max(ready, total)], [*there, there[-1]], where="post", color=BLUE, label="audio there")
    axes.plot(*zip(*played, strict=True), color=ORANGE, label="audio heard")
    axes.axvline(heard.first_audio, color=INK, linestyle=":", label=f"first audio: {1e3 * heard.first_audio:.0f} ms")
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    _plain(axes, "The sound begins with the first piece, long before the last one is made", "seconds", "s of audio")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure
