"""Faults put into real back ends: the runtime does its work, and then something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fstrt_helpers.runtimes.base import Runtime

__all__ = ["Faulty", "inject", "poison_keys", "poison_waveform"]

Fault = Callable[[Mapping[str, Tensor], dict[str, Tensor]], None]


class Faulty:
    """A real runtime that fails from a certain run on.

    Args:
        runtime: What does the work.
        fault: Called with inputs and outputs after the work; raises, or spoils them.
        runs: Runs that go well before.
    """

    def __init__(self, runtime: Runtime, fault: Fault, runs: int) -> None:
        self._runtime, self._fault, self._runs = runtime, fault, runs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        out = self._runtime.run(tensors, skip=skip)
        self._runs -= 1
        if self._runs < 0:
            self._fault(tensors, out)
        return out


def inject(engine: Any, graph: str, fault: Exception | Fault, runs: int = 0) -> None:
    """Makes one graph of the back end in use fail after some runs."""

    def fail(tensors: Mapping[str, Tensor], out: dict[str, Tensor]) -> None:
        raise fault

    runtimes = engine.backends.current.backend.runtimes
    runtimes[graph] = Faulty(runtimes[graph], fail if isinstance(fault, Exception) else fault, runs)


@torch.inference_mode()
def poison_keys(tensors: Mapping[str, Tensor], out: dict[str, Tensor]) -> None:
    """What an overflow leaves behind: a NaN in the newest key of the last layer."""
    last = [name for name in tensors if name.startswith("k_")][-1]
    tensors[last][:, 0, tensors["start"][0], 0] = torch.nan


@torch.inference_mode()
def poison_waveform(tensors: Mapping[str, Tensor], out: dict[str, Tensor]) -> None:
    """One infinite sample."""
    out["waveform"][0, 0, 100] = torch.inf
