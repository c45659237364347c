"""Pictures for the notebooks: the prompt, sound, sizes, time, and what the sampler keeps.

Every function returns a matplotlib Figure that shows itself as a small PNG. ``pyplot`` is not used, so no window opens
and nothing piles up.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..audio import log_mel, resample
from ..checkpoint import SAMPLE_RATE
from ..measure.parts import Part, frame_megabytes
from ..text.tokenizer import IM_START

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ..speech.result import Timings
    from ..text.tokenizer import Tokenizer

__all__ = [
    "plot_distribution",
    "plot_mel_and_wave",
    "plot_parts",
    "plot_prompt",
    "plot_rope_rounding",
    "plot_stages",
    "png_bytes",
]

DPI = 80
# Okabe and Ito's colours, which colour-blind readers can tell apart.
INK, BLUE, ORANGE, GREEN, PURPLE, GREY = "#222222", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e6e6e6"
_GROUPS = {"slow": BLUE, "fast": GREEN, "codec": ORANGE}


@functools.cache
def _figure_class() -> type[Figure]:
    from matplotlib.figure import Figure

    class SmallFigure(Figure):
        """A figure that needs no pyplot to show itself, and describes itself in words where pictures are not shown."""

        summary = ""

        def _repr_png_(self) -> bytes:
            return png_bytes(self)

        def __repr__(self) -> str:
            return f"Figure: {self.summary}"

    return SmallFigure


def _figure(summary: str, width: float, height: float) -> Figure:
    figure = _figure_class()(figsize=(width, height), layout="constrained")
    figure.summary = summary
    return figure


def _plain(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def png_bytes(figure: Figure, colours: int = 64) -> bytes:
    """Renders a figure at 80 dots per inch with a palette, a third of the size of full colour."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=DPI)
    Image.open(full).convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    return small.getvalue()


