"""The lines that the training voices speak: WordNet's examples and definitions, templates, numbers, frequent words.

    python data/tiny/corpus.py --out outputs/tiny/corpus.txt.gz

Needs Debian's ``wordnet-base`` and the packages ``wordfreq`` and ``num2words``. The order and the choice follow from
the seed alone. A line that shares a sentence, a template or any run of five words with ``heldout.txt`` is dropped.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from templates import SHORT, SLOTS, TEMPLATES, can_say, expand, template_pattern

__all__ = ["build_corpus", "held_out", "plain_words", "word_runs"]

HERE = Path(__file__).resolve().parent
WORDNET = Path("/usr/share/wordnet")
MAX_BYTES = 200  # the pipeline splits text into chunks of at most so many bytes
RUN = 5


def held_out() -> list[str]:
    """The test sentences, one a line."""
    return (HERE / "heldout.txt").read_text(encoding="utf-8").split("\n")[:-1]


def plain_words(text: str) -> list[str]:
    """Lower-case words without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def word_runs(text: str) -> set[tuple[str, ...]]:
    """Every run of five words in a row; a shorter text is one run."""
    words = plain_words(text)
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def _speakable(text: str, known: set[str], low: int = 2, high: int = 22) -> bool:
    words = re.findall(r"[A-Za-z']+", text)
    if (
        not low <= len(words) <= high
        or len(text) > MAX_BYTES
        or not text.isascii()
        or re.search(r"[^A-Za-z ,.?!'\-;]", text)
    ):
        return False
    return all(word.lower() in known for word in words) and not re.search(r"\b[A-Z]{2,}\b", text)


