"""Inputs for a graph that are the same on every machine, for comparing runtimes and for timing them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..errors import ParameterError
from ..model.dual_ar import causal_mask
from .spec import GraphSpec

__all__ = ["seeded_inputs"]

_TEXT_IDS, _CODES = 256, 1000  # ids that every tokenizer has, codes that the codec makes


def seeded_inputs(
    spec: GraphSpec, sizes: Mapping[str, int], *, seed: int = 0, semantic_begin_id: int | None = None
) -> dict[str, Tensor]:
    """Inputs of a graph that are plausible and the same for every runtime.

    Random ids and codes, a cache of normal keys and values with the positions of the rows spread over it, sampling
    settings as in normal use. ``prefill`` starts at position 0.

    Args:
        spec: Of the graph; decides the types.
        sizes: Value of every free dimension: ``B``, ``S``, ``C``, ``T``. Missing ``B`` is 1; ``M`` follows from ``T``.
        seed: Other seed, other values.
        semantic_begin_id: Token of code 0. If given, the second half of the columns is speech, else all is text.

    Raises:
        ParameterError: A dimension is missing.
    """
    sizes = {"B": 1, **sizes}
    if "T" in sizes:
        sizes.setdefault("M", 4 * sizes["T"])
    missing = {d for t in spec.inputs for d in t.shape if isinstance(d, str)} - sizes.keys()
    if missing:
        raise ParameterError(f"graph {spec.graph!r} needs sizes for {sorted(missing)}", fix="add them to sizes")
    generator = torch.Generator().manual_seed(seed)
    rows, capacity = sizes["B"], sizes.get("C", 1)
    start = torch.zeros(rows, dtype=torch.int64)
    if spec.graph == "frame":
        start = torch.randint(0, capacity, (rows,), generator=generator)
    constants = {"temperature": 0.7, "top_p": 0.8, "penalty": 1.2}
    inputs = {}
    for tensor in spec.inputs:
        shape = [sizes[d] if isinstance(d, str) else d for d in tensor.shape]
        match tensor.name:
            case "start":
                value = start
            case "mask":
                value = causal_mask(start, shape[2], shape[3])
            case "noise":
                value = torch.empty(shape).exponential_(generator=generator)
            case "temperature" | "top_p" | "penalty":
                value = torch.full(shape, constants[tensor.name])
            case "columns" | "column":
                value = torch.randint(0, _CODES, shape, generator=generator)
                half = shape[2] // 2
                if semantic_begin_id is None:
                    half = shape[2]
                value[:, 0, :half] %= _TEXT_IDS
                value[:, 0, half:] = value[:, 1, half:] + (semantic_begin_id or 0)
            case "codes" | "window":
                value = torch.randint(0, _CODES, shape, generator=generator)
            case _:  # keys, values, log-mel
                value = torch.randn(shape, generator=generator)
        inputs[tensor.name] = value.to(tensor.dtype)
    return inputs
