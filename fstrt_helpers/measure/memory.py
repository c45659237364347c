"""How much memory a process takes, by three witnesses: the driver, PyTorch's allocator, and the operating system.

PyTorch's allocator sees only what PyTorch allocated. What TensorRT, ONNX Runtime, captured graphs and the CUDA context
hold shows at the driver alone, so the driver's figure is the one to quote for a GPU and the resident set for a CPU.
All figures are megabytes of 10^6 bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Memory", "MemoryLog", "driver_used", "host_resident"]

_STATUS = Path("/proc/self/status")
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Memory:
    """What this process holds, in MB; None where the witness is absent.

    Attributes:
        driver: Of the GPU's memory, as the driver counts it, context included.
        allocator: Of the GPU's memory, as PyTorch's allocator counts its tensors.
        host: Resident set, beyond what Python and its libraries took at the start.
    """

    driver: float | None
    allocator: float | None
    host: float | None

    def row(self) -> dict[str, float | None]:
        """Rounded, with the unit in the names."""
        return {f"{k}_mb": None if v is None else round(v, 1) for k, v in asdict(self).items()}


def host_resident(peak: bool = False) -> float | None:
    """Resident set of this process in MB, or the highest since the last restart of the peak."""
    try:
        found = re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", _STATUS.read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024 / 1e6
    try:
        import resource
    except ImportError:
        return None
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6


def _forget_host_peak() -> None:
    """Makes the kernel start the highest resident set anew (proc(5), clear_refs, value 5)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml_reader() -> Callable[[], float] | None:
    """Reads the first visible GPU's used memory through NVML, which needs no CUDA context of its own."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        device, bus, handle = ctypes.c_int(), ctypes.create_string_buffer(32), ctypes.c_void_p()
        if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
            return None
        if cuda.cuDeviceGetPCIBusId(bus, len(bus), device) or nvml.nvmlInit_v2():
            return None
        if nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)):
            return None
    except (OSError, AttributeError):
        return None
    info = _NvmlMemory()

    def read() -> float:
        code = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(info))
        return info.used / 1e6 if code == 0 else float("nan")

    return None if read() != read() else read


def _torch_reader() -> Callable[[], float] | None:
    """The same through cudaMemGetInfo, where NVML is missing: it makes a context, so that one is not counted."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None

    def read() -> float:
        free, total = torch.cuda.mem_get_info()
        return (total - free) / 1e6

    return read


def driver_used() -> Callable[[], float] | None:
    """A function that reads how much memory of the first visible GPU is in use by everyone, in MB; None without one."""
    return _nvml_reader() or _torch_reader()


class MemoryLog:
    """Keeps account of one process's memory while other processes share the GPU.

    The driver counts what all processes hold together. As long as they take turns, what the total grows by during a
    process's own turn is its own: wrap everything that allocates in :meth:`turn`.

    Args:
        gpu: Whether the work runs on a GPU. Make the log before CUDA is initialised, so that the context counts.
        read: Tells the driver's total in MB; :func:`driver_used` unless given.
    """

    def __init__(self, gpu: bool, read: Callable[[], float] | None = None) -> None:
        self._read = read or (driver_used() if gpu else None)
        self._gpu = gpu
        self._own = self._peak = 0.0
        self._base = host_resident() or 0.0

    @contextlib.contextmanager
    def turn(self, watch: bool = False) -> Iterator[None]:
        """Counts what the driver's total grows by in here as this process's.

        Args:
            watch: Look every 20 ms for a peak in between. Not while something is being timed.
        """
        if self._read is None:
            yield
            return
        before = highest = self._read()
        over = threading.Event()

        def sample() -> None:
            nonlocal highest
            while not over.wait(_SAMPLE_SECONDS):
                highest = max(highest, self._read())

        thread = threading.Thread(target=sample, daemon=True)
        if watch:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if watch:
                thread.join()
            after = self._read()
            self._peak = max(self._peak, self._own + max(highest, after) - before)
            self._own += after - before

    def now(self) -> Memory:
        """What is held at this moment."""
        host = host_resident()
        return Memory(
            None if self._read is None else self._own,
            self._allocator(peak=False),
            None if host is None else max(host - self._base, 0.0),
        )

    def peak(self) -> Memory:
        """The most that was held since :meth:`restart_peak`."""
        host = host_resident(peak=True)
        return Memory(
            None if self._read is None else max(self._peak, self._own),
            self._allocator(peak=True),
            None if host is None else max(host - self._base, 0.0),
        )

    def restart_peak(self) -> None:
        """Forgets earlier peaks: after loading, say, which needs more than running."""
        self._peak = self._own
        _forget_host_peak()
        torch = sys.modules.get("torch")
        if self._gpu and torch is not None and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()

    def _allocator(self, peak: bool) -> float | None:
        torch = sys.modules.get("torch")
        if not self._gpu or torch is None or not torch.cuda.is_initialized():
            return None
        return (torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / 1e6