def wordnet_lines(known: set[str]) -> Iterator[tuple[str, str]]:
    """Yields ``(kind, line)`` for each example sentence and each definition made of plain words."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (WORDNET / f"data.{part}").read_text(encoding="latin-1").splitlines():
            if line.startswith("  ") or "| " not in line:
                continue
            head, gloss = line.split("| ", 1)
            word = head.split()[4].split("(")[0].replace("_", " ")
            examples = re.findall(r'"([^"]+)"', gloss)
            definition = re.sub(r"\([^)]*\)", " ", re.sub(r'"[^"]*"?', "", gloss))
            definition = re.sub(r"\s+", " ", definition).strip(" ;:-")
            for example in examples:
                text = re.sub(r"\s+", " ", example).strip(" ;:,")
                if _speakable(text, known):
                    yield "example", _sentence(text)
            for piece in definition.split(";"):
                if _speakable(piece.strip(), known, 3, 14):
                    yield "definition", _sentence(piece.strip())
                    if _speakable(word, known, 1, 3):
                        joint = {"noun": "is", "verb": "means to", "adj": "means", "adv": "means"}[part]
                        yield "defined", _sentence(f"{word} {joint} {piece.strip()}")


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def number_lines(rng: random.Random, count: int) -> Iterator[str]:
    """Spelled numbers, ordinals, years and amounts, alone and in short sentences."""
    from num2words import num2words

    frames = ["{}.", "I counted {}.", "The number is {}.", "There were {} people.", "It costs {} dollars.", "Page {}.",
              "She is {} years old.", "We drove {} miles.", "Room {}.", "He scored {} points.", "About {} percent."]  # fmt: skip
    for _ in range(count):
        kind = rng.random()
        value = int(10 ** rng.uniform(0, rng.choice([2, 3, 4, 6])))
        if kind < 0.6:
            text = rng.choice(frames).format(num2words(value))
        elif kind < 0.75:
            text = f"The {num2words(rng.randint(1, 31), to='ordinal')} of {rng.choice(SLOTS['month'])}."
        elif kind < 0.9:
            text = f"In {num2words(rng.randint(1700, 2030), to='year')}, {expand('{people} {past}.', rng).lower()}"
        else:
            text = f"{num2words(value)} dollars and {num2words(rng.randint(1, 99))} cents."
        yield _sentence(text.replace(" and ", rng.choice([" and ", " "])))


def frequent_word_lines(rng: random.Random, words: list[str], count: int) -> Iterator[str]:
    """Lists of frequent words: every word of the top of the list is heard in many surroundings."""
    weights = [1 / (rank + 30) ** 0.7 for rank in range(len(words))]
    for _ in range(count):
        size = rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8])
        chosen = rng.choices(words, weights, k=size)
        text = rng.choice([" ", " ", ", "]).join(chosen)
        yield _sentence(text) if rng.random() < 0.8 else text


def template_lines(rng: random.Random, count: int, held: Iterable[str]) -> tuple[list[str], int]:
    """Filled templates; a template that could say a test sentence is left out. Returns lines and templates dropped."""
    flat = [" ".join(plain_words(text)) for text in held]
    lines: list[str] = []
    patterns = {t: template_pattern(t) for t in TEMPLATES}
    literal = {t for t in TEMPLATES if len(plain_words(re.sub(r"\{\w+\}", "", t))) >= 2}
    dropped = {t for t in literal if any(patterns[t].fullmatch(text) for text in flat)}
    dropped |= {t for t in TEMPLATES if any(can_say(t, text) for text in flat)}
    kept = [t for t in TEMPLATES if t not in dropped]
    while len(lines) < count:
        if rng.random() < 0.04:
            lines.append(rng.choice(SHORT))
            continue
        line = expand(rng.choice(kept), rng)
        if len(line) <= MAX_BYTES:
            lines.append(line)
    return lines, len(dropped)


def joined_lines(rng: random.Random, lines: list[str], count: int) -> Iterator[str]:
    """Two to six sentences in a row, up to the longest chunk the pipeline makes."""
    for _ in range(count):
        target = rng.choice([80, 110, 140, 170, MAX_BYTES])
        text = rng.choice(lines)
        for _ in range(8):
            piece = rng.choice(lines)
            if len(text) + 1 + len(piece) <= target:
                text += " " + piece
        yield text


def build_corpus(seed: int = 1) -> tuple[list[str], dict[str, int]]:
    """Builds the shuffled corpus.

    Returns:
        The lines, none twice, and counts per kind plus what the check against the test sentences dropped.
    """
    from wordfreq import top_n_list

    rng = random.Random(seed)
    held = held_out()
    known = {w for w in top_n_list("en", 40_000) if re.fullmatch(r"[a-z']+", w)}
    frequent = [w for w in top_n_list("en", 14_000) if re.fullmatch(r"[a-z]{2,}", w) or w in ("a", "i")]
    groups: dict[str, list[str]] = {"example": [], "definition": [], "defined": []}
    for kind, line in wordnet_lines(known):
        groups[kind].append(line)
    groups["defined"] = rng.sample(groups["defined"], min(25_000, len(groups["defined"])))
    groups["template"], dropped_templates = template_lines(rng, 130_000, held)
    groups["number"] = list(number_lines(rng, 9_000))
    groups["frequent"] = list(frequent_word_lines(rng, frequent, 32_000))
    pool = groups["example"] * 2 + groups["template"]
    groups["joined"] = list(joined_lines(rng, pool, 26_000))

    forbidden = set().union(*(word_runs(text) for text in held))
    counts: Counter[str] = Counter(templates_dropped=dropped_templates)
    seen: set[str] = set()
    kept: list[str] = []
    for kind, lines in groups.items():
        for line in lines:
            if line in seen:
                continue
            seen.add(line)
            if word_runs(line) & forbidden:
                counts["dropped_for_test"] += 1
                continue
            counts[kind] += 1
            kept.append(line)
    rng.shuffle(kept)
    counts["total"] = len(kept)
    counts["shared_with_test"] = sum(bool(word_runs(line) & forbidden) for line in kept)
    return kept, dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny/corpus.txt.gz"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    lines, counts = build_corpus(args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    print(counts, f"{sum(map(len, lines)) / len(lines):.1f} characters a line")


if __name__ == "__main__":
    main()
