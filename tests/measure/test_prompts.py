"""The fixed prompts: enough kinds, short enough, and never seen in training or evaluation."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from fstrt_helpers.measure.prompts import PROMPTS
from fstrt_helpers.text.clean import clean_text
from fstrt_helpers.text.split import split_text

DATA = Path(__file__).resolve().parents[2] / "data"


def words(text: str) -> list[str]:
    return "".join(c if c.isalpha() or c == " " else " " for c in clean_text(text).lower()).split()


def runs(text: str, length: int = 5) -> set[tuple[str, ...]]:
    said = words(text)
    return {tuple(said[i : i + length]) for i in range(len(said) - length + 1)}


def test_twenty_prompts_of_five_kinds_in_turn():
    assert len({p.text for p in PROMPTS}) == 20
    assert Counter(p.kind for p in PROMPTS) == dict.fromkeys(("short", "question", "number", "everyday", "long"), 4)
    assert all(len({p.kind for p in PROMPTS[i : i + 5]}) == 5 for i in range(0, 20, 5))
    assert all(p.text.endswith("?") for p in PROMPTS if p.kind == "question")
    assert all(any(c.isdigit() for c in p.text) for p in PROMPTS if p.kind == "number")


def test_each_is_spoken_in_one_piece_without_digits():
    for prompt in PROMPTS:
        (piece,) = split_text(clean_text(prompt.text))
        assert not any(c.isdigit() for c in piece)


def test_no_run_of_five_words_is_in_the_evaluation_or_in_a_reference_voice():
    held_out = (DATA / "tiny" / "heldout.txt").read_text(encoding="utf-8").splitlines()
    voices = [v["text"] for v in json.loads((DATA / "voices" / "voices.json").read_text(encoding="utf-8")).values()]
    assert len(held_out) == 50 and len(voices) == 2
    known = set().union(*map(runs, [*held_out, *voices]))
    sentences = {tuple(words(text)) for text in [*held_out, *voices]}
    for prompt in PROMPTS:
        assert not runs(prompt.text) & known
        assert tuple(words(prompt.text)) not in sentences


def test_no_template_of_the_training_text_can_say_one():
    sys.path.insert(0, str(DATA / "tiny"))
    try:
        from templates import SHORT, TEMPLATES, can_say
    finally:
        sys.path.remove(str(DATA / "tiny"))
    assert any(can_say(t, "my mother smiled") for t in TEMPLATES)  # it can find what it should
    for prompt in PROMPTS:
        plain = " ".join(words(prompt.text))
        assert plain not in {" ".join(words(text)) for text in SHORT}
        assert not [t for t in TEMPLATES if can_say(t, plain)], prompt.text
