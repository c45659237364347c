"""The KV cache of one generation, in a few fixed sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..graphs.spec import kv_names

__all__ = ["CAPACITIES", "KVBuffers"]

CAPACITIES = (256, 512, 1024, 2048, 4096, 8192)
"""Columns a cache is allocated for. Few sizes mean few plans, engines and captured graphs."""


class KVBuffers:
    """Keys and values of the slow layers, [1, H_kv, C, D] each, moved to the next capacity when they are full.

    So a step costs what the speech so far needs, not what the longest speech would.

    Args:
        config: Shape of the transformers.
        dtype: Type of keys and values.
        device: Where they lie.
        columns: Columns that must fit at first.

    Attributes:
        tensors: By the names the graphs use.
        capacity: Columns allocated.
    """

    def __init__(self, config: DualARConfig, dtype: torch.dtype, device: torch.device, columns: int) -> None:
        self._config = config
        self.capacity = self._fitting(columns)
        shape = (1, config.n_local_heads, self.capacity, config.head_dim)
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros(shape, dtype=dtype, device=device) for pair in kv_names(config) for name in pair
        }

    def reserve(self, columns: int) -> None:
        """Makes room for that many columns; what is there stays."""
        if columns <= self.capacity:
            return
        capacity = self._fitting(columns)
        for name, old in self.tensors.items():
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : self.capacity] = old
            self.tensors[name] = new
        self.capacity = capacity

    def _fitting(self, columns: int) -> int:
        return next((c for c in CAPACITIES if c >= columns), self._config.max_seq_len)
