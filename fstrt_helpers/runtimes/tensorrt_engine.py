"""A TensorRT engine in memory, and the contexts that execute it. TensorRT and TensorRT-RTX alike.

NVIDIA's pages on the calls made here, by the class they belong to:

* Runtime: https://docs.nvidia.com/deeplearning/tensorrt-rtx/1.0/_static/python-api/infer/Core/Runtime.html
* ICudaEngine: https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/_static/python-api/infer/Core/Engine.html
* IRuntimeConfig: https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/_static/python-api/infer/Core/RuntimeConfig.html
* IExecutionContext, IOutputAllocator:
  https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/_static/python-api/infer/Core/ExecutionContext.html
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..engines.flavour import Flavour
from ..engines.listen import collect_log, trt_logger
from ..errors import EngineError, EngineRefused

__all__ = ["LoadedEngine", "output_allocator"]


class LoadedEngine:
    """A deserialised engine.

    Args:
        flavour: Which TensorRT.
        content: The bytes of the file, from :func:`fstrt_helpers.engines.store.load_engine_bytes`, which checked them.
        path: Where they lay, for messages.
        host_code: Whether it is a version-compatible engine: those carry code for the host, which must be allowed.
            https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/advanced.html

    Attributes:
        workspace_bytes: Device memory that an execution context needs, for the largest sizes of the profile.

    Raises:
        EngineRefused: TensorRT does not load it. TensorRT-RTX tells why by flags:
            https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/engine-compatibility.html
    """

    def __init__(self, flavour: Flavour, content: bytes, path: Path, *, host_code: bool = False) -> None:
        self._flavour, self._path = flavour, path
        with collect_log(flavour) as log:
            self._runtime = flavour.module.Runtime(trt_logger(flavour))  # must outlive the engine
            if host_code:
                self._runtime.engine_host_code_allowed = True
            self._engine = self._runtime.deserialize_cuda_engine(content)
        if self._engine is None:
            reasons = [flavour.why_not_here] if flavour.why_not_here else []
            if hasattr(self._runtime, "get_engine_validity"):
                flags = int(self._runtime.get_engine_validity(content)[1])
                kinds = flavour.module.EngineInvalidityDiagnostics.__members__.items()
                reasons += [name.replace("_", " ").lower() for name, flag in kinds if flags & int(flag)]
            why = "; ".join([*reasons, *_said(log)]) or "no reason was given"
            raise EngineRefused(
                f"{flavour.name} does not load the engine: {why}", where=path, fix="build it for this GPU"
            )
        self.workspace_bytes = max(int(self._engine.device_memory_size_v2), 1)

    def writes_into(self, output: str) -> str | None:
        """The input that an output shares its memory with, as that of KVCacheUpdate must.

        https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/operators/KVCacheUpdate.html
        """
        ask = getattr(self._engine, "get_aliased_input_tensor", None)  # older versions have no such layer
        return ask(output) if ask else None

    def context(self, workspace: Tensor, *, fixed: bool = False) -> Any:
        """An ``IExecutionContext`` on device memory of ours.

        Args:
            workspace: uint8 [:attr:`workspace_bytes`], not to be used by anything that runs at the same time.
            fixed: Whether its shapes will be set once and its work captured. TensorRT-RTX compiles kernels when it
                first meets a shape, in the background unless told otherwise; what was captured before that would keep
                the slow kernels that serve until then.
                https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/work-with-cuda-graphs.html

        Raises:
            EngineError: TensorRT cannot make one, for want of memory as a rule.
        """
        trt = self._flavour.module
        how = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if fixed and hasattr(trt, "DynamicShapesKernelSpecializationStrategy"):
            settings = self._engine.create_runtime_config()
            settings.set_execution_context_allocation_strategy(how)
            settings.dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.EAGER
            how = settings
        with collect_log(self._flavour) as log:
            context = self._engine.create_execution_context(how)
        if context is None:
            raise EngineError(f"TensorRT cannot make an execution context: {_because(log)}", where=self._path)
        context.set_device_memory(workspace.data_ptr(), workspace.numel())
        return context

    def enqueue(self, context: Any, stream: torch.cuda.Stream) -> None:
        """Enqueues a context whose shapes and addresses are set.

        Raises:
            EngineError: TensorRT reports a fault.
        """
        with collect_log(self._flavour) as log:
            if not context.execute_async_v3(stream.cuda_stream):
                raise EngineError(f"TensorRT cannot enqueue the engine: {_because(log)}", where=self._path)


def output_allocator(flavour: Flavour, device: torch.device, dtype: torch.dtype) -> Any:
    """An ``IOutputAllocator`` for an output whose shape depends on values; ``tensor()`` has it after the run."""
    trt = flavour.module

    class Allocator(trt.IOutputAllocator):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)
            self.buffer = torch.empty(0, dtype=torch.uint8, device=device)
            self.shape: tuple[int, ...] = (0,)

        def reallocate_output_async(self, tensor_name: str, memory: int, size: int, alignment: int, stream: int) -> int:
            if size > self.buffer.numel():
                self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
            return self.buffer.data_ptr()

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

        def tensor(self) -> Tensor:
            return self.buffer[: math.prod(self.shape) * dtype.itemsize].view(dtype).view(self.shape)

    return Allocator()


def _said(log: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(text.strip() for _, text in log))


def _because(log: list[tuple[str, str]]) -> str:
    return "; ".join(_said(log)) or "no reason was given"
