"""Asks the NVIDIA driver, through its C interface, which GPUs this process may use. Needs no Python package."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["NO_GPU", "Gpu", "driver_fix", "driver_gpus", "driver_text"]

NO_GPU = "an NVIDIA GPU and its driver; no command brings a GPU"


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it."""

    name: str
    compute_capability: tuple[int, int]
    memory_mib: int

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"{self.name}, compute capability {major}.{minor}, {self.memory_mib:,} MiB"


def driver_gpus() -> tuple[tuple[Gpu, ...], tuple[int, int] | None]:
    """Asks the CUDA driver itself: GPUs visible to this process, and the newest CUDA version it serves."""
    try:
        cuda = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        version, count = ctypes.c_int(), ctypes.c_int()
        if cuda.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return (), None
        served = (version.value // 1000, version.value % 1000 // 10)
        if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return (), served
        return tuple(_gpu(cuda, index) for index in range(count.value)), served
    except (OSError, AttributeError):
        return (), None


def _gpu(cuda: Any, index: int) -> Gpu:
    name, memory, major, minor = ctypes.create_string_buffer(128), ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    return Gpu(name.value.decode(errors="replace"), (major.value, minor.value), memory.value // 2**20)


def driver_text(cuda: tuple[int, int] | None) -> str:
    """The driver's release number where the system tells it, and the CUDA version it serves."""
    if cuda is None:
        return "no NVIDIA driver library"
    release = ""
    with contextlib.suppress(Exception):
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(80)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            release = text.value.decode() + ", "
    return f"{release}serves CUDA {cuda[0]}.{cuda[1]}"


def driver_fix() -> str:
    """The distribution's own command, where an NVIDIA card is plugged in without a driver."""
    cards = Path("/sys/bus/pci/devices").glob("*/vendor")
    with contextlib.suppress(OSError):
        if any(card.read_text().strip() == "0x10de" for card in cards):
            ubuntu = platform.freedesktop_os_release().get("ID") == "ubuntu"
            return "sudo ubuntu-drivers install" if ubuntu else "sudo apt-get install nvidia-driver"
    return NO_GPU
