"""The codec's decoder on a GPU as CUDA graphs, one per length.

Decoding two seconds takes about 400 launches, and PyTorch plans convolutions anew for every length in every thread;
a captured graph is planned once and launched as a whole, from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES
from .base import check_inputs
from .torch import TorchRuntime

__all__ = ["LONGEST", "CapturedCodec"]

LONGEST = 128
"""Frames; longer or batched codes are decoded without a graph. Pieces of a stream are shorter."""


class CapturedCodec:
    """``codec_decode`` in PyTorch, captured at every length it meets up to :data:`LONGEST`.

    All graphs share one pool of memory and run one at a time.

    Args:
        runtime: ``codec_decode`` on a CUDA device.
    """

    def __init__(self, runtime: TorchRuntime) -> None:
        self.spec, self.device = runtime.spec, runtime.device
        self._runtime = runtime
        self._stream = torch.cuda.Stream(self.device)
        self._lock = threading.Lock()
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def open(self) -> CapturedCodec:
        """Nothing to acquire: graphs are captured when a length is met first."""
        return self

    def close(self) -> None:
        """Drops the graphs."""
        with self._lock:
            self._graphs.clear()

    def describe(self) -> dict[str, Any]:
        """Back end, device, precision, and the lengths captured so far."""
        return self._runtime.describe() | {"captured": sorted(self._graphs)}

    @torch.inference_mode()
    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """See :meth:`fstrt_helpers.runtimes.base.Runtime.run`."""
        sizes = check_inputs(self.spec, tensors)
        if sizes["B"] > 1 or sizes["T"] > LONGEST:
            return self._runtime.run(tensors, skip=skip)
        with self._lock:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._stream):
                if sizes["T"] not in self._graphs:
                    self._graphs[sizes["T"]] = self._capture(tensors["codes"])
                graph, codes, waveform = self._graphs[sizes["T"]]
                codes.copy_(tensors["codes"])
                graph.replay()
                samples = waveform[..., skip * FRAME_SAMPLES :].clone()
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
            samples.record_stream(torch.cuda.current_stream(self.device))
        return {"waveform": samples}

    def _capture(self, example: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        codes = example.clone()
        for _ in range(2):  # plans and allocates what must not be captured
            self._runtime.run({"codes": codes})
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            waveform = self._runtime.run({"codes": codes})["waveform"]
        return graph, codes, waveform
