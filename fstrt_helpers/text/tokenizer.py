"""Text to token ids and back, from the tokenizer files of a checkpoint folder.

A Fish Speech 1.5 folder holds `tokenizer.tiktoken` (one `base64-token rank` pair a line) and usually
`special_tokens.json` (token to id). Older folders lack the second; then the special tokens of v1.5.1 follow directly
after the ordinary ones.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import tiktoken

from ..errors import CheckpointError, ParameterError, TextError

__all__ = [
    "IM_END",
    "IM_START",
    "SPLIT_PATTERN",
    "TOKENIZER_FILE",
    "SPECIAL_TOKENS_FILE",
    "VOICE",
    "Tokenizer",
    "default_special_tokens",
    "write_tokenizer_files",
]

TOKENIZER_FILE = "tokenizer.tiktoken"
SPECIAL_TOKENS_FILE = "special_tokens.json"

IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
VOICE = "<|voice|>"

# How 1.5 cuts text before merging bytes; the ids depend on every character of it. The sixth part reads `(\?!\S)`, which
# looks like a misspelt look-ahead, but the model was trained with it.
SPLIT_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"\p{P}",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(\?!\S)",
        r"\s+",
    )
)

# The 12 special tokens that stand before the semantic ones in v1.5.1.
_SPECIAL_BEFORE_SEMANTIC = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|pad|>",
    IM_START,
    IM_END,
    "<|placeholder:0|>",
    "<|placeholder:1|>",
    "<|placeholder:2|>",
    "<|placeholder:3|>",
    "<|text|>",
    VOICE,
    "<|interleave|>",
)
_SEMANTIC = re.compile(r"<\|semantic:(\d+)\|>")
_MAX_CHARS = 400_000  # tiktoken recurses over very long strings; upstream encodes in slices of this length
_FIX = "restore the file, or download Fish Speech 1.5: python -m fstrt_helpers.download --accept-license"


def default_special_tokens(codebook_size: int = 1024) -> tuple[str, ...]:
    """List the special tokens of v1.5.1 in order: 12 named ones, then `<|semantic:0|>` up to the last code.

    Args:
        codebook_size: Number of semantic tokens.

    Returns:
        The tokens in the order of their ids.
    """
    return (*_SPECIAL_BEFORE_SEMANTIC, *(f"<|semantic:{code}|>" for code in range(codebook_size)))


@dataclass(frozen=True, repr=False)
class Tokenizer:
    """Byte-pair tokenizer of a checkpoint.

    Attributes:
        encoding: The tiktoken encoding that does the merging.
        special: Special token to id.
        semantic_begin_id: Id of `<|semantic:0|>`; code `c` of codebook 0 is the token `semantic_begin_id + c`.
        semantic_end_id: Id of the last semantic token (inclusive).
        im_end_id: Id of `<|im_end|>`, the token that ends a turn and so the generation.
        vocab_size: Largest id plus one. A checkpoint's embedding may hold more rows than that, never fewer.
    """

    encoding: tiktoken.Encoding
    special: Mapping[str, int]
    semantic_begin_id: int
    semantic_end_id: int
    im_end_id: int
    vocab_size: int

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder.

        Args:
            folder: Folder with `tokenizer.tiktoken` and, optionally, `special_tokens.json`.

        Returns:
            The tokenizer.

        Raises:
            CheckpointError: If a file is missing, malformed, has gaps or duplicates, or lacks a token that the prompt
                needs.
        """
        folder = Path(folder)
        ranks, size = _read_ranks(folder / TOKENIZER_FILE)
        special_file = folder / SPECIAL_TOKENS_FILE
        if special_file.is_file():
            special = _read_special(special_file, size)
        else:
            special = {token: size + i for i, token in enumerate(default_special_tokens())}
        semantic = _check_special(special, size, special_file)
        return cls(
            encoding=tiktoken.Encoding(
                name=folder.name or "fish-speech",
                pat_str=SPLIT_PATTERN,
                mergeable_ranks=ranks,
                special_tokens=special,
            ),
            special=MappingProxyType(special),
            semantic_begin_id=semantic[0],
            semantic_end_id=semantic[-1],
            im_end_id=special[IM_END],
            vocab_size=max(special.values()) + 1,
        )

    def __repr__(self) -> str:
        return (
            f"Tokenizer(vocab_size={self.vocab_size}, special={len(self.special)}, "
            f"semantic={self.semantic_begin_id}..{self.semantic_end_id}, im_end={self.im_end_id})"
        )

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Turn text into token ids.

        Args:
            text: The text.
            allow_special: If true, `<|im_end|>` and its like become single ids. Leave it false for text that a user
                typed: the same characters are then ordinary text and cannot end a turn.

        Returns:
            Token ids.

        Raises:
            TextError: If `text` is not a string.
        """
        if not isinstance(text, str):
            raise TextError(f"text must be str, got {type(text).__name__}", where=repr(text)[:60], fix="pass a str")
        allowed = set(self.special) if allow_special else set()
        ids: list[int] = []
        for start in range(0, len(text), _MAX_CHARS):
            piece = text[start : start + _MAX_CHARS]
            ids += self.encoding.encode(piece, allowed_special=allowed, disallowed_special=())
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Turn token ids into text; bytes that are no valid UTF-8 become U+FFFD.

        Args:
            ids: Token ids.

        Returns:
            The text, special tokens spelled out.

        Raises:
            ParameterError: If an id is not in the vocabulary.
        """
        ids = [int(i) for i in ids]
        known = range(self.vocab_size)
        try:
            if all(i in known for i in ids):
                return self.encoding.decode(ids)
        except KeyError:
            pass  # an id below vocab_size that no token holds
        raise ParameterError(
            f"an id is not in the vocabulary 0..{self.vocab_size - 1}",
            where=str(ids[:20]),
            fix="decode only ids that this tokenizer produced",
        )


