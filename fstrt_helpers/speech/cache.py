"""The KV cache of one generation, in a few fixed sizes, and what of it is kept for the next one of the same voice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..errors import NonFiniteOutput
from ..graphs.spec import kv_names

__all__ = ["CAPACITIES", "PREFIX_BYTES", "KVBuffers", "PrefixCache", "fitting_capacity", "require_finite"]

CAPACITIES = (256, 512, 1024, 2048, 4096, 8192)
"""Columns a cache is allocated for. Few sizes mean few plans, engines and captured graphs."""


def fitting_capacity(columns: int, config: DualARConfig) -> int:
    """Smallest capacity that holds so many columns."""
    return next((c for c in CAPACITIES if c >= columns), config.max_seq_len)


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
        self.capacity = fitting_capacity(columns, config)
        shape = (1, config.n_local_heads, self.capacity, config.head_dim)
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros(shape, dtype=dtype, device=device) for pair in kv_names(config) for name in pair
        }

    def reserve(self, columns: int) -> None:
        """Makes room for that many columns; what is there stays."""
        if columns <= self.capacity:
            return
        capacity = fitting_capacity(columns, self._config)
        for name, old in self.tensors.items():
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : self.capacity] = old
            self.tensors[name] = new
        self.capacity = capacity


PREFIX_BYTES = 64 * 2**20
"""Memory for the keys and values of reference turns. A reference of ten seconds takes about 4 MB in float16 for
1.5: 300 columns of 24 layers, 2 heads and 64 numbers, twice."""


class PrefixCache:
    """Keys and values of reference turns: all texts of one voice begin with them. The least recently used go first.

    What is computed before the text and what is taken from here must be the same numbers, so the reference turns are
    always prefilled by themselves, and kept for each cache capacity apart: a kernel may sum in another order there.
    Safe to share between threads.

    Args:
        limit: Most bytes kept; 0 keeps nothing.

    Attributes:
        limit: As given.
        bytes: Bytes kept.
        hits: Prefixes found.
        misses: Prefixes computed.
    """

    def __init__(self, limit: int = PREFIX_BYTES) -> None:
        self.limit, self.bytes, self.hits, self.misses = limit, 0, 0, 0
        self._kept: OrderedDict[tuple[bytes, int], dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    @torch.inference_mode()
    def fill(self, prefix: np.ndarray, kv: Mapping[str, Tensor], prefill: Callable[[], None]) -> dict[str, Tensor]:
        """Sets the first P slots of a cache.

        Args:
            prefix: int64 [9, P], the prompt's columns that are the same for all texts of a voice.
            kv: Keys and values by name, [1, H_kv, C, D] each.
            prefill: Computes them in place, when they are not known yet.

        Returns:
            The tensors copied from or kept. On a GPU: hold them until the copy has run.

        Raises:
            NonFiniteOutput: They are no numbers; nothing is kept.
        """
        length, capacity = prefix.shape[1], next(iter(kv.values())).shape[2]
        key = (prefix.tobytes(), capacity)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                self.hits += 1
        if known is not None:
            for name, tensor in known.items():
                kv[name][:, :, :length].copy_(tensor)
            return known
        prefill()
        require_finite(kv, 0, length)
        known = {name: tensor[:, :, :length].clone() for name, tensor in kv.items()}
        device = next(iter(kv.values())).device
        if device.type == "cuda":  # whoever finds them may copy on another stream
            torch.cuda.current_stream(device).synchronize()
        with self._lock:
            self.misses += 1
            if key not in self._kept:
                self._kept[key] = known
                self.bytes += _bytes(known)
            while self.bytes > self.limit:
                self.bytes -= _bytes(self._kept.popitem(last=False)[1])
        return known

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._kept.clear()
            self.bytes = 0


def _bytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def require_finite(kv: Mapping[str, Tensor], first: int, last: int) -> None:
    """Looks at the last layer's new keys and values: what is no number anywhere before them shows there.

    Args:
        kv: Keys and values by name, in the order of the layers.
        first: First new slot.
        last: One behind the last.

    Raises:
        NonFiniteOutput: One is NaN or infinite.
    """
    new = [tensor[:, :, first:last].sum(dtype=torch.float32) for tensor in list(kv.values())[-2:]]
    if not torch.isfinite(new[0] + new[1]):
        raise NonFiniteOutput(
            f"a key or value that is no number in columns {first} to {last - 1}",
            where="the last layer's KV cache",
            fix="use another precision or back end; FishSpeech falls back by itself unless strict=True",
        )
