"""The pictures: what they draw is what was given, and they are small."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from fstrt_helpers.measure.parts import count_parts, official_parts
from fstrt_helpers.show import plots
from fstrt_helpers.speech import FishSpeech, Timings
from fstrt_helpers.text.prompt import build_prompt

RATE = 44_100
TIMINGS = Timings(
    text=0.004, prefill=0.03, frames=0.9, codec=0.3, codec_work=0.5, total=1.25, first_audio=0.2, audio=3.1
)


def text_in(figure: Figure) -> str:
    """Every string that is drawn."""
    from matplotlib.text import Text

    figure.canvas.draw()
    return "\n".join(t.get_text() for t in figure.findobj(Text))


def test_a_figure_shows_itself_small_and_in_words() -> None:
    figure = plots.plot_stages(TIMINGS)
    data = figure._repr_png_()
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG" and image.size[0] == pytest.approx(9 * plots.DPI, abs=1)
    assert len(image.convert("RGB").getcolors(100)) > 4, "something is drawn"
    assert len(data) < 20_000
    assert repr(figure) == "Figure: time per stage, 1.25 s in all for 3.10 s of audio"


def test_pictures_do_not_pile_up() -> None:
    import matplotlib.pyplot as plt

    plots.plot_stages(TIMINGS)._repr_png_()
    assert plt.get_fignums() == []


def test_prompt_cells_have_the_colour_of_their_kind(engine: FishSpeech) -> None:
    codes = np.zeros((8, 3), dtype=np.int64)
    codes[1, 2] = 1000
    prompt = build_prompt(engine.tokenizer, "Hi.", [("Yes.", codes)])
    figure = plots.plot_prompt(prompt, engine.tokenizer)
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (9, prompt.shape[1], 3)
    spoken = np.flatnonzero(prompt[0] >= engine.tokenizer.semantic_begin_id)
    ends = np.flatnonzero(prompt[0] == engine.tokenizer.im_end_id)
    assert len(spoken) == 3
    for column, colour in ((spoken[0], plots.ORANGE), (ends[0], plots.INK), (1, plots.BLUE)):
        np.testing.assert_allclose(image[0, column], to_rgb(colour))
    unused = np.setdiff1d(np.arange(prompt.shape[1]), spoken)
    assert np.ptp(image[1:, unused].reshape(-1, 3), axis=0).max() == 0
    assert image[2, spoken[2]].sum() < image[2, spoken[0]].sum(), "a high code is darker than a low one"


def test_short_prompts_spell_their_tokens_and_long_ones_name_their_turns(engine: FishSpeech) -> None:
    short = text_in(plots.plot_prompt(build_prompt(engine.tokenizer, "Hi you."), engine.tokenizer)).split("\n")
    assert {"H", "␣", "<|im_start|>", "<|voice|>", "token", "code 7"} <= set(short)
    assert "One prompt: 9 rows × 26 columns" in short and "semantic token" not in short
    reference = ("It is late.", np.ones((8, 40), dtype=np.int64))
    long = text_in(plots.plot_prompt(build_prompt(engine.tokenizer, "Hi.", [reference]), engine.tokenizer))
    assert "system" in long and "assistant\nspeaks on" in long and "semantic token" in long


@pytest.mark.parametrize("rate", [RATE, 16_000])
def test_a_tone_is_drawn_at_its_frequency(rate: int) -> None:
    tone = (0.5 * np.sin(2 * np.pi * 2000 * np.arange(rate) / rate)).astype(np.float32)
    figure = plots.plot_mel_and_wave(tone, rate, "a tone")
    wave, mel = figure.axes[:2]
    image = mel.images[0].get_array()
    loudest = int(image[:, image.shape[1] // 2].argmax())
    ticks = dict(zip((t.get_text() for t in mel.get_yticklabels()), mel.get_yticks(), strict=True))
    assert loudest + 0.5 == pytest.approx(ticks["2"], abs=1.5)
    assert mel.images[0].get_extent()[1] == pytest.approx(1.0)
    assert {"a tone", "amplitude", "time (s)", "frequency (kHz)", "log magnitude"} <= set(text_in(figure).split("\n"))
    assert wave.get_ylim()[1] == pytest.approx(0.55, abs=0.01)


def test_silence_can_be_drawn() -> None:
    assert len(plots.plot_mel_and_wave(np.zeros(RATE, np.float32), RATE)._repr_png_()) > 1000


def test_parts_are_drawn_to_size(engine: FishSpeech) -> None:
    checkpoint = engine.checkpoint
    models = {"small": count_parts(checkpoint.config, checkpoint.codec_config), "1.5": official_parts()}
    figure = plots.plot_parts(models)
    stored, read = figure.axes
    widths = [bar.get_width() for container in stored.containers for bar in container]
    assert widths == pytest.approx([p.parameters * 2 / 1e6 for parts in models.values() for p in parts])
    drawn = text_in(figure)
    assert "Stored, two bytes per weight" in drawn and "1,571 MB" in drawn and "small" in drawn
    assert max(bar.get_width() for bar in read.containers[1]) == pytest.approx(837, abs=1)


def test_stages_fill_the_whole_time() -> None:
    figure = plots.plot_stages(TIMINGS)
    bars = [bar for container in figure.axes[0].containers for bar in container]
    taken = [bar for bar in bars if bar.get_y() > 0.5]
    assert sum(bar.get_width() for bar in taken) == pytest.approx(TIMINGS.total)
    assert "Real-time factor 0.40" in text_in(figure) and "first audio 200 ms" in text_in(figure)


def test_distributions_say_how_much_is_left() -> None:
    p = np.array([0.5, 0.3, 0.2, 0.0])
    figure = plots.plot_distribution({"all": p, "one": np.eye(4)[0]}, likeliest=4)
    assert [bar.get_height() for bar in figure.axes[0].patches] == pytest.approx(p)
    assert "all\n3 can be drawn" in text_in(figure) and "one\n1 can be drawn" in text_in(figure)


def test_rope_rounding_names_the_largest_error() -> None:
    exact = np.cos(np.outer(np.arange(50), [1.0, 0.1]))
    figure = plots.plot_rope_rounding(exact, exact + np.eye(50, 2) * 0.0031)
    assert "largest difference 0.0031" in text_in(figure)