def write_tokenizer_files(
    folder: str | Path, tokens: Sequence[bytes], special: Sequence[str] = default_special_tokens()
) -> None:
    """Write `tokenizer.tiktoken` and `special_tokens.json` in the official layout.

    Args:
        folder: Folder that receives the two files; it must exist.
        tokens: Ordinary tokens; a token's rank is its position.
        special: Special tokens; their ids follow directly after the ordinary ones.
    """
    folder = Path(folder)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (folder / TOKENIZER_FILE).write_text("".join(lines), encoding="ascii")
    ids = {token: len(tokens) + i for i, token in enumerate(special)}
    (folder / SPECIAL_TOKENS_FILE).write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")


def _read_ranks(path: Path) -> tuple[dict[bytes, int], int]:
    """Return token to rank, and the number of ranks (an empty token holds a rank, but can never be produced)."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise CheckpointError("the tokenizer file is missing", where=path, fix=_FIX) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the tokenizer file cannot be read: {error}", where=path, fix=_FIX) from error
    ranks: dict[bytes, int] = {}
    lines_of_rank: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            encoded, rank_text = line.split()
            token, rank = base64.b64decode(encoded), int(rank_text)
        except (ValueError, binascii.Error) as error:
            raise CheckpointError(
                f"line {number} is not `base64-token rank`: {line[:60]!r}", where=path, fix=_FIX
            ) from error
        if token in ranks:
            raise CheckpointError(f"line {number} repeats the token {token!r}", where=path, fix=_FIX)
        if rank in lines_of_rank:
            raise CheckpointError(
                f"line {number} repeats the rank {rank} of line {lines_of_rank[rank]}", where=path, fix=_FIX
            )
        ranks[token] = rank
        lines_of_rank[rank] = number
    size = len(ranks)
    gaps = [rank for rank in range(size) if rank not in lines_of_rank]
    if gaps:
        raise CheckpointError(f"ranks must run from 0 to {size - 1}; {_some(gaps)} missing", where=path, fix=_FIX)
    missing_bytes = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing_bytes:
        raise CheckpointError(
            f"every single byte needs a token; byte {_some(missing_bytes)} missing", where=path, fix=_FIX
        )
    ranks.pop(b"", None)
    return ranks, size


def _read_special(path: Path, first_free: int) -> dict[str, int]:
    try:
        pairs = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=list)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise CheckpointError(f"the special tokens cannot be read: {error}", where=path, fix=_FIX) from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise CheckpointError("the special tokens must be one JSON object, token to id", where=path, fix=_FIX)
    special: dict[str, int] = {}
    for token, token_id in pairs:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise CheckpointError(f"the id of {token!r} must be an int, got {token_id!r}", where=path, fix=_FIX)
        if token in special:
            raise CheckpointError(f"{token!r} appears twice", where=path, fix=_FIX)
        if token_id < first_free:
            raise CheckpointError(
                f"{token!r} has the id {token_id}, which belongs to an ordinary token (0..{first_free - 1})",
                where=path,
                fix=_FIX,
            )
        special[token] = token_id
    return special


def _check_special(special: Mapping[str, int], size: int, path: Path) -> list[int]:
    """Return the ids of the semantic tokens in order of their codes."""
    owner: dict[int, str] = {}
    for token, token_id in special.items():
        if token_id in owner:
            raise CheckpointError(f"{owner[token_id]!r} and {token!r} share the id {token_id}", where=path, fix=_FIX)
        owner[token_id] = token
    absent = [token for token in (IM_START, IM_END, VOICE) if token not in special]
    if absent:
        raise CheckpointError(f"special tokens missing: {', '.join(absent)}", where=path, fix=_FIX)
    by_code = {int(m.group(1)): i for token, i in special.items() if (m := _SEMANTIC.fullmatch(token))}
    if not by_code:
        raise CheckpointError(
            "no semantic tokens (<|semantic:0|> ...): this is not a Fish Speech 1.5 tokenizer", where=path, fix=_FIX
        )
    wrong = [code for code in range(len(by_code)) if by_code.get(code) != by_code.get(0, -size) + code]
    if wrong:
        raise CheckpointError(
            f"ids of <|semantic:i|> must rise by one from i = 0; {_some(wrong)} missing or out of place",
            where=path,
            fix=_FIX,
        )
    return [by_code[code] for code in range(len(by_code))]


def _some(values: Sequence[int], limit: int = 5) -> str:
    shown = ", ".join(map(str, values[:limit]))
    return shown if len(values) <= limit else f"{shown} and {len(values) - limit} more"
