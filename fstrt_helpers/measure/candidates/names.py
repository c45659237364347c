"""The candidates by name, the precisions they run in, and what says at once that one cannot run here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec

from ...driver import driver_gpus
from ...errors import ParameterError
from ...graphs.spec import PRECISIONS
from ..grid import Point

__all__ = ["CANDIDATES", "Candidate", "Contender", "contenders", "not_measured", "takes_part", "why_not"]


@dataclass(frozen=True)
class Candidate:
    """A way to run the model.

    Attributes:
        name: As records and tables call it.
        what: In words.
        cpu: Precisions it runs in on a CPU; the first is the usual one. Empty: not on a CPU.
        cuda: The same on a GPU.
        modules: Python modules it needs, any one of each group.
    """

    name: str
    what: str
    cpu: tuple[str, ...]
    cuda: tuple[str, ...]
    modules: tuple[str, ...] = ()


_HALF = ("float16", "bfloat16")
_ENGINE = ("float16", "bfloat16", "float32", "int8")
CANDIDATES = {
    c.name: c
    for c in (
        Candidate("upstream-eager", "upstream's own code", ("float32",), ("bfloat16", "float16"), ("fish_speech_lib",)),
        Candidate("upstream-compile", "the same, torch.compile", (), ("bfloat16", "float16"), ("fish_speech_lib",)),
        Candidate("torch", "our modules, PyTorch eager", ("float32", "bfloat16"), (*_HALF, "float32")),
        Candidate("torch-cudagraph", "our frame as one captured CUDA graph", (), (*_HALF, "float32")),
        Candidate("ort-cpu", "exported graphs, ONNX Runtime", ("float32", "int8", "int4"), (), ("onnxruntime",)),
        Candidate("ort-cuda", "exported graphs, ONNX Runtime", (), ("float16", "float32"), ("onnxruntime",)),
        Candidate("ort-cuda-graph", "the same, as a CUDA graph", (), ("float16", "float32"), ("onnxruntime",)),
        Candidate("tensorrt", "TensorRT engines", (), _ENGINE, ("tensorrt",)),
        Candidate("tensorrt-rtx", "TensorRT-RTX engines", (), _ENGINE, ("tensorrt_rtx",)),
    )
}


@dataclass(frozen=True)
class Contender:
    """A candidate in one precision on one device.

    Attributes:
        name: Of the candidate.
        precision: How weights are stored.
        device: ``cpu`` or ``cuda``.
    """

    name: str
    precision: str
    device: str

    def __str__(self) -> str:
        return f"{self.name}:{self.precision}"


def contenders(wanted: list[str] | None = None, device: str = "auto") -> list[Contender]:
    """Resolves names.

    Args:
        wanted: ``name`` (in its usual precision) or ``name:precision``; None is every candidate, in every precision
            that a CPU serves or in its two most usual ones on a GPU.
        device: ``auto`` takes the GPU where there is one for candidates that run on both; ``cpu`` and ``cuda`` decide.

    Raises:
        ParameterError: No such candidate, precision or device.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ParameterError(f"there is no device {device!r}", fix="use auto, cpu or cuda")
    gpu = device == "cuda" or (device == "auto" and bool(driver_gpus()[0]))
    found: list[Contender] = []
    for entry in wanted or list(CANDIDATES):
        name, _, precision = entry.partition(":")
        if name not in CANDIDATES:
            raise ParameterError(f"there is no candidate {name!r}", fix=f"use some of: {', '.join(CANDIDATES)}")
        candidate = CANDIDATES[name]
        on_gpu = bool(candidate.cuda) and (gpu or not candidate.cpu)
        served = candidate.cuda if on_gpu else candidate.cpu
        if precision and precision not in PRECISIONS:
            raise ParameterError(f"there is no precision {precision!r}", fix=f"use one of: {', '.join(PRECISIONS)}")
        usual = served if not on_gpu else served[:2] if gpu else served[:1]
        chosen = [precision] if precision else list(usual if wanted is None else served[:1])
        found += [Contender(name, p, "cuda" if on_gpu else "cpu") for p in chosen]
    return list(dict.fromkeys(found))


def why_not(contender: Contender) -> str | None:
    """What forbids it before anything is opened; None if it may be tried. Imports nothing heavy."""
    candidate = CANDIDATES[contender.name]
    if contender.device == "cuda":
        gpus = driver_gpus()[0]
        if not gpus:
            return "no NVIDIA GPU here"
        capability = gpus[0].compute_capability
        if contender.name == "tensorrt-rtx" and not _rtx_runs_on(capability):
            given = ".".join(map(str, capability))
            return f"TensorRT-RTX runs on compute capability 8.0, 8.6, 8.9 and 12.x, this GPU has {given}"
    missing = [module for module in candidate.modules if not _installed(module)]
    if missing:
        return f"{missing[0]} is not installed"
    served = candidate.cuda if contender.device == "cuda" else candidate.cpu
    if contender.precision not in served:
        return f"{contender.name} does not run in {contender.precision} on {contender.device}"
    return None


def _rtx_runs_on(capability: tuple[int, int]) -> bool:
    return capability in ((8, 0), (8, 6), (8, 9)) or capability[0] == 12


@functools.cache
def _installed(module: str) -> bool:
    return find_spec(module) is not None


def takes_part(contender: Contender, point: Point) -> bool:
    """Whether a point concerns a candidate at all."""
    return not point.cut or contender.name == "upstream-eager"


def not_measured(contender: Contender, point: Point, longest: int) -> str | None:
    """Why a point is not measured for a candidate that otherwise runs; None if it is.

    Args:
        contender: The candidate.
        point: The point.
        longest: Columns the model was made for.
    """
    if contender.name.startswith("upstream") and point.batch > 1:
        return "upstream's generate samples only batch row 0"
    if contender.name == "upstream-compile" and point.sized and (point.capacity or longest) < longest:
        return "upstream would compile anew for this capacity, which takes minutes"
    if point.graph == "pipeline" and contender.name == "ort-cuda":
        return "the pipeline lets ONNX Runtime capture its graph: see ort-cuda-graph"
    if point.graph == "codec_decode":
        twin = {"torch-cudagraph": "torch", "ort-cuda-graph": "ort-cuda", "upstream-compile": "upstream-eager"}
        if contender.name in twin:
            return f"its codec is the one of {twin[contender.name]}"
        if contender.precision in ("int8", "int4"):
            return "the codec's weights are not quantised"
    return None
