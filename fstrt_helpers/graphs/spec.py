"""Names, types and shapes of the tensors of the four graphs: the contract between modules, files and back ends."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..checkpoint import DualARConfig
from ..errors import RuntimeInputError

__all__ = [
    "FLOATS",
    "GRAPHS",
    "LOGITS",
    "PRECISIONS",
    "GraphSpec",
    "TensorSpec",
    "graph_spec",
    "kv_names",
    "noise_size",
]

GRAPHS = ("prefill", "frame", "codec_decode", "codec_encode")
FLOATS = ("float32", "float16", "bfloat16")
"""What a graph can be exported in."""
PRECISIONS = (*FLOATS, "int8", "int4")
"""What a graph can be run in: the same names for every back end."""
LOGITS = ("token_logits", "code_logits")
"""What ``frame`` returns besides the next column if asked to: float32 [B, V] and [B, 7, 1024]."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, type and shape of one graph input; a shape entry that is a string is free, equal names are equal."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"{self.name}: {kind}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class GraphSpec:
    """Inputs and outputs of one graph."""

    graph: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]


def noise_size(config: DualARConfig) -> int:
    """Random numbers a frame draws per row: one per legal token (codes and the end), one per code of the others."""
    return config.codebook_size * config.num_codebooks + 1


def kv_names(config: DualARConfig) -> list[tuple[str, str]]:
    """Names of the key and the value tensor of each slow layer."""
    return [(f"k_{i}", f"v_{i}") for i in range(config.n_layer)]


def graph_spec(
    graph: str, config: DualARConfig, *, noise: int, dtype: torch.dtype = torch.float32, logits: bool = False
) -> GraphSpec:
    """Inputs and outputs of a graph.

    Free dimensions: ``B`` rows, ``S`` prompt columns, ``C`` cache capacity, ``T`` frames, ``M`` = 4 T mel columns.

    Args:
        graph: One of :data:`GRAPHS`.
        config: Shape of the transformers.
        noise: Values one frame draws per row: head rows plus 7 · 1024.
        dtype: Type of the KV tensors.
        logits: Whether ``frame`` returns :data:`LOGITS` too.
    """
    rows = 1 + config.num_codebooks
    cache = tuple(
        TensorSpec(name, dtype, ("B", config.n_local_heads, "C", config.head_dim))
        for pair in kv_names(config)
        for name in pair
    )
    if graph == "prefill":
        inputs = (
            TensorSpec("columns", torch.int64, ("B", rows, "S")),
            TensorSpec("start", torch.int64, ("B",)),
            TensorSpec("mask", torch.bool, ("B", 1, "S", "C")),
            *cache,
        )
        return GraphSpec(graph, inputs, tuple(t.name for t in cache))
    if graph == "frame":
        inputs = (
            TensorSpec("column", torch.int64, ("B", rows, 1)),
            TensorSpec("start", torch.int64, ("B",)),
            TensorSpec("mask", torch.bool, ("B", 1, 1, "C")),
            TensorSpec("noise", torch.float32, ("B", noise)),
            TensorSpec("window", torch.int64, ("B", rows, 16)),
            TensorSpec("temperature", torch.float32, ("B", 1)),
            TensorSpec("top_p", torch.float32, ("B", 1)),
            TensorSpec("penalty", torch.float32, ("B", 1)),
            *cache,
        )
        return GraphSpec(graph, inputs, ("next", *(LOGITS if logits else ()), *(t.name for t in cache)))
    if graph == "codec_decode":
        codes = TensorSpec("codes", torch.int64, ("B", config.num_codebooks, "T"))
        return GraphSpec(graph, (codes,), ("waveform",))
    if graph == "codec_encode":
        return GraphSpec(graph, (TensorSpec("log_mel", torch.float32, ("B", 160, "M")),), ("codes",))
    raise RuntimeInputError(f"there is no graph named {graph!r}", fix=f"use one of {', '.join(GRAPHS)}")
