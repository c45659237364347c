"""Numbers, times and money as English words."""

from __future__ import annotations

import random

import pytest

from fstrt_helpers.text.clean import clean_text
from fstrt_helpers.text.numbers import spell_numbers

SPOKEN = {
    # cardinals, separators, decimals, signs
    "0": "zero",
    "42 cats": "forty-two cats",
    "1,234,567": "one million two hundred and thirty-four thousand five hundred and sixty-seven",
    "1000000000": "one billion",
    "10 000 and 1 234 5": "ten thousand and one two hundred and thirty-four five",
    "3.14": "three point one four",
    ".5 litres": "point five litres",
    "0.50": "zero point five zero",
    "-7 and −8": "minus seven and minus eight",
    "007": "zero zero seven",
    "12345678901234567": "one two three four five six seven eight nine zero one two three four five six seven",
    "1,2,3": "one, two, three",
    # times
    "at 10:05": "at ten oh five",
    "10:30 p.m. today": "ten thirty PM today",
    "at 9:00": "at nine o'clock",
    "at 9:00 am.": "at nine AM.",
    "5pm": "five PM",
    "We met at 5 p.m. She left.": "We met at five PM. She left.",
    "14:00": "fourteen hundred",
    "00:00": "midnight",
    "7:08:01": "seven oh eight and one second",
    "5:30-6:15": "five thirty to six fifteen",
    # money
    "$5.50": "five dollars and fifty cents",
    "$1": "one dollar",
    "£0.01": "one penny",
    "-$3": "minus three dollars",
    "$3.5 million": "three point five million dollars",
    "$5k": "five thousand dollars",
    "€1,000.01": "one thousand euros and one cent",
    "5€ 20 USD": "five euros twenty dollars",
    "¥500": "five hundred yen",
    "$5-$10": "five dollars to ten dollars",
    # percent, ranges, arithmetic
    "50%": "fifty percent",
    "3.5 %": "three point five percent",
    "5–10%": "five to ten percent",
    "pages 5-10": "pages five to ten",
    "5 + 3 = 8": "five plus three equals eight",
    "6−2 and 4×3": "six minus two and four times three",
    "a 3:2 win": "a three to two win",
    "1/2 cup and 3/4": "one half cup and three quarters",
    "2½ cups": "two and one half cups",
    "24/7": "twenty-four slash seven",
    # ordinals, years, dates
    "1st, 22nd, 103rd": "first, twenty-second, one hundred and third",
    "in 1066": "in ten sixty-six",
    "2005 and 1999": "two thousand and five and nineteen ninety-nine",
    "1905": "nineteen oh five",
    "the 1990s and '80s": "the nineteen nineties and eighties",
    "1500 people": "one thousand five hundred people",
    "May 3rd, 1945": "May third, nineteen forty-five",
    "2024-12-01": "December first twenty twenty-four",
    "12/25/2024": "twelve slash twenty-five slash twenty twenty-four",
    # names, units, telephone
    "MP3 and H2O": "MP three and H two O",
    "Covid-19": "Covid-nineteen",
    "v1.5.1": "v one point five point one",
    "#5": "number five",
    "20°C, 30°": "twenty degrees Celsius, thirty degrees",
    "1 kg or 5km": "one kilogram or five kilometers",
    "call 555-1234": "call five five five, one two three four",
    "x²": "x squared",
    "١٢ and １２": "twelve and twelve",
}


@pytest.mark.parametrize("text", SPOKEN)
def test_spoken(text: str) -> None:
    assert clean_text(text) == SPOKEN[text]


def test_no_digit_is_left() -> None:
    rng = random.Random(1)
    alphabet = "0123456789" * 3 + " .,:-+/%$€£°'½²①٣ kmapst"
    for _ in range(3000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 40)))
        spoken = spell_numbers(text)
        assert not any(char.isdigit() for char in spoken), (text, spoken)


def test_every_number_up_to_ten_thousand_has_words() -> None:
    words = {number: spell_numbers(f"about {number} of them") for number in range(10_001)}
    assert len(set(words.values())) == 10_001
    assert all(value.replace("-", " ").replace(" ", "").isalpha() for value in words.values())


def test_each_minute_of_the_day_reads_differently() -> None:
    times = {spell_numbers(f"{hour:02}:{minute:02}") for hour in range(24) for minute in range(60)}
    assert len(times) == 24 * 60
