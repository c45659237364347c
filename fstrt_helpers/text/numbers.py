"""English words for numbers, times, dates, money, percentages, ordinals and years.

A speech model that meets `1,234,567` or `10:05` has to guess how to read it, and Fish Speech is known to loop on digits
(fish-speech #866, #1087). The cardinal, ordinal and year words come from num2words; what it does not know (clock times,
telephone numbers, ranges, units) is decided here. Reading follows the order of `_RULES`: the most specific form first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from num2words import num2words

__all__ = ["spell_numbers"]

_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+"
_SCALE = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion"}
_SCALE_WORD = r"thousand|million|billion|trillion|bn|k|m|b"
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH = "(?:" + "|".join(_MONTHS) + "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)"
_CURRENCY = {  # sign: unit, units, hundredth, hundredths
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
}
_SIGN = "[" + re.escape("".join(_CURRENCY)) + "]"
_CODE_SIGN = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
_CODE = "|".join(_CODE_SIGN)
_UNITS = {  # after a number only
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "lbs": ("pound", "pounds"),
    "lb": ("pound", "pounds"),
    "ms": ("millisecond", "milliseconds"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "Hz": ("hertz", "hertz"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
}
_UNIT = "|".join(map(re.escape, _UNITS))
_FRACTION_NAMES = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 8: "eighth", 10: "tenth"}
_YEAR_BEFORE = (
    r"(?:in|since|until|till|by|before|after|from|during|around|circa|year|early|late|mid|summer of|winter of|"
    r"spring of|autumn of|fall of|" + _MONTH + r"(?:\s+\d{1,2}(?:st|nd|rd|th)?,?)?)"
)
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_MAX_DIGITS = 15  # longer numbers, and those that begin with zero, are read digit by digit


def _digits(text: str) -> str:
    return " ".join(_DIGITS[int(c)] for c in text if c.isdigit())


def _cardinal(text: str) -> str:
    """Words for an unsigned decimal number, with or without thousands separators."""
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > _MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
        words = _digits(whole)
    else:
        words = num2words(int(whole)).replace(",", "") if whole else ""
    if fraction:
        words = f"{words} point {_digits(fraction)}"
    return words.strip()


def _ordinal(text: str) -> str:
    digits = text.replace(",", "")
    return num2words(int(digits), to="ordinal").replace(",", "") if len(digits) <= _MAX_DIGITS else _digits(digits)


def _year(text: str) -> str:
    return num2words(int(text), to="year").replace(",", "").replace("oh-", "oh ")


def _plural(text: str, one: str, many: str) -> str:
    return one if text.replace(",", "") in ("1", "1.0") else many


def _time(match: re.Match[str]) -> str:
    hour, minute = int(match["hour"]), int(match["minute"])
    half = _half(match["half"])
    words = num2words(hour)
    if minute:
        words += f" oh {num2words(minute)}" if minute < 10 else f" {num2words(minute)}"
    elif not half:
        words = "midnight" if hour == 0 else f"{words} o'clock" if hour <= 12 else f"{words} hundred"
    if match["second"]:
        second = int(match["second"])
        words += f" and {num2words(second)} {'second' if second == 1 else 'seconds'}"
    return f"{words} {half}".strip()


def _half(text: str | None) -> str:
    return text.replace(".", "").replace(" ", "").upper() if text else ""


def _iso_date(match: re.Match[str]) -> str:
    month, day = int(match["month"]), int(match["day"])
    return f"{_MONTHS[month - 1]} {_ordinal(str(day))} {_year(match['year'])}"


def _money(match: re.Match[str]) -> str:
    groups = match.groupdict()
    sign = groups.get("sign") or _CODE_SIGN[groups["code"]]
    one, many, cent, cents = _CURRENCY[sign]
    amount, scale = match["amount"], groups.get("scale")
    if scale:
        return f"{_cardinal(amount)} {_SCALE.get(scale.lower(), scale)} {many}"
    whole, _, fraction = amount.replace(",", "").partition(".")
    if fraction and len(fraction) != 2:
        return f"{_cardinal(amount)} {many}"
    hundredths = int(fraction or 0)
    parts = []
    if int(whole or 0) or not hundredths:
        parts.append(f"{_cardinal(whole or '0')} {_plural(whole, one, many)}")
    if hundredths:
        parts.append(f"{num2words(hundredths)} {cent if hundredths == 1 else cents}")
    return " and ".join(parts)


def _fraction(match: re.Match[str]) -> str:
    top, bottom = int(match["top"]), int(match["bottom"])
    if 0 < top < bottom and bottom in _FRACTION_NAMES:
        name = _FRACTION_NAMES[bottom]
        if top == 1:
            return f"one {name}"
        return f"{num2words(top)} {'halves' if name == 'half' else name + 's'}"
    return f"{_cardinal(match['top'])} slash {_cardinal(match['bottom'])}"


def _slashes(match: re.Match[str]) -> str:
    """Read `12/25/2024` part by part: which number is the month differs between countries."""
    *parts, last = match[0].split("/")
    spoken_last = _year(last) if re.fullmatch(r"1\d{3}|20\d\d", last) else _cardinal(last)
    return " slash ".join([*map(_cardinal, parts), spoken_last])


def _decade(match: re.Match[str]) -> str:
    digits = match["digits"]
    words = _year(digits) if len(digits) == 4 else num2words(int(digits))
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def _phone(match: re.Match[str]) -> str:
    plus = "plus " if match[0].startswith("+") else ""
    return plus + ", ".join(_digits(group) for group in re.findall(r"\d+", match[0]))


def _version(match: re.Match[str]) -> str:
    return " point ".join(_cardinal(part) for part in match[0].split("."))


_Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]
_START = r"(?<![\d.,])"  # not in the middle of a longer number
_END = r"(?![\d])"
_HALF = r"[ap]\.?\s?m(?:\.(?!\s*$|\s+(?-i:[A-Z]))|\b)"  # "p.m." gives up its last full stop only inside a sentence
_RULES: tuple[_Rule, ...] = (
    (re.compile(_START + r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>0[1-9]|[12]\d|3[01])" + _END), _iso_date),
    (re.compile(r"(?<![\w.])(?:\+\d{1,3}[ -]?)?(?:\(\d{3}\)\s?|\d{3}[ -])?\d{3}-\d{4}(?![\w-])"), _phone),
    (re.compile(r"(?<![\w.])\+\d{1,3}(?:[ -]?\d{2,5}){2,5}(?![\w-])"), _phone),
    (re.compile(r"(?<=\d)\s?\u2212\s?(?=\d)"), lambda m: " minus "),
    (re.compile(rf"(?<![\w.,)%-])[-\u2212](?={_SIGN}?\.?\d)"), lambda m: "minus "),
    (
        re.compile(rf"(?<![\d-])(\d{{1,4}}(?:\.\d+)?%?)\s?[-\u2013]\s?(?={_SIGN}?\d{{1,4}}(?![\d-]))"),
        lambda m: f"{m[1]} to ",
    ),
    (re.compile(r"(?<=\d)\s?×\s?(?=\d)|(?<=\d)\s[xX*]\s(?=\d)"), lambda m: " times "),
    (re.compile(r"(?<=\d)\s?÷\s?(?=\d)"), lambda m: " divided by "),
    (re.compile(r"(?<=\d)\s?\+\s?(?=\d)"), lambda m: " plus "),
    (re.compile(r"(?<=\d)\s?=\s?(?=\d|minus )"), lambda m: " equals "),
    (re.compile(r"#\s?(?=\d)"), lambda m: "number "),
    (re.compile(r"(?<=\d),(?!\d{3}(?!\d))(?=\d)"), lambda m: ", "),
    (
        re.compile(
            r"(?<![\d.,:])(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?![\d:])"
            r"(?:\s?(?P<half>" + _HALF + r"))?",
            re.IGNORECASE,
        ),
        _time,
    ),
    (
        re.compile(_START + r"(?P<hour>1[0-2]|[1-9])\s?(?P<half>" + _HALF + ")", re.IGNORECASE),
        lambda m: f"{num2words(int(m['hour']))} {_half(m['half'])}",
    ),
    (re.compile(_START + r"\d+(?:\.\d+){2,}" + _END), _version),
    (re.compile(r"(?<=\d):(?=\d)"), lambda m: " to "),
    (
        re.compile(
            rf"(?<!\d)(?P<sign>{_SIGN})\s?(?P<amount>{_NUMBER}){_END}(?:\s?(?P<scale>{_SCALE_WORD})\b)?",
            re.IGNORECASE,
        ),
        _money,
    ),
    (re.compile(rf"{_START}(?P<amount>{_NUMBER})\s?(?P<sign>{_SIGN})(?!\d)"), _money),
    (re.compile(rf"{_START}(?P<amount>{_NUMBER})\s?(?P<code>{_CODE})\b"), _money),
    (re.compile(rf"\b(?P<code>{_CODE})\s?(?P<amount>{_NUMBER}){_END}"), _money),
    (re.compile(rf"{_START}({_NUMBER})\s?%"), lambda m: f"{_cardinal(m[1])} percent"),
    (
        re.compile(rf"{_START}({_NUMBER})\s?({_UNIT})(?![\w/])"),
        lambda m: f"{_cardinal(m[1])} {_plural(m[1], *_UNITS[m[2]])}",
    ),
    (re.compile(_START + r"(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)\b", re.IGNORECASE), lambda m: _ordinal(m[1])),
    (re.compile(r"(?<!\w)'?(?P<digits>(?:1[1-9]|20)\d0|[2-9]0)'?s\b"), _decade),
    (re.compile(r"(?<![\d/])\d+(?:/\d+){2,}(?![\d/])"), _slashes),
    (re.compile(_START + r"(?P<top>\d{1,4})/(?P<bottom>\d{1,4})(?![\d/])"), _fraction),
    (
        re.compile(rf"\b({_YEAR_BEFORE}[\s(]+)(1\d\d\d|20\d\d)(?![\d%]|[.,:]\d)", re.IGNORECASE),
        lambda m: m[1] + _year(m[2]),
    ),
    (re.compile(r"(?<![\w.,])(19\d\d|20\d\d)(?!\w|[.,:]\d)"), lambda m: _year(m[1])),
    (re.compile(rf"{_START}({_NUMBER})"), lambda m: _cardinal(m[1])),
    (re.compile(r"\d+"), lambda m: _cardinal(m[0])),
)

_VULGAR = re.compile(r"(\d)?([\u00bc-\u00be\u2150-\u215e])")


def spell_numbers(text: str) -> str:
    """Replace every number of an English text by words.

    Args:
        text: Text; digits of any script are read.

    Returns:
        The text without a digit. Words are separated from neighbouring letters by a space.
    """
    text = "".join(str(unicodedata.decimal(c)) if unicodedata.decimal(c, None) is not None else c for c in text)
    text = _VULGAR.sub(_vulgar, text.replace("\u00b2", " squared ").replace("\u00b3", " cubed "))
    text = "".join(f" {int(unicodedata.digit(c))} " if c.isdigit() and not c.isdecimal() else c for c in text)
    for pattern, speak in _RULES:
        text = pattern.sub(lambda match, speak=speak: _apart(match, speak(match)), text)
    return text


def _vulgar(match: re.Match[str]) -> str:
    top, bottom = unicodedata.normalize("NFKC", match[2]).split("\u2044")
    joint = f"{match[1]} and " if match[1] else ""
    return f"{joint}{top}/{bottom}"


def _apart(match: re.Match[str], words: str) -> str:
    if words.startswith(" ") or words.endswith(" "):  # an operator between two numbers, which are read later
        return words
    before, after = match.string[: match.start()][-1:], match.string[match.end() :][:1]
    return (" " if before.isalnum() else "") + words + (" " if after.isalnum() else "")
