"""Picks the TensorRT to use: ``tensorrt`` or ``tensorrt_rtx``. Everything else takes what it returns and says ``trt``.

The two packages have the same Python API. What they can do differs, and that is what a :class:`Flavour` knows.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..driver import Gpu, driver_gpus
from ..errors import EnvironmentMissing, ParameterError
from ..tables import html_table, text_table

__all__ = ["CHOICE", "FLAVOURS", "PORTABLE", "Flavour", "load_trt"]

FLAVOURS = ("tensorrt", "tensorrt_rtx")
CHOICE = "FSTRT_TENSORRT"
"""Environment variable that names the flavour."""
PORTABLE = "portable"

_OLDEST = {"tensorrt": 10, "tensorrt_rtx": 1}  # major versions; strongly typed networks begin with TensorRT 10
_INSTALL = {
    "tensorrt": "python -m pip install tensorrt (pinned in requirements-gpu.txt)",
    "tensorrt_rtx": "python -m pip install tensorrt-rtx (pinned in requirements.txt)",
}
# https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html: portable engines run on
# these; 7.5 needs an engine made for it alone. 9.0 and 10.0 are refused.
_RTX_PORTABLE = "8.0, 8.6, 8.9 and 12.x"


@dataclass(frozen=True, repr=False)
class Flavour:
    """One TensorRT, imported.

    Attributes:
        name: One of :data:`FLAVOURS`.
        version: Such as ``11.4.0.106``.
        module: The Python module; call it ``trt``.
        chosen: Why it was picked, in words.
        gpus: GPUs that the driver offers to this process.
    """

    name: str
    version: str
    module: Any = field(compare=False)
    chosen: str = field(default="", compare=False)
    gpus: tuple[Gpu, ...] = ()

    @property
    def timing_cache(self) -> bool:
        """Whether measured kernel times can be kept from one build to the next.

        TensorRT-RTX measures nothing while it builds; its timing-cache calls do nothing and warn.
        """
        return self.name == "tensorrt"

    @property
    def version_compatible(self) -> bool:
        """Whether an engine for later versions of the same flavour can be asked for.

        https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html
        """
        return self.name == "tensorrt"

    @property
    def builds_without_gpu(self) -> bool:
        """Whether a machine without a GPU can build and serialise engines."""
        return self.name == "tensorrt_rtx"

    @property
    def why_not_here(self) -> str:
        """Why engines cannot run on this machine; empty if they can."""
        if not self.gpus:
            return "the driver offers no GPU to this process"
        major, minor = self.gpus[0].compute_capability
        if self.name == "tensorrt":
            return "" if (major, minor) >= (7, 5) else f"compute capability {major}.{minor} is below 7.5"
        if (major, minor) in ((7, 5), (8, 0), (8, 6), (8, 9)) or major == 12:
            return ""
        return f"compute capability {major}.{minor} is none that TensorRT-RTX runs on (7.5, {_RTX_PORTABLE})"

    @property
    def runs_here(self) -> bool:
        """Whether engines can run on the first GPU of this machine."""
        return not self.why_not_here

    @property
    def here(self) -> str:
        """The first GPU as a target, such as ``SM89``; empty without a GPU."""
        return "SM{}{}".format(*self.gpus[0].compute_capability) if self.gpus else ""

    def target(self, target: str | Sequence[str] | None = None) -> tuple[str, ...]:
        """Turns what the caller wants into what the builder is told.

        Args:
            target: ``portable``, ``current`` (this machine's GPU), or GPUs such as ``SM86`` or ``("SM86", "SM120")``.
                None means portable for TensorRT-RTX and current for TensorRT.

        Returns:
            ``("portable",)`` or the targets, in ascending order.

        Raises:
            ParameterError: The flavour has no such target.
            EnvironmentMissing: It needs a GPU to build, and there is none.
        """
        if self.name == "tensorrt" and not self.gpus:
            raise EnvironmentMissing(
                "TensorRT builds engines only where there is a GPU; it measures kernels on it",
                where="the CUDA driver",
                fix=f"set {CHOICE}=tensorrt_rtx, which builds without one, or use a machine with a GPU",
            )
        if target is None:
            target = PORTABLE if self.builds_without_gpu else "current"
        names = [target] if isinstance(target, str) else list(target)
        names = [part.strip() for name in names for part in name.split(",") if part.strip()]
        if names == [PORTABLE]:
            return (PORTABLE,)
        if "current" in names and not self.gpus:
            raise EnvironmentMissing(
                "target 'current' needs a GPU, and the driver offers none", fix="use portable, or name targets: SM86"
            )
        names = [self.here if name == "current" else name.upper() for name in names]
        known = [n for n in getattr(self.module, "ComputeCapability", _NoTargets).__members__ if n.startswith("SM")]
        known = known if self.builds_without_gpu else [self.here]
        if not names or (wrong := [name for name in names if name not in known]):
            raise ParameterError(
                f"{self.name} has no target {', '.join(wrong) if names else '(none given)'}",
                where=f"{self.name} {self.version}",
                fix=f"use portable, current, or some of: {', '.join(known)}",
            )
        return tuple(sorted(set(names), key=lambda name: int(name[2:])))

    def _rows(self) -> list[dict[str, Any]]:
        here = self.why_not_here
        return [
            {"": "flavour", "what": f"{self.name} {self.version}"},
            {"": "chosen", "what": self.chosen},
            {"": "builds without a GPU", "what": self.builds_without_gpu},
            {"": "timing cache", "what": self.timing_cache},
            {"": "engines for later versions", "what": self.version_compatible},
            {"": "runs engines here", "what": f"no: {here}" if here else f"yes, on {self.gpus[0]}"},
        ]

    def __repr__(self) -> str:
        return text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows())


class _NoTargets:
    __members__: tuple[str, ...] = ()


def load_trt(flavour: str | Flavour | None = None) -> Flavour:
    """Imports one TensorRT.

    Args:
        flavour: ``tensorrt`` or ``tensorrt_rtx``. None asks the environment variable :data:`CHOICE`, and if that is not
            set takes what is installed, ``tensorrt`` first.

    Raises:
        ParameterError: There is no flavour of that name.
        EnvironmentMissing: The one asked for, or any, does not import.
    """
    if isinstance(flavour, Flavour):
        return flavour
    asked, by = (flavour, "asked for") if flavour else (os.environ.get(CHOICE), f"{CHOICE} is set")
    if asked:
        name = asked.strip().lower().replace("-", "_")
        if name not in FLAVOURS:
            where = "the argument" if flavour else f"the environment variable {CHOICE}"
            raise ParameterError(f"there is no TensorRT {asked!r}", where=where, fix=f"use {' or '.join(FLAVOURS)}")
        return _import(name, by)
    problems = []
    for name in FLAVOURS:
        try:
            return _import(name, "; ".join(["the first that imports", *problems]))
        except EnvironmentMissing as error:
            problems.append(error.what)
    raise EnvironmentMissing(
        "no TensorRT is installed",
        where="; ".join(problems),
        fix=f"{_INSTALL['tensorrt_rtx']}, or {_INSTALL['tensorrt']}",
    )


def _import(name: str, chosen: str) -> Flavour:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a missing CUDA library shows as OSError, ImportError or RuntimeError
        raise EnvironmentMissing(
            f"{name} does not import ({type(error).__name__}: {error})", fix=_INSTALL[name]
        ) from error
    version = str(module.__version__)
    if int(version.split(".")[0]) < _OLDEST[name]:
        raise EnvironmentMissing(
            f"{name} {version} is too old: strongly typed networks need {_OLDEST[name]}", fix=_INSTALL[name]
        )
    return Flavour(name, version, module, chosen, driver_gpus()[0])
