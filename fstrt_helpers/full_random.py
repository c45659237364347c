"""`full-random`: the official shape of Fish Speech 1.5 with seeded random weights.

Speed and memory do not depend on what the weights say, so both can be measured at full size without the download. It
speaks noise, and everything that shows it says "random weights".
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .checkpoint_files import CONFIG_FILE

__all__ = ["OFFICIAL_CONFIG", "random_state", "random_tensor", "write_full_random"]

# The configuration of the official 1.5 checkpoint, key by key. 637,921,280 parameters follow from it; at two bytes each
# they leave 65 kB of the official model.pth (1,275,908,030 bytes) for names and padding.
OFFICIAL_CONFIG: Mapping[str, Any] = {
    "attention_qkv_bias": False,
    "codebook_size": 1024,
    "dim": 1024,
    "dropout": 0.1,
    "fast_attention_qkv_bias": False,
    "fast_dim": 1024,
    "fast_head_dim": 64,
    "fast_intermediate_size": 4096,
    "fast_n_head": 16,
    "fast_n_local_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "is_reward_model": False,
    "max_seq_len": 8192,
    "model_type": "dual_ar",
    "n_fast_layer": 4,
    "n_head": 16,
    "n_layer": 24,
    "n_local_heads": 2,
    "norm_eps": 1e-6,
    "num_codebooks": 8,
    "rope_base": 1e6,
    "scale_codebook_embeddings": False,
    "share_codebook_embeddings": True,
    "tie_word_embeddings": False,
    "use_gradient_checkpointing": True,
    "vocab_size": 102048,
}
_README = (
    "full-random: the official Fish Speech 1.5 configuration without its weights.\n"
    "The weights are drawn from a seeded generator when they are loaded; the tokenizer has a token per byte and\n"
    "fillers that no text produces. It speaks noise: for speed and memory only.\n"
)


def write_full_random(folder: Path) -> Path:
    """Write configuration and tokenizer of `full-random` unless they are there.

    The folder appears complete or not at all. There is no `model.pth` in it.

    Args:
        folder: Where to write.

    Returns:
        The folder.
    """
    from .text.tokenizer import default_special_tokens, write_tokenizer_files

    if (folder / CONFIG_FILE).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fillers = OFFICIAL_CONFIG["vocab_size"] - len(default_special_tokens()) - 256
        # 0xff stands in no UTF-8 text, so a filler can never be produced.
        tokens = [bytes([i]) for i in range(256)] + [b"\xff" + i.to_bytes(3, "big") for i in range(fillers)]
        write_tokenizer_files(draft, tokens)
        (draft / "README.txt").write_text(_README, encoding="utf-8")
        (draft / CONFIG_FILE).write_text(json.dumps(dict(OFFICIAL_CONFIG), indent=2) + "\n", encoding="utf-8")
        draft.chmod(0o755)
        os.rename(draft, folder)
    except OSError:
        if not (folder / CONFIG_FILE).is_file():  # else another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def random_state(expected: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Draw weights for every name and shape of a module.

    Args:
        expected: State dict of the module; only names and shapes are used, so it may lie on the meta device.
        seed: Seed; the same seed gives the same weights.

    Returns:
        Name to float32 tensor.
    """
    return {name: random_tensor(name, tuple(tensor.shape), seed) for name, tensor in expected.items()}


def random_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Draw one weight: ones for norms, zeros for biases, otherwise normal with deviation 0.02, rounded to bfloat16.

    Each tensor has its own generator, so one alone can be drawn again where it is needed.

    Args:
        name: Name of the weight.
        shape: Its shape.
        seed: Seed of the whole set.

    Returns:
        A float32 tensor with values that bfloat16 holds exactly, as the official weights.
    """
    if "norm" in name:
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    tensor = torch.empty(shape).normal_(0.0, OFFICIAL_CONFIG["initializer_range"], generator=generator)
    return tensor.copy_(tensor.bfloat16())
