"""Twenty everyday sentences that the quality gate lets both sides speak; none was trained or evaluated on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROMPTS", "Prompt"]


@dataclass(frozen=True)
class Prompt:
    """A sentence to speak.

    Attributes:
        text: At most 200 bytes once cleaned, so that it is spoken in one piece.
        kind: ``short``, ``question``, ``number``, ``everyday`` or ``long``.
    """

    text: str
    kind: str = "everyday"


# One of each kind in every five, so that the first five are a fair small choice. Numbers are where speech models loop
# and long sentences are where errors in the KV cache pile up, so a precision that fails tends to fail there first.
PROMPTS: tuple[Prompt, ...] = (
    Prompt("Please come in.", "short"),
    Prompt("Where did you put the scissors yesterday evening?", "question"),
    Prompt("The museum opens at 10 and has 36 rooms.", "number"),
    Prompt("The kettle began to whistle just as the lights went off.", "everyday"),
    Prompt(
        "After the concert we walked along the harbor, bought two paper bags of hot chestnuts, and talked about the "
        "summer until the last ferry had gone.",
        "long",
    ),
    Prompt("Thanks a lot!", "short"),
    Prompt("Would you rather sit near the window or close to the stage?", "question"),
    Prompt("She ran 12 miles on Saturday and 8 more on Monday.", "number"),
    Prompt("Somebody has painted a bright yellow fish on the garage.", "everyday"),
    Prompt(
        "When the carpenter had finished the staircase, he swept the floor, packed his tools into the van, and left "
        "without asking for the money.",
        "long",
    ),
    Prompt("It is snowing.", "short"),
    Prompt("How many spoons do we need for the picnic on the hill?", "question"),
    Prompt("In 1998 the village had only 250 people.", "number"),
    Prompt("My aunt keeps three noisy parrots in her tiny kitchen.", "everyday"),
    Prompt(
        "The recipe says to stir the sauce slowly, but I was in a hurry, turned up the heat, and burned the bottom of "
        "the pan before anyone arrived.",
        "long",
    ),
    Prompt("Not so fast.", "short"),
    Prompt("Has the plumber already called about the leaking pipe?", "question"),
    Prompt("Take 2 tablets with 1 glass of water after lunch.", "number"),
    Prompt("A thick fog hid the far side of the valley this morning.", "everyday"),
    Prompt(
        "If you follow this path past the old mill and cross the second bridge, you will see a stone cottage with a "
        "crooked chimney on your left.",
        "long",
    ),
)
