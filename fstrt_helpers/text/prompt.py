"""The prompt: a matrix of ids whose columns are tokens and whose rows are the token and its codes.

Row 0 is the token; rows 1 to 8 are the codes of the eight codebooks, zero wherever the token is text. The layout is
that of v1.5.1 (`generate_long` and `Conversation` there), turn by turn:

    <|im_start|>system\\nSpeak out the provided text.<|im_end|>          only before reference turns
    <|im_start|>user\\n{reference text}<|im_end|>                        one pair of turns per reference
    <|im_start|>assistant\\n<|voice|>{reference codes}<|im_end|>
    <|im_start|>user\\n{text}<|im_end|>
    <|im_start|>assistant\\n<|voice|>                                    the model continues from here

Nothing stands between turns, and every part is tokenised by itself, so no merge crosses from a role line into the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ParameterError, TextError
from .tokenizer import IM_END, IM_START, VOICE, Tokenizer

__all__ = ["SYSTEM_TEXT", "build_prompt"]

SYSTEM_TEXT = "Speak out the provided text."


def build_prompt(
    tokenizer: Tokenizer,
    text: str,
    references: Sequence[tuple[str, Any]] = (),
    num_codebooks: int = 8,
    *,
    system: bool | None = None,
) -> npt.NDArray[np.int64]:
    """Build the prompt matrix for one piece of text.

    Text is used as it is given (clean it first) and never read for special tokens: `<|im_end|>` typed by a user stays
    ordinary text.

    Args:
        tokenizer: The checkpoint's tokenizer.
        text: The text to speak.
        references: Pairs of text and codes of what was said before: reference voices, or earlier chunks of the same
            speech. Codes are integers `[num_codebooks, T]`, as an array or tensor.
        num_codebooks: Number of codebooks (8 in 1.5).
        system: Whether the system turn stands first. `None` does what 1.5 does: only when there are references.

    Returns:
        Ids `[1 + num_codebooks, S]`, int64.

    Raises:
        TextError: If a text is not a string or is empty.
        ParameterError: If codes have the wrong shape, type or range.
    """
    columns: list[npt.NDArray[np.int64]] = []

    def add_ids(ids: Sequence[int]) -> None:
        block = np.zeros((1 + num_codebooks, len(ids)), dtype=np.int64)
        block[0] = ids
        columns.append(block)

    def add_control(text: str) -> None:
        add_ids(tokenizer.encode(text, allow_special=True))

    def add_turn_of_user(text: str) -> None:
        if isinstance(text, str) and not text.strip():
            raise TextError("a turn of the prompt has no text", where=repr(text)[:60], fix="give every turn its words")
        add_control(f"{IM_START}user\n")
        add_ids(tokenizer.encode(text))
        add_control(IM_END)

    if system or (system is None and len(references) > 0):
        add_control(f"{IM_START}system\n")
        add_ids(tokenizer.encode(SYSTEM_TEXT))
        add_control(IM_END)
    for number, (reference_text, codes) in enumerate(references):
        add_turn_of_user(reference_text)
        add_control(f"{IM_START}assistant\n")
        add_control(VOICE)
        columns.append(_code_columns(codes, tokenizer, num_codebooks, number))
        add_control(IM_END)
    add_turn_of_user(text)
    add_control(f"{IM_START}assistant\n")
    add_control(VOICE)
    return np.concatenate(columns, axis=1)


def _code_columns(codes: Any, tokenizer: Tokenizer, num_codebooks: int, number: int) -> npt.NDArray[np.int64]:
    """Return columns `[1 + num_codebooks, T]`: the semantic token of code 0, then the codes."""
    where = f"codes of reference {number}"
    array = np.asarray(codes.detach().cpu() if hasattr(codes, "detach") else codes)
    if array.ndim != 2 or array.shape[0] != num_codebooks or array.shape[1] == 0:
        raise ParameterError(
            f"codes must be [{num_codebooks}, T] with T >= 1, got {list(array.shape)}",
            where=where,
            fix="pass the codes of one voice as `encode_voice` returns them",
        )
    if array.dtype.kind not in "iu":
        raise ParameterError(
            f"codes must be integers, got {array.dtype}", where=where, fix="keep codes as integers, do not scale them"
        )
    size = tokenizer.semantic_end_id - tokenizer.semantic_begin_id + 1
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= size:
        raise ParameterError(
            f"codes must lie in 0..{size - 1}, got {low}..{high}", where=where, fix="use codes of the same codec"
        )
    array = array.astype(np.int64)
    return np.concatenate([array[:1] + tokenizer.semantic_begin_id, array])
