"""Picks and opens a back end for a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..checkpoint import Checkpoint
from ..errors import EnvironmentMissing, GraphError, ParameterError
from ..graphs.spec import PRECISIONS
from ..runtimes.base import Runtime

__all__ = ["BACKENDS", "PRECISIONS", "Backend", "open_backend"]

BACKENDS = ("torch", "onnxruntime")


@dataclass(frozen=True)
class Backend:
    """Four open graphs.

    Attributes:
        name: One of :data:`BACKENDS`.
        runtimes: Runtime of each graph by name.
        reason: Why this back end was chosen, in words.
    """

    name: str
    runtimes: dict[str, Runtime]
    reason: str


def open_backend(checkpoint: Checkpoint, backend: str, precision: str, graph_folder: Path | None = None) -> Backend:
    """Opens the four graphs of a checkpoint.

    Args:
        checkpoint: What to load.
        backend: ``auto`` or one of :data:`BACKENDS`. ``auto`` takes ONNX Runtime if the checkpoint's graphs have been
            exported and open, else PyTorch.
        precision: ``auto`` or one of :data:`PRECISIONS`.
        graph_folder: Root of the exported graphs; ``outputs/graphs`` by default.

    Raises:
        ParameterError: No such back end or precision.
        GraphError: ONNX Runtime was asked for and a graph is missing, damaged, or from another checkpoint.
        EnvironmentMissing: ONNX Runtime was asked for and cannot run here.
    """
    if backend not in ("auto", *BACKENDS):
        raise ParameterError(f"there is no back end {backend!r}", fix=f"use auto or one of: {', '.join(BACKENDS)}")
    if precision not in ("auto", *PRECISIONS):
        raise ParameterError(f"there is no precision {precision!r}", fix=f"use auto or one of: {', '.join(PRECISIONS)}")
    if backend == "torch":
        return _open_torch(checkpoint, precision, "asked for")
    if backend == "onnxruntime":
        return _open_onnxruntime(checkpoint, precision, "asked for", graph_folder)
    try:
        return _open_onnxruntime(checkpoint, precision, "the fastest here", graph_folder)
    except (EnvironmentMissing, GraphError) as error:
        return _open_torch(checkpoint, precision, f"ONNX Runtime cannot: {error.what}")


def _open_torch(checkpoint: Checkpoint, precision: str, why: str) -> Backend:
    import torch

    from ..model.frame import legal_rows
    from ..runtimes.torch import torch_runtimes

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    if precision == "auto":
        precision = "float16" if gpu else "float32"
    dtype = getattr(torch, precision)
    dual_ar = checkpoint.load_dual_ar().to(device=device, dtype=dtype)
    codec = checkpoint.load_codec().to(device=device, dtype=dtype)
    rows = legal_rows(dual_ar, checkpoint.tokenizer().im_end_id)
    runtimes = {name: runtime.open() for name, runtime in torch_runtimes(dual_ar, codec, rows).items()}
    return Backend("torch", runtimes, f"torch on {device}: {why}")


def _open_onnxruntime(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    import onnxruntime

    from ..graphs.export import GRAPH_FOLDER
    from ..runtimes.onnxruntime import onnxruntime_runtimes

    gpu = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    device = "cuda" if gpu else "cpu"
    if precision == "auto":
        precision = "float16" if gpu else "float32"
    place = (folder or GRAPH_FOLDER) / checkpoint.name / precision
    runtimes = onnxruntime_runtimes(place, device=device, fingerprint=checkpoint.fingerprint)
    opened = {name: runtime.open() for name, runtime in runtimes.items()}
    return Backend("onnxruntime", opened, f"onnxruntime on {device}: {why}")
