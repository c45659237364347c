"""A small tokenizer that merges a little, as a checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fstrt_helpers.text.tokenizer import Tokenizer, write_tokenizer_files

MERGES = [b"he", b"ll", b" t", b"the", b" the", b"\nh", b"er", b"|>"]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer_files(folder, [bytes([i]) for i in range(256)] + MERGES)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(tokenizer_folder)
