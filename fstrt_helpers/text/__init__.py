"""Text on its way into the model: clean, split, tokenise, build the prompt."""

from __future__ import annotations

from .clean import clean_text
from .prompt import build_prompt
from .split import split_text
from .tokenizer import Tokenizer

__all__ = ["Tokenizer", "build_prompt", "clean_text", "split_text"]
