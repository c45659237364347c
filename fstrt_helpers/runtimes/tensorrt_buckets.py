"""Engines of one graph for several KV cache capacities, as one runtime.

TensorRT wants a cache of fixed length, so a longer one is another engine with weights of its own. Each is loaded when
it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..engines.flavour import Flavour
from ..errors import GraphError, RuntimeInputError
from ..graphs.spec import GRAPHS
from .buffers import DeviceMemory
from .tensorrt import TrtRuntime
from .tensorrt_files import CACHED, EngineFile, find_engines, serving

__all__ = ["BUILT_CAPACITIES", "TrtBuckets", "ready_engines", "tensorrt_runtimes"]

BUILT_CAPACITIES = (512, 2048)
"""Columns of KV cache that engines are built for unless others are there: 24 s of speech with its prompt, and 95 s."""


class TrtBuckets:
    """``prefill`` or ``frame`` in several capacities.

    A prompt longer than the profile of ``prefill`` is taken in pieces.

    Args:
        files: Engines by capacity, at least one.
        memory: Device memory and stream.
        flavour: Which TensorRT.
    """

    def __init__(
        self,
        files: Mapping[int | None, EngineFile],
        memory: DeviceMemory | None = None,
        *,
        flavour: str | Flavour | None = None,
    ) -> None:
        self.runtimes = {c: TrtRuntime(files[c], memory, flavour=flavour) for c in sorted(files, key=lambda c: c or 0)}
        self._first = next(iter(self.runtimes.values()))
        self.spec = self._first.spec

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._first.device

    @property
    def capacities(self) -> list[int]:
        """Columns of the KV caches there are engines for, ascending."""
        return [capacity for capacity in self.runtimes if capacity is not None]

    def open(self) -> TrtBuckets:
        """Loads the engine of the smallest capacity; see :meth:`TrtRuntime.open`."""
        self._first.open()
        return self

    def close(self) -> None:
        """Releases all engines."""
        for runtime in self.runtimes.values():
            runtime.close()

    def describe(self) -> dict[str, Any]:
        """Back end, device, precision and capacities."""
        return self._first.describe() | {"capacity": self.capacities}

    def at(self, capacity: int) -> TrtRuntime:
        """The engine of exactly that capacity, loaded.

        Raises:
            RuntimeInputError: There is none.
        """
        if capacity not in self.runtimes:
            fix = f"allocate one of {', '.join(map(str, self.capacities))}"
            raise RuntimeInputError(f"no engine has a KV cache of {capacity} columns", where=self._where, fix=fix)
        return self.runtimes[capacity].open()

    def serving(self, columns: int) -> int:
        """The smallest capacity that holds so many columns; see :func:`serving`."""
        return serving(self.capacities, columns, self._where)

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """See :meth:`TrtRuntime.run`."""
        if "mask" not in tensors or tensors["mask"].ndim != 4:
            return self._first.run(tensors)  # names what is wrong
        runtime = self.at(tensors["mask"].shape[3])
        if "columns" not in tensors:
            return runtime.run(tensors)
        most = runtime.file.tensors["columns"].max[2]
        out: dict[str, Tensor] = {}
        for first in range(0, max(tensors["columns"].shape[2], 1), most):
            piece = slice(first, first + most)
            cut = {"columns": tensors["columns"][:, :, piece], "mask": tensors["mask"][:, :, piece]}
            out = runtime.run({**tensors, **cut, "start": tensors["start"] + first} if first else {**tensors, **cut})
        return out

    @property
    def _where(self) -> Path:
        return self._first.file.path.parent


def tensorrt_runtimes(
    folder: Path,
    checkpoint: str,
    precision: str,
    config: DualARConfig,
    memory: DeviceMemory | None = None,
    codec_memory: DeviceMemory | None = None,
    *,
    flavour: str | Flavour | None = None,
    fingerprint: str | None = None,
) -> dict[str, TrtRuntime | TrtBuckets]:
    """The four graphs of a folder of engines, not yet open.

    Args:
        folder: Root of the engines.
        checkpoint: Name of the checkpoint.
        precision: Of the engines.
        config: Shape of the transformers.
        memory: Of ``prefill`` and ``frame``.
        codec_memory: Of the codec; its own stream lets it run beside the frames.
        flavour: Which TensorRT.
        fingerprint: Of the checkpoint they must come from.

    Raises:
        EngineRefused: An engine is missing, or cannot be used.
    """
    found = {g: find_engines(folder, checkpoint, precision, g, config, fingerprint=fingerprint) for g in GRAPHS}
    return {
        graph: TrtBuckets(files, memory, flavour=flavour)
        if graph in CACHED
        else TrtRuntime(files[None], codec_memory, flavour=flavour)
        for graph, files in found.items()
    }


def ready_engines(
    checkpoint: str,
    precision: str,
    config: DualARConfig,
    flavour: Flavour,
    *,
    graphs: Path,
    folder: Path,
    missing: bool,
) -> None:
    """Builds engines anew whose graph changed since, or that are damaged or of another TensorRT.

    Where the exported graphs are gone, engines stay as they are; what vouches for them is checked when they are loaded.

    Args:
        checkpoint: Name of the checkpoint.
        precision: Of the engines.
        config: Shape of the transformers.
        flavour: Which TensorRT.
        graphs: Root of the exported graphs.
        folder: Root of the engines.
        missing: Whether to build those too that are not there yet.

    Raises:
        GraphError: An engine is to be built and its graph was not exported.
        EngineError: A build fails.
    """
    from ..engines.cache import cached_engine
    from ..engines.profile import default_profile
    from ..engines.recipe import engine_path
    from ..engines.source import find_graph

    wanted = sorted({min(capacity, config.max_seq_len) for capacity in BUILT_CAPACITIES})
    for graph in GRAPHS:
        for capacity in wanted if graph in CACHED else [None]:
            there = engine_path(folder, checkpoint, precision, graph, capacity).is_file()
            if not there and not missing:
                continue
            try:
                path = find_graph(checkpoint, graph, precision, flavour.name, graphs)
            except GraphError:
                if there:
                    continue
                raise
            profile = default_profile(path, name=graph, capacity=capacity)
            cached_engine(path, profile, precision=precision, flavour=flavour, folder=folder)
