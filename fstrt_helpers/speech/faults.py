"""Which exceptions are faults of a back end, that another one may not have, and what to call them."""

from __future__ import annotations

import re

import torch

from ..errors import (
    BuildCancelled,
    EngineError,
    EnvironmentMissing,
    FstrtError,
    GraphError,
    NonFiniteOutput,
    ProfileError,
    RuntimeInputError,
)

__all__ = ["NOT_FINITE", "fault_of"]

NOT_FINITE = "not finite"
_LONGEST = 300  # characters of a library's message worth repeating

_KINDS: tuple[tuple[type[FstrtError], str], ...] = (
    (NonFiniteOutput, NOT_FINITE),
    (EnvironmentMissing, "cannot run here"),
    (ProfileError, "input outside the profile"),
    (RuntimeInputError, "input it cannot take"),
    (EngineError, "engine unusable"),
    (GraphError, "graph unusable"),
)
_FULL = re.compile(
    r"out of memory|out_?of_?memory|failed to allocate|can't allocate|cannot allocate|could not be allocated"
    r"|bad_alloc|alloc_failed|memoryallocation",
    re.IGNORECASE,
)
"""As it reads in PyTorch ("CUDA out of memory", "DefaultCPUAllocator: can't allocate memory"), ONNX Runtime ("Failed to
allocate memory for requested buffer of size": https://github.com/microsoft/onnxruntime/issues/22702), TensorRT
("OutOfMemory", "Requested amount of GPU memory ... could not be allocated":
https://github.com/NVIDIA/TensorRT/issues/3017) and the driver."""
_DEVICE = re.compile(r"CUDA error|CUDA driver error|CUDA failure|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error")
_LIBRARIES = ("onnxruntime", "pycuda", "tensorrt", "tensorrt_rtx", "triton")


def fault_of(error: BaseException) -> str | None:
    """The kind of fault and its message in one line; None for what another back end would not mend.

    Faults are: a library, driver or device that is missing, a graph or engine that is missing, stale or cannot be
    built, an input it cannot take, values that are not finite, memory that does not suffice, and a failure inside
    the library. A mistake in the call (text, voice, parameter), a cancelled build, and a mistake in this program are
    none.
    """
    if isinstance(error, BuildCancelled):
        return None
    text = error.what if isinstance(error, FstrtError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    kind = next((words for cls, words in _KINDS if isinstance(error, cls)), None)
    if isinstance(error, FstrtError) and kind is None:
        return None
    if isinstance(error, ImportError):
        kind = "cannot run here"
    library = type(error).__module__.partition(".")[0] in _LIBRARIES
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if kind or library or isinstance(error, RuntimeError):
        full |= _FULL.search(str(error)) is not None
    if full and kind != NOT_FINITE:
        kind = "out of memory"
    elif kind is None and (library or isinstance(error, torch.AcceleratorError)):
        kind = "failed inside the library"
    elif kind is None and isinstance(error, RuntimeError) and _DEVICE.search(str(error)):
        kind = "failed on the device"
    return kind and f"{kind}: {text}"
