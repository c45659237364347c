"""Writes a checkpoint folder in the official layout: float16 weights, configuration, tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import Tensor

from fstrt_helpers.checkpoint import CODEC_FILE, DualARConfig
from fstrt_helpers.text.tokenizer import write_tokenizer_files

__all__ = ["write_config", "write_tokenizer", "write_weights"]


def write_tokenizer(folder: Path) -> None:
    """One token per byte, then 1.5's special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer_files(folder, [bytes([value]) for value in range(256)])


def write_config(folder: Path, config: DualARConfig) -> None:
    """``config.json`` with keys that both of upstream's packages know, and no other."""
    c = config
    data = {
        "model_type": "dual_ar", "attention_qkv_bias": c.attention_qkv_bias, "codebook_size": c.codebook_size,
        "dim": c.dim, "dropout": 0.1, "fast_attention_qkv_bias": c.fast_attention_qkv_bias, "fast_dim": c.fast_dim,
        "fast_head_dim": c.fast_head_dim, "fast_intermediate_size": c.fast_intermediate_size,
        "fast_n_head": c.fast_n_head, "fast_n_local_heads": c.fast_n_local_heads, "head_dim": c.head_dim,
        "initializer_range": 0.02, "intermediate_size": c.intermediate_size, "is_reward_model": False,
        "max_seq_len": c.max_seq_len, "n_fast_layer": c.n_fast_layer, "n_head": c.n_head, "n_layer": c.n_layer,
        "n_local_heads": c.n_local_heads, "norm_eps": c.norm_eps, "num_codebooks": c.num_codebooks,
        "rope_base": c.rope_base, "scale_codebook_embeddings": False, "tie_word_embeddings": c.tie_word_embeddings,
        "use_gradient_checkpointing": False, "vocab_size": c.vocab_size,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def write_weights(
    folder: Path, dual_ar: dict[str, Tensor] | None = None, codec: dict[str, Tensor] | None = None
) -> None:
    """Writes ``model.pth`` and the codec's file, whichever is given, each in one step."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in (("model.pth", dual_ar), (CODEC_FILE, codec)):
        if state is not None:
            half = {key: value.detach().to("cpu", torch.float16).contiguous() for key, value in state.items()}
            torch.save(half, folder / f"{name}.tmp")
            os.replace(folder / f"{name}.tmp", folder / name)
