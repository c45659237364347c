"""The timing cache of TensorRT: measured kernel times, kept so that the next build need not measure them again.

TensorRT-RTX measures nothing while it builds. Its calls of the same names do nothing and warn, so none is made there.
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Core/TimingCache.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ParameterError
from .flavour import Flavour
from .lock import file_lock
from .source import replace_file

__all__ = ["attach_timing_cache", "save_timing_cache", "timing_cache_path"]


def timing_cache_path(folder: Path, flavour: Flavour, asked: Path | None = None) -> Path | None:
    """Where the cache of this flavour, version and GPU lies; None where there is no such thing.

    Raises:
        ParameterError: One was asked for by name, and the flavour has none.
    """
    if flavour.timing_cache:
        return asked or folder / f"timing-{flavour.name}-{flavour.version}-{flavour.here}.cache"
    if asked is not None:
        raise ParameterError(
            f"{flavour.name} has no timing cache: it measures no kernels while it builds",
            fix="leave timing_cache out; finished engines are cached all the same",
        )
    return None


def attach_timing_cache(config: Any, path: Path) -> bool:
    """Gives the builder's configuration what earlier builds measured.

    Returns:
        Whether anything was taken over. A cache of another version or GPU, or a damaged one, is not: the build then
        starts with an empty one.
    """
    stored = path.read_bytes() if path.is_file() else b""
    if stored:
        cache = config.create_timing_cache(stored)
        if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
            return True
    config.set_timing_cache(config.create_timing_cache(b""), ignore_mismatch=False)
    return False


def save_timing_cache(config: Any, path: Path) -> None:
    """Writes what the build measured, together with what other builds have written meanwhile."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    with file_lock(path.with_name(f".{path.name}.lock")):
        if path.is_file() and (other := config.create_timing_cache(path.read_bytes())) is not None:
            cache.combine(other, ignore_mismatch=False)
        with memoryview(cache.serialize()) as measured:
            replace_file(path, measured.cast("B"))
