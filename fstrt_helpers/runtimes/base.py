"""What every back end looks like: open, run named tensors through one graph, close."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import RuntimeInputError
from ..graphs.spec import GraphSpec

__all__ = ["Runtime", "check_inputs", "filled_columns"]


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

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """Runs the graph. KV tensors are updated in place.

        Args:
            tensors: By name.
            skip: For ``codec_decode``: frames at the start that are context only; the waveform begins after them.

        Raises:
            RuntimeInputError: A tensor is missing, unknown, or of the wrong type or shape.
        """

    def close(self) -> None:
        """Releases what :meth:`open` acquired; closing twice is harmless."""

    def describe(self) -> dict[str, Any]:
        """Back end, device and precision in plain words."""


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
    if sizes.get("M", 0) % 4:
        raise RuntimeInputError(
            f"{sizes['M']} mel columns are no whole number of frames", fix="pad the audio to 2048 samples"
        )
    return sizes


def filled_columns(tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> int:
    """Cache columns in use after a prefill or a frame, in the fullest row. Reads ``start``: on a GPU the host waits.

    Raises:
        RuntimeInputError: They are more than the cache has.
    """
    filled = int(tensors["start"].max()) + sizes.get("S", 1)
    if filled > sizes["C"]:
        raise RuntimeInputError(
            f"the KV cache is full: {filled} columns wanted, {sizes['C']} allocated",
            fix="allocate a larger capacity or stop earlier",
        )
    return filled
