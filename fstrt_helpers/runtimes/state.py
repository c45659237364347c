"""The tensors of a running generation at fixed addresses, so that a captured frame can be replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..errors import RuntimeInputError
from ..graphs.spec import GraphSpec

__all__ = ["HISTORY", "FrameState"]

HISTORY = 1088
"""Columns a state remembers: the longest chunk, its end token, and what was enqueued before the end was seen."""


class FrameState:
    """Inputs and outputs of ``frame``, B rows, and what leads from one frame to the next.

    After ``begin``, a frame is: :meth:`draw_noise`, the ``frame`` graph on :attr:`inputs` with its output in
    :attr:`next`, :meth:`advance`. All three only enqueue work on the current stream, none waits for the device.

    Args:
        spec: The ``frame`` graph.
        config: Shape of the transformers.
        device: Where the tensors lie.
        batch: Rows B.
        capacity: Columns C of the KV cache.
        empty: Allocates ``(shape, dtype)``; torch's allocator by default.

    Attributes:
        inputs: By the graph's names; keys and values are read and written.
        next: int64 [B, 9], the column the frame drew.
        history: int64 [HISTORY, B, 9], every column so far; ``history[step - 1]`` is the last.
        step: int64 [1], frames so far.
        doubt: float32 [1], 0 as long as every new key of the last layer is a finite number, NaN from then on.
        generator: Source of the noise, on the device.
    """

    def __init__(
        self,
        spec: GraphSpec,
        config: DualARConfig,
        device: torch.device,
        batch: int,
        capacity: int,
        empty: Callable[[tuple[int, ...], torch.dtype], Tensor] | None = None,
    ) -> None:
        self.spec, self.config, self.device = spec, config, device
        self.batch, self.capacity = batch, capacity
        make = empty or (lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device))
        sizes = {"B": batch, "C": capacity}
        self.inputs: dict[str, Tensor] = {
            t.name: make(tuple(sizes[d] if isinstance(d, str) else d for d in t.shape), t.dtype).zero_()
            for t in spec.inputs
        }
        self.kv = {name: tensor for name, tensor in self.inputs.items() if name.startswith(("k_", "v_"))}
        rows = 1 + config.num_codebooks
        self.next = make((batch, rows), torch.int64).zero_()
        self.history = make((HISTORY, batch, rows), torch.int64).zero_()
        self.step = make((1,), torch.int64).zero_()
        self.doubt = make((1,), torch.float32).zero_()
        self._penalty = make((batch, 1), torch.float32).fill_(1.0)
        self._slots = torch.arange(capacity, device=device)
        self.generator = torch.Generator(device)

    def begin(self, column: Tensor, start: Tensor, temperature: float, top_p: float, penalty: float, seed: int) -> None:
        """Sets everything but keys and values for a new generation.

        Args:
            column: int64 [B, 9], the prompt's last column.
            start: int64 [B], its position; slots before it are filled.
            temperature: Of the sampler.
            top_p: Of the sampler.
            penalty: Repetition penalty from the second frame on; the first after the prompt has none.
            seed: Of the noise.

        Raises:
            RuntimeInputError: A start lies beyond the capacity.
        """
        if int(start.max()) >= self.capacity:
            raise RuntimeInputError(
                f"the prompt fills {int(start.max())} columns, the cache has {self.capacity}",
                fix="open a loop of a larger capacity",
            )
        i = self.inputs
        i["column"].copy_(column[:, :, None])
        i["start"].copy_(start)
        i["mask"].copy_(self._slots <= start[:, None, None, None].to(self.device))
        i["window"].zero_()
        i["temperature"].fill_(temperature)
        i["top_p"].fill_(top_p)
        i["penalty"].fill_(1.0)
        self._penalty.fill_(penalty)
        self.step.zero_()
        self.doubt.zero_()
        self.generator.manual_seed(seed)

    def draw_noise(self) -> None:
        """Exp(1) noise for one frame, made on the device."""
        self.inputs["noise"].exponential_(1, generator=self.generator)

    def advance(self) -> None:
        """Makes the drawn column the next input and writes it into the history."""
        i = self.inputs
        keys = next(reversed([t for name, t in self.kv.items() if name.startswith("k_")]))
        fresh = keys.gather(2, i["start"].view(-1, 1, 1, 1).expand(-1, keys.shape[1], 1, keys.shape[3]))
        self.doubt.add_(fresh.sum(dtype=torch.float32), alpha=0)  # infinity and NaN times 0 are NaN
        self.history.index_copy_(0, self.step, self.next[None])
        i["column"].copy_(self.next[:, :, None])
        shifted = torch.cat([i["window"][:, :, 1:], i["column"]], dim=2)
        i["window"].copy_(torch.where(self.step > 0, shifted, i["window"]))  # upstream never counts the first frame
        i["penalty"].copy_(self._penalty)
        i["start"].add_(1)
        torch.le(self._slots, i["start"][:, None, None, None], out=i["mask"])
        self.step.add_(1)

    def take_over(self, other: FrameState) -> None:
        """Continues another state's generation at this state's capacity.

        Raises:
            RuntimeInputError: The other has more columns or other rows.
        """
        if other.capacity > self.capacity or other.batch != self.batch:
            raise RuntimeInputError(
                f"{other.batch} rows of {other.capacity} columns do not fit {self.batch} of {self.capacity}",
                fix="open a loop of the same batch and a larger capacity",
            )
        for name, tensor in other.inputs.items():
            mine = self.inputs[name]
            if name in self.kv:
                mine = mine[:, :, : other.capacity]
            elif name == "mask":
                mine.zero_()
                mine = mine[..., : other.capacity]
            mine.copy_(tensor)
        for name in ("next", "history", "step", "doubt", "_penalty"):
            getattr(self, name).copy_(getattr(other, name))
        self.generator.set_state(other.generator.get_state())
