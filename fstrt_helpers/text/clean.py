"""Bring text into the form the model speaks best: plain punctuation, no symbols without a sound, numbers as words."""

from __future__ import annotations

import re
import unicodedata

from ..errors import TextError
from .numbers import spell_numbers

__all__ = ["clean_text", "is_english", "is_speakable"]

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′`´", "'"),
        **dict.fromkeys("“”„‟″«»", '"'),
        **dict.fromkeys("‐‑⁃", "-"),
        "…": "...",
        "\u00ad": None,  # soft hyphen
    }
)
_EMOJI = re.compile(
    "["
    "\U0001f000-\U0001faff"  # pictographs, faces, transport, flags, skin tones
    "\U000e0000-\U000e007f"  # tags inside flags
    "\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u2500-\u27bf\u2900-\u297f\u2b00-\u2bff"  # arrows, boxes, dingbats
    "\u20e3\ufe00-\ufe0f"  # keycap, variation selectors
    "\u00a9\u00ae\u2117\u2120\u2122"  # copyright, trade mark
    "]+"
)
_CJK_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO")
_JOINERS = "\u200c\u200d"  # they shape letters in Persian and Indic scripts
_SYMBOLS = (  # spoken in English text only, after the numbers
    (re.compile(r"(?:\s*&)+\s*"), " and "),
    (re.compile(r"(?:\s*%)+"), " percent"),
    (re.compile(r"(?:\s*°)+"), " degrees"),
    (re.compile(r"(?:\s*@)+\s*(?=\w)"), " at "),
)
_GROUPED = re.compile(r"(?<!\d)\d{1,3}(?:(?:[\u00a0\u2009\u202f]\d{3})+| (?:\d{3} )*000)(?!\d)")  # 10 000
_STRENGTH = ",:;.!?"


def is_speakable(char: str) -> bool:
    """Tell whether a character is a letter or a digit of any script."""
    return unicodedata.category(char)[0] in "LN"


def is_english(text: str) -> bool:
    """Tell whether numbers in the text should be read in English.

    True if no letter is Chinese, Japanese or Korean and at least half of the letters are Latin. Text without letters
    counts as English. Other languages in Latin script are not told apart: write their numbers as words.

    Args:
        text: Any text.

    Returns:
        Whether to read numbers in English.
    """
    names = [unicodedata.name(char, "") for char in text if unicodedata.category(char)[0] == "L"]
    if any(name.startswith(_CJK_NAMES) for name in names):
        return False
    return 2 * sum("LATIN" in name for name in names) >= len(names)


def clean_text(text: str) -> str:
    """Clean text for the model.

    Typographic quotes and hyphens become ASCII, long dashes a comma; emoji, control and other invisible characters go;
    repeated punctuation and white space collapse to one. In English text (see `is_english`) numbers, times, money,
    percentages, ordinals and years become words. Cleaning cleaned text changes nothing.

    Args:
        text: What the user typed.

    Returns:
        One line of text with at least one letter or digit.

    Raises:
        TextError: If `text` is no string, or nothing that can be spoken is left.
    """
    if not isinstance(text, str):
        fix = "decode it first: `text.decode('utf-8')`" if isinstance(text, bytes) else "pass a str"
        raise TextError(f"text must be str, got {type(text).__name__}", where=_shorten(text), fix=fix)
    cleaned = unicodedata.normalize("NFC", text).translate(_PLAIN)
    cleaned = _EMOJI.sub(" ", cleaned)
    english = is_english(cleaned)
    if english:
        cleaned = _GROUPED.sub(lambda match: re.sub(r"\s", "", match[0]), cleaned)
    lines = [line.strip() for line in re.split(r"\r\n|\r|\n", cleaned)]
    cleaned = re.sub(r"\n{2,}", "\n\n", "\n".join(lines))
    cleaned = re.sub(r"(?<=\w)\n\n", ". ", cleaned)  # a heading or paragraph without its full stop
    cleaned = re.sub(r"\n+[-*•]\s", ", ", cleaned)  # a list
    cleaned = re.sub(r"\s+", " ", _drop_invisible(cleaned))
    if english:
        cleaned = _ellipsis(cleaned)
        cleaned = spell_numbers(cleaned)
        for pattern, words in _SYMBOLS:
            cleaned = pattern.sub(words, cleaned)
    cleaned = _collapse(cleaned, english)
    if not any(map(is_speakable, cleaned)):
        raise TextError(
            "nothing in the text can be spoken: no letter or digit is left after cleaning",
            where=_shorten(text),
            fix="give a text with words",
        )
    return cleaned


def _drop_invisible(text: str) -> str:
    kept = []
    for index, char in enumerate(text):
        category = unicodedata.category(char)
        if category in ("Zs", "Zl", "Zp") or char in "\t\n\v\f\r":
            kept.append(" ")
        elif category[0] != "C":
            kept.append(char)
        elif char in _JOINERS and 0 < index < len(text) - 1:
            neighbours = (unicodedata.category(text[index - 1])[0], unicodedata.category(text[index + 1])[0])
            if all(kind in "LM" for kind in neighbours):
                kept.append(char)
    return "".join(kept)


def _ellipsis(text: str) -> str:
    """Read `...` as a pause: a comma inside a sentence, a full stop at its end."""
    text = re.sub(r"\s*\.{2,}(?=\s*[a-z])", ", ", text)
    return re.sub(r"\s*\.{2,}", ". ", text)


def _collapse(text: str, english: bool) -> str:
    previous = None
    while text != previous:  # one step may bring two marks together
        previous = text
        if english:
            text = _ellipsis(text)
        text = re.sub(r"\s*(?:[—―⸺⸻]|(?<!\d)–|–(?!\d)|-{2,})\s*", ", ", text)
        text = re.sub(r"(\W)\1{2,}", r"\1", text)
        text = re.sub(r"([。！？，、；：、・])\1+", r"\1", text)
        text = re.sub(r"[,:;.!?](?:\s*[,:;.!?])+(?!\w)", lambda m: max(m[0], key=_STRENGTH.find), text)
        text = re.sub(r"\s+", " ", text).strip()
        text = re.sub(r"\s+(?=[,:;.!?](?:\s|$)|[)\]])|(?<=[(\[])\s+", "", text)
        text = unicodedata.normalize("NFC", text)
        text = re.sub(r"^(?:[,:;.!?]+(?!\d)|-(?=\s))\s*", "", text)
    return text


def _shorten(value: object, limit: int = 60) -> str:
    shown = repr(value[: limit + 1]) if isinstance(value, (str, bytes)) else repr(value)
    return shown if len(shown) <= limit else f"{shown[:limit]}..."
