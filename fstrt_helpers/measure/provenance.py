"""Where figures come from: the machine, the versions of everything involved, the commit of this repository."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..driver import driver_gpus, driver_text
from .records import machine_facts

__all__ = ["describe_machine", "describe_versions", "git_commit"]

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = (
    "torch", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx", "triton",
    "fish-speech", "fish-speech-lib", "vector-quantize-pytorch",
)  # fmt: skip


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and the GPU with its driver."""
    facts = machine_facts()
    gpus, cuda = driver_gpus()
    found = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    return {
        "cpu": facts["cpu"],
        "cores": facts["cores"],
        "memory_gb": round(int(found[1]) * 1024 / 1e9, 1) if found else None,
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpus[0].name if gpus else None,
        "compute_capability": ".".join(map(str, gpus[0].compute_capability)) if gpus else None,
        "gpu_memory_mib": gpus[0].memory_mib if gpus else None,
        "driver": driver_text(cuda) if cuda else None,
    }


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def describe_versions() -> dict[str, str | None]:
    """Versions of what was measured and of what measured it; None where it is not installed."""
    from .. import __version__

    found: dict[str, str | None] = {"fstrt_helpers": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def git_commit(folder: Path = _ROOT) -> str | None:
    """Commit of this repository, with a ``+`` if files differ from it; None outside a checkout."""
    try:
        run = [
            subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=20)
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.TimeoutExpired):
        return None
    if run[0].returncode:
        return None
    return run[0].stdout.strip() + "+" * bool(run[1].stdout.strip())
