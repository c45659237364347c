"""Finished engines: found again by what they were built from, and built again when anything about them is wrong."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildCancelled, EngineRefused
from ..tables import html_table, text_table
from .build import build_recipe
from .flavour import Flavour
from .listen import Progress
from .lock import file_lock
from .profile import Profile
from .recipe import Recipe, difference, prepare
from .report import BuildReport
from .source import cached_sha256
from .store import load_engine_bytes, read_sidecar

__all__ = ["CachedEngine", "cached_engine", "load_engine_bytes", "why_stale"]


@dataclass(frozen=True, repr=False)
class CachedEngine:
    """An engine that is there now.

    Attributes:
        path: The engine file.
        report: What its build found, now or earlier.
        built: Whether it was built now.
        why: Why it was built, or why it could be kept.
        seconds: Wall-clock time of this call.
    """

    path: Path
    report: BuildReport
    built: bool
    why: str
    seconds: float

    def row(self) -> dict[str, Any]:
        """The engine as one row of a table; the seconds are those of this call."""
        row = self.report.row() | {"seconds": round(self.seconds, 2)}
        return row | {"now": "built" if self.built else "kept", "why": self.why}

    def __repr__(self) -> str:
        return text_table([self.row()])

    def _repr_html_(self) -> str:
        return html_table([self.row()])


def cached_engine(
    onnx_path: str | os.PathLike[str],
    profile: Profile | None = None,
    *,
    precision: str,
    flavour: str | Flavour | None = None,
    target: str | Sequence[str] | None = None,
    workspace: int | None = None,
    level: int | None = None,
    version_compatible: bool = False,
    timing_cache: Path | None = None,
    islands: Collection[str] = (),
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    folder: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> CachedEngine:
    """Returns the engine for a graph and a profile, building it only if the one that is there will not do.

    Arguments and errors are those of :func:`fstrt_helpers.engines.build.build_engine`.

    Two processes that want the same engine build it once: one builds, the other waits and then finds it.

    Args:
        force: Whether to build in any case.
    """
    began = time.perf_counter()
    recipe = prepare(
        onnx_path,
        profile,
        precision=precision,
        flavour=flavour,
        target=target,
        workspace=workspace,
        level=level,
        version_compatible=version_compatible,
        islands=islands,
        folder=folder,
    )

    def done(report: BuildReport, built: bool, why: str) -> CachedEngine:
        return CachedEngine(recipe.path, report, built, why, time.perf_counter() - began)

    def waiting() -> None:
        if progress:
            progress("Waiting for another build of this engine", 0, 1)
        if cancel and cancel():
            raise BuildCancelled("stopped while another process was building the engine", where=recipe.path)

    why = "asked to build" if force else why_stale(recipe)
    if not why:
        return done(read_sidecar(recipe.path).report, False, "key and hash agree")
    with file_lock(recipe.path.with_name(f".{recipe.path.name}.lock"), waiting) as waited:
        if waited and not why_stale(recipe):
            return done(read_sidecar(recipe.path).report, False, "another process has just built it")
        for leftover in recipe.path.parent.glob(f".{recipe.path.name}*.tmp"):  # of a build that was killed
            with contextlib.suppress(OSError):
                leftover.unlink()
        report = build_recipe(recipe, timing_cache=timing_cache, progress=progress, cancel=cancel)
    return done(report, True, why)


def why_stale(recipe: Recipe) -> str:
    """Why the engine that lies at the recipe's path must be built again; empty if it need not be."""
    try:
        sidecar = read_sidecar(recipe.path)
    except EngineRefused as error:
        return error.what
    if sidecar.key != recipe.key:
        return difference(sidecar.fields, recipe.fields)
    return sidecar.mismatch(recipe.path.stat().st_size, lambda: cached_sha256(recipe.path))
