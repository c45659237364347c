"""Device memory, page-locked host memory and a stream, shared by every back end that runs on a GPU.

With pycuda they come from the CUDA driver directly, in the *primary* context, the one PyTorch uses: two libraries that
each make a context of their own cannot read each other's memory. PyTorch sees the same bytes without a copy, through
the CUDA array interface. Without pycuda, PyTorch's own allocator gives the same three things.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import EnvironmentMissing, ParameterError

__all__ = ["DeviceMemory", "PycudaMemory", "TorchMemory", "open_memory"]

_KEPT: list[Any] = []  # pycuda's streams: PyTorch's allocator remembers their handles for as long as the process lives


class DeviceMemory(Protocol):
    """What a GPU runtime needs from the device.

    Attributes:
        name: ``pycuda`` or ``torch``.
        device: The GPU.
        stream: Where all work is enqueued.
        allocated: Bytes of device memory handed out so far.
    """

    name: str
    device: torch.device
    stream: torch.cuda.Stream
    allocated: int

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised device memory as a tensor; freed when the last tensor on it goes."""

    def page_locked(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Host memory the device copies to and from while the host goes on."""


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return max(int(np.prod(shape, dtype=np.int64)), 1) * dtype.itemsize


class TorchMemory:
    """Device memory from PyTorch's caching allocator."""

    name = "torch"

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.allocated = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :meth:`DeviceMemory.empty`."""
        self.allocated += _bytes(shape, dtype)
        return torch.empty(shape, dtype=dtype, device=self.device)

    def page_locked(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :meth:`DeviceMemory.page_locked`."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)


class PycudaMemory:
    """Device memory from the CUDA driver: no allocator between the buffers and what ``nvidia-smi`` shows.

    pycuda documents `mem_alloc`, `pagelocked_empty`, `Stream` and `Device.retain_primary_context` at
    https://documen.tician.de/pycuda/driver.html; the array interface is described at
    https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
    """

    name = "pycuda"

    def __init__(self, device: torch.device) -> None:
        torch.cuda.init()  # first, so that the primary context is there to be shared
        torch.empty(1, device=device)
        import pycuda.driver as driver

        driver.init()
        self._driver = driver
        self.device = torch.device("cuda", device.index or 0)
        self._context = driver.Device(self.device.index).retain_primary_context()
        with self._current():
            stream = driver.Stream()
        _KEPT.append(stream)
        self.stream = torch.cuda.ExternalStream(stream.handle, device=self.device)
        self.allocated = 0

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Makes the primary context current in this thread, and leaves the thread as it was."""
        self._context.push()
        try:
            yield
        finally:
            self._driver.Context.pop()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :meth:`DeviceMemory.empty`."""
        size = _bytes(shape, dtype)
        with self._current():
            allocation = self._driver.mem_alloc(size)
        self.allocated += size
        interface = {"shape": (size,), "typestr": "|u1", "data": (int(allocation), False), "version": 3}
        raw = torch.as_tensor(
            SimpleNamespace(__cuda_array_interface__=interface, allocation=allocation), device=self.device
        )
        return raw.view(dtype).view(shape) if 0 not in shape else torch.empty(shape, dtype=dtype, device=self.device)

    def page_locked(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :meth:`DeviceMemory.page_locked`."""
        with self._current():
            raw = self._driver.pagelocked_empty(_bytes(shape, dtype), np.uint8)
        return torch.from_numpy(raw).view(dtype).view(shape)


def open_memory(device: torch.device, kind: str = "auto") -> DeviceMemory:
    """Device memory by pycuda if it is installed, else by PyTorch; ``name`` says which.

    Args:
        device: A CUDA device.
        kind: ``auto``, ``pycuda`` or ``torch``.

    Raises:
        ParameterError: Another kind, or a device that is no GPU.
        EnvironmentMissing: pycuda was asked for and is not installed, or there is no GPU.
    """
    if kind not in ("auto", "pycuda", "torch"):
        raise ParameterError(f"there is no device memory {kind!r}", fix="use auto, pycuda or torch")
    if device.type != "cuda":
        raise ParameterError(f"{device} is no GPU", fix="device memory is for cuda devices")
    if not torch.cuda.is_available():
        raise EnvironmentMissing("there is no CUDA device", where=str(device), fix="notebook 00 says what is missing")
    makers: dict[str, Any] = {"pycuda": PycudaMemory, "torch": TorchMemory}
    if kind == "auto":
        kind = "pycuda" if importlib.util.find_spec("pycuda") else "torch"
    elif kind == "pycuda" and importlib.util.find_spec("pycuda") is None:
        raise EnvironmentMissing("pycuda is not installed", fix="pip install pycuda (it needs nvcc's headers)")
    return makers[kind](device)
