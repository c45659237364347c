"""Cleaning: what stays, what goes, and what is refused."""

from __future__ import annotations

import random
import time
import unicodedata

import pytest

from fstrt_helpers.errors import TextError
from fstrt_helpers.text.clean import clean_text, is_english, is_speakable

CLEANED = {
    "  Hello,\n\tworld.  ": "Hello, world.",
    "“It’s ‘fine’” — he said…": "\"It's 'fine'\", he said.",
    "Wait... what?": "Wait, what?",
    "No.... Yes!!! Really?!?!": "No. Yes! Really?",
    "a  ,, b ;; c": "a, b; c",
    "well -- maybe": "well, maybe",
    "?????no": "no",
    "He\x00l\x07lo\u200b wo\u202erld\ufeff": "Hello world",
    "👋🏽 Hi 👨‍👩‍👧 there ❤️ 🇩🇪!": "Hi there!",
    "soft\u00adhyphen": "softhyphen",
    "non\u00a0breaking\u2009space": "non breaking space",
    "e\u0301te\u0301": "été",
    "rock & roll @ home": "rock and roll at home",
    "etc., and (so on...)": "etc. and (so on.)",
    "Title\n\nFirst line.\n- one\n- two": "Title. First line., one, two".replace("., ", ". "),
    "\ud800lone": "lone",
    "<|im_end|>": "<|im_end|>",
    "你好，今天是2024年。。。花了 $5！！！": "你好，今天是2024年。花了 $5！",
    "Ещё 3 года": "Ещё 3 года",
    "می\u200cخواهم": "می\u200cخواهم",
}


@pytest.mark.parametrize("text", CLEANED)
def test_cleaned(text: str) -> None:
    assert clean_text(text) == CLEANED[text]


@pytest.mark.parametrize(
    "text", ["", "  \n\t ", "?!...", "—–-", "👋🏽❤️", "\x00\x01\x1f", "\u200b\ufeff", "()[]\"'", "©®™"]
)
def test_nothing_to_speak(text: str) -> None:
    with pytest.raises(TextError, match="no letter or digit") as caught:
        clean_text(text)
    assert repr(text)[:20] in str(caught.value)


@pytest.mark.parametrize("value", [b"hello", bytearray(b"hi"), None, 5, ["hello"]])
def test_not_text(value: object) -> None:
    with pytest.raises(TextError, match=f"must be str, got {type(value).__name__}"):
        clean_text(value)  # type: ignore[arg-type]


def test_long_refused_text_is_shortened() -> None:
    with pytest.raises(TextError) as caught:
        clean_text("?" * 100_000)
    assert len(str(caught.value)) < 300


def test_five_thousand_characters_keep_their_words() -> None:
    text = "The quick brown fox, 3 of them!  " * 152
    assert len(text) > 5000
    assert clean_text(text) == ("The quick brown fox, three of them! " * 152).strip()


@pytest.mark.parametrize("filler", [" ", "\n", "\n ", "- ", ".", ",;", "& ", " %", "1,", "\u0301", "x\n\n- y"])
def test_long_repetition_is_quick(filler: str) -> None:
    start = time.perf_counter()
    clean_text("a" + filler * (50_000 // len(filler)) + "b")
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("hello", True),
        ("2024", True),
        ("naïve π", True),
        ("hello 你好", False),
        ("привет", False),
        ("안녕 abc def", False),
    ],
)
def test_is_english(text: str, english: bool) -> None:
    assert is_english(text) is english


def test_random_text() -> None:
    """Cleaning is idempotent, leaves nothing invisible, loses no letter, and refuses exactly what cannot be spoken."""
    rng = random.Random(2)
    alphabet = "abc XYZ é中ก็ß\u0301🙂👍🏽.,!?;:()-—–…\"'“’ \n\t0123456789$€%°½²:/\u200d\u200b\x00\u00ad&@#*_<|>=+x×"
    refused = 0
    for _ in range(3000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, rng.choice((4, 200)))))
        try:
            cleaned = clean_text(text)
        except TextError:
            refused += 1
            assert not any(map(is_speakable, text)), text
            continue
        assert clean_text(cleaned) == cleaned, text
        assert not any(unicodedata.category(char) in ("Cc", "Cs", "Co", "Cn") for char in cleaned)
        assert cleaned == cleaned.strip() and "  " not in cleaned
        kept = [char for char in unicodedata.normalize("NFD", cleaned) if char in "XYZ中ก"]
        assert kept == [char for char in text if char in "XYZ中ก"]
    assert 0 < refused < 1500
