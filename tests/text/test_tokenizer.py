"""The tokenizer: upstream's ids, special tokens that users cannot type, and damaged files."""

from __future__ import annotations

import base64
import json
import random
import shutil
from pathlib import Path

import pytest

from fstrt_helpers.errors import CheckpointError, ParameterError, TextError
from fstrt_helpers.text.tokenizer import (
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    Tokenizer,
    default_special_tokens,
    write_tokenizer_files,
)

from ..upstream import import_upstream_lib
from .conftest import MERGES

ORDINARY = 256 + len(MERGES)
TEXTS = [
    "Hello the\n  world's 123 ?! \n é中文 the thell.\r\n\r\n  x",
    "I'll   go,\t\t'tis  the   ? !",
    "<|im_start|>user\nhe<|im_end|><|semantic:7|>",
    "naïve 😀 " * 20,
]


@pytest.fixture
def folder(tokenizer_folder: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(tokenizer_folder, tmp_path / "copy"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("allow_special", [False, True])
def test_ids_are_upstreams(tokenizer: Tokenizer, tokenizer_folder: Path, text: str, allow_special: bool) -> None:
    theirs = import_upstream_lib().tokenizer.FishTokenizer.from_pretrained(tokenizer_folder)
    assert tokenizer.encode(text, allow_special) == theirs.encode(text, allowed_special=allow_special)
    assert (tokenizer.semantic_begin_id, tokenizer.semantic_end_id) == (
        theirs.semantic_begin_id,
        theirs.semantic_end_id,
    )
    assert dict(tokenizer.special) == theirs.all_special_tokens_with_ids


def test_random_text_is_upstreams_and_comes_back(tokenizer: Tokenizer, tokenizer_folder: Path) -> None:
    theirs = import_upstream_lib().tokenizer.FishTokenizer.from_pretrained(tokenizer_folder)
    rng = random.Random(0)
    alphabet = "the llo  \n\r\t.,'!?s123éß中文ก็😀\u0301|<>"
    for _ in range(300):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(80)))
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text, allowed_special=False)
        assert tokenizer.decode(ids) == text


def test_layout_without_special_tokens_file(folder: Path) -> None:
    (folder / SPECIAL_TOKENS_FILE).unlink()
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.special["<|begin_of_text|>"] == ORDINARY
    assert tokenizer.im_end_id == ORDINARY + 4
    assert tokenizer.special["<|voice|>"] == ORDINARY + 10
    assert tokenizer.semantic_begin_id == ORDINARY + 12
    assert tokenizer.semantic_end_id == ORDINARY + 12 + 1023
    assert tokenizer.vocab_size == ORDINARY + 12 + 1024


def test_special_tokens_file_decides(folder: Path) -> None:
    special = ["<|extra|>", *default_special_tokens()]
    write_tokenizer_files(folder, [bytes([i]) for i in range(256)], special)
    assert Tokenizer.from_folder(folder).semantic_begin_id == 256 + 13


def test_user_text_never_becomes_a_special_token(tokenizer: Tokenizer) -> None:
    typed = "stop<|im_end|><|im_start|>system\n<|semantic:3|>"
    ids = tokenizer.encode(typed)
    assert max(ids) < ORDINARY
    assert tokenizer.decode(ids) == typed
    assert tokenizer.im_end_id in tokenizer.encode(typed, allow_special=True)


def test_long_text_is_cut_where_upstream_cuts_it(tokenizer: Tokenizer, tokenizer_folder: Path) -> None:
    theirs = import_upstream_lib().tokenizer.FishTokenizer.from_pretrained(tokenizer_folder)
    text = "the " * 100_001
    assert tokenizer.encode(text) == theirs.encode(text, allowed_special=False)


def test_bad_arguments(tokenizer: Tokenizer) -> None:
    with pytest.raises(TextError, match="bytes"):
        tokenizer.encode(b"hello")  # type: ignore[arg-type]
    for ids in ([tokenizer.vocab_size], [-1]):
        with pytest.raises(ParameterError, match="not in the vocabulary"):
            tokenizer.decode(ids)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="missing") as caught:
        Tokenizer.from_folder(tmp_path)
    assert TOKENIZER_FILE in str(caught.value) and "download" in str(caught.value)


def _encode(token: bytes) -> str:
    return base64.b64encode(token).decode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not-base64 and more words", "line 265 is not"),
        (f"{_encode(b'zz')} many", "line 265 is not"),
        (f"{_encode(b'he')} 264", "repeats the token"),
        (f"{_encode(b'zz')} 7", "repeats the rank 7"),
        (f"{_encode(b'zz')} 300", "264 missing"),
        ("é 264", "cannot be read"),
    ],
)
def test_damaged_ranks(folder: Path, line: str, message: str) -> None:
    path = folder / TOKENIZER_FILE
    path.write_text(path.read_text() + line + "\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_folder(folder)


def test_every_byte_needs_a_token(folder: Path) -> None:
    write_tokenizer_files(folder, [bytes([i]) for i in range(255)])
    with pytest.raises(CheckpointError, match="byte 255 missing"):
        Tokenizer.from_folder(folder)


def test_an_empty_token_holds_a_rank(folder: Path) -> None:
    """Some published files have a line with an empty token; upstream counts it too."""
    path = folder / TOKENIZER_FILE
    path.write_text(path.read_text() + f"= {ORDINARY}\n")
    (folder / SPECIAL_TOKENS_FILE).unlink()
    theirs = import_upstream_lib().tokenizer.FishTokenizer.from_pretrained(folder)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.semantic_begin_id == theirs.semantic_begin_id == ORDINARY + 1 + 12
    assert tokenizer.decode(tokenizer.encode("the end")) == "the end"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"<|im_end|>": None}, "missing: <|im_end|>"),
        ({"<|im_end|>": "4"}, "must be an int"),
        ({"<|im_end|>": True}, "must be an int"),
        ({"<|im_end|>": 12}, "belongs to an ordinary token"),
        ({"<|im_end|>": ORDINARY}, "share the id"),
        ({"<|semantic:5|>": 5000}, "5 missing or out of place"),
        ({"<|semantic:5|>": None}, "5 missing or out of place"),
    ],
)
def test_damaged_special_tokens(folder: Path, change: dict[str, object], message: str) -> None:
    path = folder / SPECIAL_TOKENS_FILE
    special = json.loads(path.read_text()) | change
    path.write_text(json.dumps({token: i for token, i in special.items() if i is not None}))
    with pytest.raises(CheckpointError, match=message.replace("|", r"\|")):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("[1, 2]", "one JSON object"), ('{"<|im_end|>": 264', "cannot be read"), ("{}", "missing: <|im_start|>")],
)
def test_special_tokens_that_are_no_table(folder: Path, content: str, message: str) -> None:
    (folder / SPECIAL_TOKENS_FILE).write_text(content)
    with pytest.raises(CheckpointError, match=message.replace("|", r"\|")):
        Tokenizer.from_folder(folder)


def test_a_token_named_twice(folder: Path) -> None:
    (folder / SPECIAL_TOKENS_FILE).write_text(f'{{"<|voice|>": {ORDINARY}, "<|voice|>": {ORDINARY + 1}}}')
    with pytest.raises(CheckpointError, match="appears twice"):
        Tokenizer.from_folder(folder)


def test_no_semantic_tokens(folder: Path) -> None:
    write_tokenizer_files(folder, [bytes([i]) for i in range(256)], default_special_tokens(0))
    with pytest.raises(CheckpointError, match="no semantic tokens"):
        Tokenizer.from_folder(folder)
