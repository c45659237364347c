"""A small checkpoint folder with random weights, in the official layout, for tests of mechanics rather than sound."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fstrt_helpers.checkpoint import CODEC_FILE, CodecConfig, DualARConfig
from fstrt_helpers.model.dual_ar import DualAR
from fstrt_helpers.model.firefly import Firefly
from fstrt_helpers.text.tokenizer import write_tokenizer_files

__all__ = ["RANDOM_CONFIG", "write_random_checkpoint"]

RANDOM_CONFIG = {
    "model_type": "dual_ar",
    "dim": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_local_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 1292,
    "max_seq_len": 1024,
    "n_fast_layer": 1,
    "codebook_size": 1024,
    "num_codebooks": 8,
    "rope_base": 10000.0,
    "norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


def write_random_checkpoint(folder: Path, *, seed: int = 0, **changes: object) -> Path:
    """Writes the five files; weights are seeded noise, so every generation babbles until its budget ends."""
    config = RANDOM_CONFIG | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer_files(folder, [bytes([i]) for i in range(256)])
    torch.manual_seed(seed)
    dual_ar = DualAR(DualARConfig.from_dict(config), 268, 1291)
    torch.save(dual_ar.state_dict(), folder / "model.pth")
    codec = Firefly(CodecConfig(encoder_dims=(8, 8, 16, 32), encoder_depths=(1, 1, 1, 1), head_channels=32))
    for parameter in codec.parameters():
        if parameter.ndim > 1:  # louder than the default, so that a wrong sample shows
            parameter.data *= 2
    torch.save(codec.state_dict(), folder / CODEC_FILE)
    return folder
