"""The PyTorch back end: the exportable modules run as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..graphs.spec import LOGITS, GraphSpec, graph_spec
from ..model.dual_ar import DualAR, StaticCache
from ..model.firefly import Firefly
from ..model.frame import Frame, SamplingInputs
from .base import check_inputs, filled_columns

__all__ = ["TorchRuntime", "torch_runtimes"]


ONE_THREAD_WIDTH = 512
"""Transformers up to this width run on one CPU thread: handing a matrix of that size to a second thread costs more than
it saves, and on a busy machine each of several hundred hand-overs per frame waits for the scheduler."""


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TorchRuntime:
    """Runs one graph in PyTorch.

    On a CPU, attention reads only the filled part of the cache; on a GPU the whole capacity under the mask,
    because finding the filled part would make the host wait for the device.

    Args:
        spec: The graph.
        module: ``DualAR`` for prefill, ``Frame`` for frame, ``Firefly`` for the codec's two graphs.
        one_thread: Whether to keep to one CPU thread.
    """

    def __init__(self, spec: GraphSpec, module: nn.Module, *, one_thread: bool = False) -> None:
        self.spec = spec
        self.module = module
        self._kv = [t.name for t in spec.inputs if t.name.startswith(("k_", "v_"))]
        first = next(module.parameters())
        self.device, self.dtype = first.device, first.dtype
        self._one_thread = one_thread

    def open(self) -> TorchRuntime:
        """Nothing to acquire: the weights are where they are."""
        return self

    def close(self) -> None:
        """Nothing to release."""

    def describe(self) -> dict[str, Any]:
        """Back end, device and precision."""
        return {"backend": "torch", "device": str(self.device), "precision": str(self.dtype).removeprefix("torch.")}

    @torch.inference_mode()
    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """See :meth:`Runtime.run`."""
        sizes = check_inputs(self.spec, tensors)
        with _one_thread() if self._one_thread else contextlib.nullcontext():
            return self._run(tensors, sizes, skip)

    def _run(self, tensors: Mapping[str, Tensor], sizes: dict[str, int], skip: int) -> dict[str, Tensor]:
        match self.spec.graph:
            case "codec_decode":
                return {"waveform": self.module.decode(tensors["codes"], skip)}
            case "codec_encode":
                return {"codes": self.module.encode(tensors["log_mel"].to(self.dtype))}
        start, mask = tensors["start"], tensors["mask"]
        new = mask.shape[2]
        filled = sizes["C"]
        if self.device.type == "cpu":
            filled = filled_columns(tensors, sizes)
            # One row that reads all filled slots needs no mask.
            mask = None if new == 1 and sizes["B"] == 1 else mask[..., :filled]
        caches = [
            StaticCache(tensors[k][:, :, :filled], tensors[v][:, :, :filled], start)
            for k, v in zip(self._kv[::2], self._kv[1::2], strict=True)
        ]
        out = {name: tensors[name] for name in self._kv}
        if self.spec.graph == "prefill":
            self.module.slow(tensors["columns"], start, mask, caches)
        else:
            sampling = SamplingInputs(
                *(tensors[name] for name in ("noise", "window", "temperature", "top_p", "penalty"))
            )
            step = (tensors["column"], start, mask, caches, sampling)
            if LOGITS[0] in self.spec.outputs:
                out["next"], logits = self.module.step(*step)
                out |= zip(LOGITS, (logits[0].float(), torch.stack(logits[1:], dim=1).float()), strict=True)
            else:
                out["next"] = self.module(*step)
        return out


def torch_runtimes(dual_ar: DualAR, codec: Firefly, rows: Tensor) -> dict[str, TorchRuntime]:
    """All four graphs over one copy of the weights.

    Args:
        dual_ar: The transformers, already on their device and in their precision.
        codec: The codec, likewise.
        rows: int64 [V], token ids the head may choose from.
    """
    device = next(dual_ar.parameters()).device
    frame = Frame(dual_ar, rows.to(device)).eval()
    modules = {"prefill": dual_ar, "frame": frame, "codec_decode": codec, "codec_encode": codec}
    dtype = next(dual_ar.parameters()).dtype
    narrow = device.type == "cpu" and dual_ar.config.dim <= ONE_THREAD_WIDTH
    return {
        graph: TorchRuntime(
            graph_spec(graph, dual_ar.config, noise=frame.noise_size, dtype=dtype),
            module,
            one_thread=narrow and graph in ("prefill", "frame"),
        )
        for graph, module in modules.items()
    }
