"""What every back end looks like: open, run named tensors through one graph, close.

The four graphs (prefill, frame, codec_decode, codec_encode) and the names, types and shapes of their
tensors are defined here once, for PyTorch modules and for files exported from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..errors import RuntimeInputError

__all__ = ["GRAPHS", "GraphSpec", "Runtime", "TensorSpec", "check_inputs", "graph_spec", "kv_names"]

GRAPHS = ("prefill", "frame", "codec_decode", "codec_encode")


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


class Runtime(Protocol):
    """One graph, ready to run on one back end.

    Attributes:
        spec: Its inputs and outputs.
        device: Where input tensors must lie.
    """

    spec: GraphSpec
    device: torch.device

    def open(self) -> Runtime:
        """Acquires what running needs. Nothing touches a device before this."""

    def run(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs the graph. KV tensors are updated in place.

        Raises:
            RuntimeInputError: A tensor is missing, unknown, or of the wrong type or shape.
        """

    def close(self) -> None:
        """Releases what :meth:`open` acquired; closing twice is harmless."""

    def describe(self) -> dict[str, Any]:
        """Back end, device and precision in plain words."""


def kv_names(config: DualARConfig) -> list[tuple[str, str]]:
    """Names of the key and the value tensor of each slow layer."""
    return [(f"k_{i}", f"v_{i}") for i in range(config.n_layer)]


def graph_spec(graph: str, config: DualARConfig, *, noise: int, dtype: torch.dtype = torch.float32) -> GraphSpec:
    """Inputs and outputs of a graph.

    Free dimensions: ``B`` rows, ``S`` prompt columns, ``C`` cache capacity, ``T`` frames, ``M`` = 4 T mel columns.

    Args:
        graph: One of :data:`GRAPHS`.
        config: Shape of the transformers.
        noise: Values one frame draws per row: head rows plus 7 · 1024.
        dtype: Type of the KV tensors.
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
        return GraphSpec(graph, inputs, ("next", *(t.name for t in cache)))
    if graph == "codec_decode":
        codes = TensorSpec("codes", torch.int64, ("B", config.num_codebooks, "T"))
        return GraphSpec(graph, (codes,), ("waveform",))
    if graph == "codec_encode":
        return GraphSpec(graph, (TensorSpec("log_mel", torch.float32, ("B", 160, "M")),), ("codes",))
    raise RuntimeInputError(f"there is no graph named {graph!r}", fix=f"use one of {', '.join(GRAPHS)}")


def check_inputs(spec: GraphSpec, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Compares tensors with the graph's inputs before anything is launched.

    Returns:
        The value of every free dimension.

    Raises:
        RuntimeInputError: Lists the first tensor that does not fit and what was wanted.
    """
    names = {t.name for t in spec.inputs}
    if tensors.keys() != names:
        missing, unknown = sorted(names - tensors.keys()), sorted(tensors.keys() - names)
        raise RuntimeInputError(
            f"graph {spec.graph!r}: missing inputs {missing or 'none'}, unknown inputs {unknown or 'none'}",
            fix="; ".join(map(str, spec.inputs[:8])),
        )
    sizes: dict[str, int] = {}
    for wanted in spec.inputs:
        given = tensors[wanted.name]
        fits = given.dtype == wanted.dtype and given.ndim == len(wanted.shape)
        if fits:
            for size, want in zip(given.shape, wanted.shape, strict=True):
                fits &= size == (sizes.setdefault(want, size) if isinstance(want, str) else want)
        if not fits:
            kind = str(given.dtype).removeprefix("torch.")
            known = {k: v for k, v in sizes.items() if k in wanted.shape}
            raise RuntimeInputError(
                f"graph {spec.graph!r}: input {wanted.name!r} is {kind}{list(given.shape)}",
                fix=f"give {wanted}" + (f" with {known}" if known else ""),
            )
    return sizes