def plot_prompt(prompt: np.ndarray, tokenizer: Tokenizer) -> Figure:
    """The prompt matrix: 9 rows of ids, one column per token, coloured by what the token is.

    Args:
        prompt: int64 [9, S] from :func:`fstrt_helpers.text.prompt.build_prompt`.
        tokenizer: The tokenizer it was made with.

    Returns:
        One panel; prompts of up to 64 columns name every token, longer ones name the turns.
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    rows, columns = prompt.shape
    tokens = prompt[0]
    semantic = (tokens >= tokenizer.semantic_begin_id) & (tokens <= tokenizer.semantic_end_id)
    control = np.isin(tokens, list(tokenizer.special.values())) & ~semantic
    size = tokenizer.semantic_end_id - tokenizer.semantic_begin_id + 1
    image = np.empty((rows, columns, 3))
    image[:] = to_rgb("#f4f4f4")  # no code in this column
    image[0] = to_rgb(BLUE)
    image[0, control] = to_rgb(INK)
    image[0, semantic] = to_rgb(ORANGE)
    shade = prompt[1:, semantic, None] / size  # light for low codes, dark for high ones
    image[1:, semantic] = np.array(to_rgb("#fff1e0")) * (1 - shade) + np.array(to_rgb("#8c2d04")) * shade

    spelled = columns <= 64
    figure = _figure(f"prompt of {rows} rows and {columns} columns", 10, 2.9)
    axes = figure.subplots()
    axes.imshow(image, aspect="auto", interpolation="nearest", extent=(-0.5, columns - 0.5, rows - 0.5, -0.5))
    axes.set_yticks(range(rows), ["token", *(f"code {k}" for k in range(rows - 1))])
    names = [_spell(tokenizer, token) for token in tokens]
    if spelled:
        axes.set_xticks(range(columns), names)
        for label in axes.get_xticklabels():
            label.set(rotation=90 if len(label.get_text()) > 2 else 0)
        axes.hlines(np.arange(rows - 1) + 0.5, -0.5, columns - 0.5, color="white", linewidth=1)
        axes.vlines(np.arange(columns - 1) + 0.5, -0.5, rows - 0.5, color="white", linewidth=1)
    else:
        starts = np.flatnonzero(tokens == tokenizer.special[IM_START])
        for start, stop in pairwise([*starts, columns]):
            role = tokenizer.decode(tokens[start + 1 : stop]).split("\n")[0]
            label = f"{role}\nspeaks on" if stop == columns else f"{role}\n{stop - start} columns"
            axes.axvline(start - 0.5, color="white", linewidth=2)
            axes.annotate(label, ((start + stop) / 2, rows - 0.5), (0, -30), textcoords="offset points", ha="center",
                          fontsize=8, color=INK, annotation_clip=False)  # fmt: skip
    _plain(axes, f"One prompt: {rows} rows × {columns} columns")
    kinds = {"control token": INK, "text token": BLUE, "semantic token": ORANGE, "its codes, 0 to 1023": "#c87137"}
    shown = list(kinds)[: 4 if semantic.any() else 2]
    handles = [Patch(color=kinds[kind], label=kind) for kind in shown]
    handles.append(Patch(facecolor="#f4f4f4", edgecolor="#bbbbbb", label="0, not used"))
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _spell(tokenizer: Tokenizer, token: int) -> str:
    text = tokenizer.decode([int(token)])
    return text if text.startswith("<|") else repr(text)[1:-1].replace(" ", "␣")


def plot_mel_and_wave(audio: np.ndarray, rate: int, title: str = "") -> Figure:
    """Waveform above its log-mel spectrogram.

    Args:
        audio: float32 [N] in [-1, 1].
        rate: Its sample rate in Hz.
        title: Stands above both, such as the text that is spoken.
    """
    import torch

    seconds = len(audio) / rate
    figure = _figure(f"waveform and log-mel spectrogram of {seconds:.2f} s of audio", 9, 4.2)
    wave, mel = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.6])
    # The envelope, two values per pixel: every sample would be a thousand points per pixel column.
    step = max(1, len(audio) // 1400)
    envelope = audio[: len(audio) // step * step].reshape(-1, step)
    times = np.arange(len(envelope)) * step / rate
    wave.fill_between(times, envelope.min(1), envelope.max(1), color=BLUE, linewidth=0.4)
    limit = max(0.05, 1.1 * float(np.abs(audio).max()))
    wave.set_ylim(-limit, limit)
    _plain(wave, title or "Waveform and log-mel spectrogram", y="amplitude")

    image = log_mel(torch.from_numpy(resample(audio, rate))[None])[0].numpy()  # [160, frames · 4]
    shown = mel.imshow(image, origin="lower", aspect="auto", extent=(0, seconds, 0, image.shape[0]), cmap="magma",
                       vmin=max(float(image.min()), float(image.max()) - 9))  # fmt: skip
    marks = np.array([250, 1000, 2000, 4000, 8000, 16000])
    mel.set_yticks(_mel_row(marks, image.shape[0]), [f"{hz / 1000:g}" for hz in marks])
    _plain(mel, "", "time (s)", "frequency (kHz)")
    bar = figure.colorbar(shown, ax=mel, pad=0.01)
    bar.set_label("log magnitude", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return figure


def _mel_row(hz: np.ndarray, rows: int) -> np.ndarray:
    """Row of the spectrogram that a frequency falls on."""
    from ..audio import mel_filterbank

    bank = mel_filterbank(rows)  # [bins, rows]
    centres = bank.argmax(axis=0) * SAMPLE_RATE / 2 / (bank.shape[0] - 1)
    return np.interp(hz, centres, np.arange(rows) + 0.5)


def plot_parts(models: Mapping[str, Sequence[Part]]) -> Figure:
    """Size of every part, and what one frame reads, one bar per checkpoint.

    Args:
        models: Parts by checkpoint name, from :func:`fstrt_helpers.measure.parts.count_parts`; the same parts each.
    """
    from matplotlib.patches import Patch

    figure = _figure(f"size of every part of {' and '.join(models)}", 10, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    names = [part.name for part in next(iter(models.values()))]
    height = 0.8 / len(models)
    shades = np.linspace(0.4, 1, len(models))
    totals = [f"{sum(p.megabytes('float16') for p in parts):,.0f}" for parts in models.values()]
    reads = [f"{frame_megabytes(parts):,.0f}" for parts in models.values()]
    titles = (f"Stored, two bytes per weight: {' / '.join(totals)} MB", f"Read per frame: {' / '.join(reads)} MB")
    for axes, title in zip(panels, titles, strict=True):
        for i, parts in enumerate(models.values()):
            sizes = [p.megabytes("float16") if axes is panels[0] else 2 * (p.reads or 0) / 1e6 for p in parts]
            places = np.arange(len(parts)) + i * height
            colours = [_GROUPS[part.group] for part in parts]
            axes.barh(places, sizes, height, color=colours, alpha=shades[i])
            for place, value in zip(places, sizes, strict=True):
                if value:
                    label = f"{value:.2g}" if value < 10 else f"{value:.0f}"
                    axes.text(value * 1.15, place, label, va="center", fontsize=7)
        axes.set_xscale("log")
        axes.set_xlim(1e-3, 8e3)
        axes.set_yticks(np.arange(len(names)) + height * (len(models) - 1) / 2, names)
        _plain(axes, title, "MB (10⁶ bytes), logarithmic")
    panels[0].invert_yaxis()
    handles = [Patch(color="#333333", alpha=shade, label=label) for label, shade in zip(models, shades, strict=True)]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(models), fontsize=8, frameon=False)
    return figure


def plot_stages(timings: Timings) -> Figure:
    """Where the time of one synthesis went, against the length of the audio.

    Args:
        timings: Of a :class:`fstrt_helpers.speech.Speech`.
    """
    figure = _figure(f"time per stage, {timings.total:.2f} s in all for {timings.audio:.2f} s of audio", 9, 1.7)
    axes = figure.subplots()
    left = 0.0
    stages = {"text": INK, "prefill": PURPLE, "frames": BLUE, "codec": ORANGE}
    spans = {name: getattr(timings, name) for name in stages}
    spans["rest"] = max(0.0, timings.total - sum(spans.values()))
    for name, seconds in spans.items():
        axes.barh(1, seconds, left=left, color=stages.get(name, GREY), label=f"{name} {1e3 * seconds:.0f} ms")
        left += seconds
    axes.barh(0, timings.audio, color="#bbbbbb")
    axes.set_yticks([0, 1], ["audio made", "time taken"])
    axes.axvline(
        timings.first_audio, color="black", linestyle=":", label=f"first audio {1e3 * timings.first_audio:.0f} ms"
    )
    _plain(axes, f"Real-time factor {timings.rtf:.2f}: below 1 is faster than speech", "seconds")
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    return figure


def plot_distribution(stages: Mapping[str, np.ndarray], *, likeliest: int = 24, unit: str = "token") -> Figure:
    """How the sampler's settings reshape one distribution.

    Args:
        stages: Probabilities in descending order [V] by label, such as one entry per setting.
        likeliest: How many to show.
        unit: What is drawn.
    """
    figure = _figure(f"probabilities of the {likeliest} likeliest {unit}s under {len(stages)} settings", 9, 2.4)
    panels = np.atleast_1d(figure.subplots(1, len(stages), sharey=True))
    for axes, (label, p), colour in zip(panels, stages.items(), (GREY, BLUE, ORANGE, GREEN, PURPLE), strict=False):
        axes.bar(range(likeliest), p[:likeliest], color="#999999" if colour == GREY else colour)
        _plain(axes, f"{label}\n{int((p > 0).sum()):,} can be drawn", f"{unit}, likeliest first")
    panels[0].set_ylabel("probability", fontsize=9)
    return figure


def plot_rope_rounding(exact: np.ndarray, rounded: np.ndarray) -> Figure:
    """What bfloat16 does to the rotary table.

    Args:
        exact: Cosines in float32, [positions, pairs].
        rounded: The same in bfloat16.
    """
    figure = _figure("error that rounding to bfloat16 leaves in the rotary table", 9, 2.4)
    axes = figure.subplots()
    difference = np.abs(exact - rounded)
    shown = axes.imshow(difference.T, aspect="auto", cmap="magma", interpolation="nearest")
    figure.colorbar(shown, ax=axes, pad=0.01).set_label("|difference|", fontsize=8)
    axes.yaxis.get_major_locator().set_params(integer=True)
    _plain(axes, f"Rotary cosines: largest difference {difference.max():.4f}", "position (columns)", "pair of channels")
    return figure
