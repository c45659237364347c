"""Frame loops kept for reuse: capturing one takes a moment, replaying it none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from ..errors import EngineRefused, ParameterError
from ..model.dual_ar import DualAR
from .base import Runtime
from .buffers import DeviceMemory
from .fused import MOST_ROWS, FusedFrame, fused_missing
from .loop import FrameLoop, PlainStep
from .onnxruntime import OrtRuntime, OrtStep
from .state import FrameState
from .tensorrt import TrtStep
from .tensorrt_buckets import TrtBuckets
from .tensorrt_files import serving
from .torch import TorchRuntime

__all__ = ["LoopPool", "onnxruntime_pool", "tensorrt_pool", "torch_pool"]


class LoopPool:
    """Hands out loops, each to one generation at a time, so that several threads can speak at once.

    Args:
        make: Makes a loop of a batch and a capacity.
        reads_prefix: Whether a frame costs what is filled, not what is allocated: then it need not start small.
        memory: Where its tensors come from.
        facts: What the loops do, in plain words.
        serving: Tells which capacity a loop for so many columns gets, where not every one can be had.

    Attributes:
        loops: All loops made so far.
    """

    def __init__(
        self,
        make: Callable[[int, int], FrameLoop],
        *,
        reads_prefix: bool,
        memory: DeviceMemory | None,
        facts: dict[str, Any],
        serving: Callable[[int], int] = lambda columns: columns,
    ) -> None:
        self._make, self.reads_prefix, self.memory, self.facts = make, reads_prefix, memory, facts
        self._serving = serving
        self.loops: list[FrameLoop] = []
        self._idle: list[FrameLoop] = []
        self._lock = threading.Lock()

    def take(self, batch: int, capacity: int) -> FrameLoop:
        """An idle loop of that batch and at least that capacity, or a new one."""
        capacity = self._serving(capacity)
        with self._lock:
            for loop in self._idle:
                if (loop.state.batch, loop.state.capacity) == (batch, capacity):
                    self._idle.remove(loop)
                    return loop
        loop = self._make(batch, capacity)
        with self._lock:
            self.loops.append(loop)
        return loop

    def give(self, loop: FrameLoop) -> None:
        """Takes a loop back."""
        with self._lock:
            self._idle.append(loop)

    def close(self) -> None:
        """Forgets all loops, and with them their device memory."""
        with self._lock:
            self.loops.clear()
            self._idle.clear()

    def page_locked(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory a loop can be read into."""
        if self.memory is None:
            return torch.empty(shape, dtype=dtype)
        return self.memory.page_locked(shape, dtype)


def torch_pool(
    runtimes: dict[str, TorchRuntime], memory: DeviceMemory | None, *, kernels: str = "auto", capture: bool = True
) -> LoopPool:
    """Loops over the PyTorch modules.

    Args:
        runtimes: ``prefill`` and ``frame``, open, on one device.
        memory: Device memory; None on a CPU, where nothing is captured.
        kernels: ``fused`` for the Triton kernels, ``plain`` for PyTorch's, ``auto`` for the first if they can run.
        capture: Whether to capture a frame as one CUDA graph.

    Raises:
        ParameterError: Unknown kernels, or fused ones that cannot run here.
    """
    if kernels not in ("auto", "fused", "plain"):
        raise ParameterError(f"there are no kernels {kernels!r}", fix="use auto, fused or plain")
    frame = runtimes["frame"].module
    model: DualAR = frame.model
    missing = fused_missing(model.config)
    if kernels == "fused" and missing:
        raise ParameterError(f"the fused kernels cannot run: {missing}", fix="use kernels='plain'")
    fused = kernels != "plain" and missing is None and memory is not None

    def make(batch: int, capacity: int) -> FrameLoop:
        device = runtimes["frame"].device
        state = FrameState(
            runtimes["frame"].spec, model.config, device, batch, capacity, memory.empty if memory else None
        )
        step = FusedFrame(frame, state) if fused and batch <= MOST_ROWS else PlainStep(frame, state)
        if not capture:
            step.capture = "nothing"
        return FrameLoop(runtimes["prefill"], step, state, torch.cuda.Stream(device) if memory else None)

    words = "fused Triton" if fused else f"PyTorch's ({missing or 'asked for'})"
    return LoopPool(make, reads_prefix=fused, memory=memory, facts={"kernels": words, "cuda_graph": capture})


def onnxruntime_pool(prefill: Runtime, frame: OrtRuntime, memory: DeviceMemory, *, cuda_graph: bool) -> LoopPool:
    """Loops over an exported ``frame`` graph.

    Args:
        prefill: Open, on the same stream.
        frame: Open, on the memory's stream, with or without CUDA graphs.
        memory: Device memory.
        cuda_graph: As `frame` was opened.
    """
    made = iter(range(1, 1 << 30))
    turn = threading.RLock()  # one stream for all: see FrameLoop

    def make(batch: int, capacity: int) -> FrameLoop:
        state = FrameState(frame.spec, frame.config, frame.device, batch, capacity, memory.empty)
        return FrameLoop(prefill, OrtStep(frame, state, next(made)), state, memory.stream, turn)

    return LoopPool(
        make, reads_prefix=False, memory=memory, facts={"kernels": "ONNX Runtime's", "cuda_graph": cuda_graph}
    )


def tensorrt_pool(prefill: TrtBuckets, frame: TrtBuckets, memory: DeviceMemory) -> LoopPool:
    """Loops over ``frame`` engines, in the capacities that both graphs have engines for.

    Args:
        prefill: Open, on the memory's stream.
        frame: Likewise.
        memory: Device memory.

    Raises:
        EngineRefused: No capacity is common to both.
    """
    common = sorted(set(prefill.capacities) & set(frame.capacities))
    where = frame.runtimes[frame.capacities[0]].file.path.parent
    if not common:
        raise EngineRefused("prefill and frame have no engines of one capacity", where=where, fix="build both again")

    def make(batch: int, capacity: int) -> FrameLoop:
        runtime = frame.at(capacity)
        state = FrameState(runtime.spec, runtime.file.config, frame.device, batch, capacity, memory.empty)
        # A stream for each loop, so that one can be captured while another runs.
        return FrameLoop(prefill, TrtStep(runtime, state), state, torch.cuda.Stream(frame.device))

    facts = {"kernels": "TensorRT's", "cuda_graph": "where TensorRT allows it", "capacities": common}
    return LoopPool(
        make, reads_prefix=False, memory=memory, facts=facts, serving=lambda columns: serving(common, columns, where)
    )
