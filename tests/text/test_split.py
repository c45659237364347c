"""Splitting: not a character lost, every piece bounded and speakable, cuts where they sound best."""

from __future__ import annotations

import random
import time

import pytest

from fstrt_helpers.errors import ParameterError, TextError
from fstrt_helpers.text.clean import clean_text, is_speakable
from fstrt_helpers.text.split import split_text


def check(text: str, max_bytes: int) -> list[str]:
    pieces = split_text(text, max_bytes)
    assert "".join(pieces) == text
    for piece in pieces:
        assert len(piece.encode()) <= max_bytes, piece
        assert any(map(is_speakable, piece)), piece
    return pieces


@pytest.mark.parametrize("max_bytes", [32, 50, 200])
def test_random_text(max_bytes: int) -> None:
    rng = random.Random(max_bytes)
    alphabet = "abc deé中ก็ß🙂.,!?;()-\"' \n0123456789$%:\u0301\u200d…—。，"
    pieces = 0
    for _ in range(600):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(2, 500)))
        try:
            cleaned = clean_text(text)
        except TextError:
            continue
        pieces += len(check(cleaned, max_bytes))
    assert pieces > 600


def test_short_text_is_one_piece() -> None:
    assert split_text("One. Two. Three.") == ["One. Two. Three."]


def test_sentences_come_first() -> None:
    sentences = [
        "The first one, it has a comma. ",
        "The second one is here! ",
        "And is this the third, or not? ",
        "Yes.",
    ]
    pieces = check("".join(sentences), 60)
    assert all(piece.rstrip()[-1] in ".!?" for piece in pieces)


def test_then_clauses() -> None:
    text = (
        "This is a sentence with commas only, and no full stop, and no exclamation mark, and no question mark at all."
    )
    assert check(text, 50) == [
        "This is a sentence with commas only, ",
        "and no full stop, and no exclamation mark, ",
        "and no question mark at all.",
    ]


def test_then_words() -> None:
    pieces = check("word " * 100 + "end", 64)
    assert all(piece.endswith(" ") for piece in pieces[:-1])


def test_then_anywhere() -> None:
    assert {len(piece) for piece in check("a" * 5000, 200)} == {200}


def test_no_full_stop_inside_numbers_and_abbreviations() -> None:
    pieces = check("Dr. Smith met J. R. Jones at the U.S. embassy at 3.14 Main Road. They spoke, e.g. of Mr. Fox.", 66)
    assert pieces == [
        "Dr. Smith met J. R. Jones at the U.S. embassy at 3.14 Main Road. ",
        "They spoke, e.g. of Mr. Fox.",
    ]


def test_chinese_without_spaces() -> None:
    assert check("这是一段很长的中文文本,而且没有句号，也没有感叹号,也没有问号,也没有换行符。", 50) == [
        "这是一段很长的中文文本,",
        "而且没有句号，也没有感叹号,",
        "也没有问号,也没有换行符。",
    ]


def test_marks_stay_with_their_letter() -> None:
    for piece in check("ก็" * 200, 32):
        assert piece[0] == "ก"


def test_pieces_are_even() -> None:
    pieces = check("The quick brown fox jumps over the lazy dog. " * 9, 200)
    assert len(pieces) == 3 and len({len(piece) for piece in pieces}) == 1


def test_punctuation_is_never_alone() -> None:
    text = "word " * 12 + "( ( ( ( ( ( ( ( ( ( ( ( ( ( ("
    pieces = check(text, 64)
    assert len(pieces) == 2


def test_a_run_of_marks_longer_than_a_piece_stays_with_a_word() -> None:
    text = "a" + "-=" * 100 + "b"
    pieces = split_text(text, 32)
    assert "".join(pieces) == text
    assert all(any(map(is_speakable, piece)) for piece in pieces)


def test_marks_before_the_first_word_go_with_it() -> None:
    text = "(-" * 150 + "word and more words here. " * 20
    pieces = split_text(text, 200)
    assert "".join(pieces) == text
    assert len(pieces) >= 4 and all(len(piece) <= 200 for piece in pieces[1:])


def test_five_thousand_characters_are_quick() -> None:
    start = time.perf_counter()
    for text in ("a" * 5000, "word " * 1000, "One two three. " * 334):
        check(text, 200)
    marks = "a" + "- " * 20_000 + "b"
    assert "".join(split_text(marks)) == marks
    assert time.perf_counter() - start < 10


def test_bad_arguments() -> None:
    with pytest.raises(ParameterError, match="at least 32"):
        split_text("hello", 10)
    for text in ("", " ", "?!"):
        with pytest.raises(TextError):
            split_text(text)
