"""What a checkpoint consists of: parameters, bytes, and how often each part is read to make one frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..checkpoint import FRAME_SAMPLES, SAMPLE_RATE, CodecConfig, DualARConfig
from ..full_random import OFFICIAL_CONFIG

__all__ = ["FRAME_SECONDS", "Part", "count_parts", "frame_megabytes", "official_parts"]

FRAME_SECONDS = FRAME_SAMPLES / SAMPLE_RATE
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# Part, group, what it does, the modules it is made of. Between them they own every parameter.
_PARTS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("text and code embeddings", "slow", "ids to vectors", ("embeddings", "codebook_embeddings")),
    ("slow transformer", "slow", "all columns so far to a hidden state", ("layers", "norm")),
    ("token head", "slow", "hidden state to token", ("output",)),
    ("fast embeddings", "fast", "codes to vectors", ("fast_project_in", "fast_embeddings")),
    ("fast transformer", "fast", "hidden state to the other 7 codes", ("fast_layers", "fast_norm")),
    ("code head", "fast", "fast state to code", ("fast_output",)),
    ("codec encoder", "codec", "log-mel to features", ("backbone", "quantizer.downsample")),
    ("FSQ", "codec", "features to codes and back", ("quantizer.residual_fsq",)),
    ("codec decoder", "codec", "features to samples", ("quantizer.upsample", "head")),
)


@dataclass(frozen=True)
class Part:
    """One part of the model.

    Attributes:
        name: What this series calls it.
        group: ``slow``, ``fast`` or ``codec``.
        job: What goes in and what comes out.
        modules: Names in the official state dict that belong to it; none for a head tied to the embeddings.
        parameters: Number of weights in the file.
        reads: How many weights one frame reads, repeats counted; None where it depends on how many frames are
            decoded at once, or where the part does not run while speaking.
        how_often: The same in words.
    """

    name: str
    group: str
    job: str
    modules: tuple[str, ...]
    parameters: int
    reads: int | None
    how_often: str

    def megabytes(self, precision: str = "float32") -> float:
        """Size of the weights in MB (10^6 bytes) when stored as ``float32``, ``float16`` or ``bfloat16``."""
        return self.parameters * _BYTES[precision] / 1e6

    def row(self) -> dict[str, Any]:
        """The part as a row of a table."""
        return {
            "part": self.name,
            "in the checkpoint": ", ".join(self.modules),
            "parameters": f"{self.parameters:,}",
            "fp32 (MB)": round(self.megabytes(), 2),
            "fp16 (MB)": round(self.megabytes("float16"), 2),
            "read per frame": self.how_often,
        }


def count_parts(config: DualARConfig, codec_config: CodecConfig) -> list[Part]:
    """Counts every parameter once, from the configuration alone: no weights are loaded.

    The reads per frame are those of :class:`fstrt_helpers.model.frame.Frame`: of the embeddings only the rows that are
    looked up, of the token head only the rows that can be sampled (one per code, and the end token), and the fast
    transformer 7 times, because positions 0 and 1 run together.

    Args:
        config: Shape of the transformers.
        codec_config: Shape of the codec.

    Returns:
        The parts in the order in which data meets them.
    """
    from ..model.dual_ar import DualAR
    from ..model.firefly import Firefly

    with torch.device("meta"):  # shapes without memory
        models = (DualAR(config, 0, config.codebook_size - 1), Firefly(codec_config))
    sizes = {name: p.numel() for model in models for name, p in model.named_parameters()}
    passes = config.num_codebooks - 1
    parts = []
    for name, group, job, modules in _PARTS:
        modules = tuple(m for m in modules if any(key.startswith(f"{m}.") for key in sizes))
        own = sum(size for key, size in sizes.items() if key.startswith(tuple(f"{m}." for m in modules)))
        reads: int | None = None
        match name:
            case "text and code embeddings":
                reads, often = (1 + config.num_codebooks) * config.dim, f"{1 + config.num_codebooks} rows"
            case "slow transformer":
                reads, often = own, "once"
            case "token head":
                rows = config.codebook_size + 1
                reads, often = rows * config.dim, f"{rows:,} of {config.vocab_size:,} rows"
            case "fast embeddings":
                reads, often = passes * config.fast_dim, f"{passes} rows"
                reads += sizes.get("fast_project_in.weight", 0) + sizes.get("fast_project_in.bias", 0)
            case "fast transformer" | "code head":
                reads, often = passes * own, f"{passes} times"
            case "codec encoder":
                often = "never: only for a reference voice"
            case _:
                often = "once per piece of many frames"
        parts.append(Part(name, group, job, modules, own, reads, often))
    return parts


def official_parts() -> list[Part]:
    """The parts of Fish Speech 1.5, from its configuration; nothing is downloaded."""
    return count_parts(DualARConfig.from_dict(OFFICIAL_CONFIG), CodecConfig())


def frame_megabytes(parts: Sequence[Part], precision: str = "float16") -> float:
    """Megabytes of transformer weights that one frame (46.4 ms of audio) has to read.

    At batch 1 each weight is used for one multiplication per read, so this traffic, divided by the memory's bandwidth,
    is the least time that a frame can take.
    """
    return sum(part.reads or 0 for part in parts) * _BYTES[precision] / 1e6
