"""The least time a frame can take: the bytes it must read, divided by how fast this machine moves bytes.

At batch 1 every weight that is read serves one multiplication, so memory traffic and not arithmetic is the limit. With
more rows the weights are read once for all of them while the arithmetic grows; :func:`frame_work` gives both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..checkpoint_config import CodecConfig, DualARConfig
from ..errors import ParameterError
from .parts import count_parts

if TYPE_CHECKING:
    import torch

__all__ = ["BYTES_PER_WEIGHT", "FrameWork", "copy_bandwidth", "frame_work", "matmul_rate"]

BYTES_PER_WEIGHT = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.5}
"""Without the scales of quantised weights: what is left out makes the floor lower, never higher."""


@dataclass(frozen=True)
class FrameWork:
    """What one frame has to read and to compute, for all rows of a batch together.

    Attributes:
        weight_bytes: Slow layers and the sliced token head once; fast layers and code head for each of the 7 codes that
            are sampled (positions 0 and 1 run together).
        kv_bytes: Keys and values of the columns so far, of every row.
        operations: Multiplications and additions with weights.
    """

    weight_bytes: float
    kv_bytes: float
    operations: float

    @property
    def bytes(self) -> float:
        """Everything that is read."""
        return self.weight_bytes + self.kv_bytes

    def floor_ms(self, gb_per_s: float) -> float:
        """Least milliseconds at that bandwidth (GB of 10^9 bytes per second)."""
        return self.bytes / gb_per_s / 1e6

    def achieved_gb_per_s(self, ms: float) -> float:
        """Bandwidth that a frame of `ms` makes use of. What an implementation reads beyond the need does not count."""
        return self.bytes / ms / 1e6

    def intensity(self) -> float:
        """Operations per byte; below the machine's ratio of the two rates, memory is the limit."""
        return self.operations / self.bytes


def frame_work(
    config: DualARConfig, precision: str, *, position: int, batch: int = 1, kv_bytes_per_value: float | None = None
) -> FrameWork:
    """Counts the work of one frame from the configuration alone.

    Args:
        config: Shape of the transformers.
        precision: How the weights are stored, a key of :data:`BYTES_PER_WEIGHT`.
        position: Columns already in the cache, per row.
        batch: Rows.
        kv_bytes_per_value: Size of a key or value; None takes the weights' size, but at least two bytes.

    Raises:
        ParameterError: No such precision.
    """
    if precision not in BYTES_PER_WEIGHT:
        raise ParameterError(f"there is no precision {precision!r}", fix=f"use one of: {', '.join(BYTES_PER_WEIGHT)}")
    size = BYTES_PER_WEIGHT[precision]
    parts = {part.name: part for part in count_parts(config, CodecConfig()) if part.group != "codec"}
    lookups = {"text and code embeddings"}
    shared = sum(part.reads or 0 for name, part in parts.items() if name not in lookups)
    looked_up = sum(parts[name].reads or 0 for name in lookups) * batch
    kv_size = max(size, 2.0) if kv_bytes_per_value is None else kv_bytes_per_value
    values = 2 * config.n_layer * config.n_local_heads * config.head_dim * position * batch
    attention = 4 * config.n_layer * config.n_head * config.head_dim * position * batch
    return FrameWork((shared + looked_up) * size, values * kv_size, 2.0 * shared * batch + attention)


def copy_bandwidth(device: str = "cpu", *, megabytes: int = 256, seconds: float = 0.5) -> float:
    """GB/s this machine copies at: bytes read plus bytes written, the best of several copies, all usable cores.

    Args:
        device: ``cpu`` or ``cuda``.
        megabytes: Size of what is copied (10^6 bytes); far more than the caches hold.
        seconds: How long to go on trying.
    """
    import torch

    source = torch.ones(megabytes * 250_000, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    repeats = 10 if device == "cuda" else 1  # a launch costs microseconds, so one copy alone would look slow

    def copy() -> None:
        for _ in range(repeats):
            target.copy_(source)

    return 2 * repeats * source.numel() * 4 / _best_seconds(copy, device, seconds) / 1e9


def matmul_rate(device: str = "cpu", *, dtype: torch.dtype | None = None, size: int = 0, seconds: float = 0.5) -> float:
    """TFLOP/s of a large square matrix product, the best of several: the other roof.

    Args:
        device: ``cpu`` or ``cuda``.
        dtype: float32 on a CPU and float16 on a GPU unless given.
        size: Rows and columns; 2048 on a CPU and 8192 on a GPU unless given.
        seconds: How long to go on trying.
    """
    import torch

    gpu = device == "cuda"
    n = size or (8192 if gpu else 2048)
    a = torch.ones(n, n, dtype=dtype or (torch.float16 if gpu else torch.float32), device=device)
    out = torch.empty_like(a)
    return 2 * n**3 / _best_seconds(lambda: torch.mm(a, a, out=out), device, seconds) / 1e12


def _best_seconds(work: Callable[[], object], device: str, seconds: float) -> float:
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    best, until, tries = float("inf"), time.perf_counter() + seconds, 0
    while tries < 4 or time.perf_counter() < until:
        wait()
        began = time.perf_counter()
        work()
        wait()
        best, tries = min(best, time.perf_counter() - began), tries + 1
    return best
