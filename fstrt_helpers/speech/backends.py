"""Picks and opens a back end for a checkpoint."""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..errors import ParameterError
from ..runtimes.base import Runtime

__all__ = ["BACKENDS", "PRECISIONS", "open_backend"]

BACKENDS = ("torch",)
PRECISIONS = ("float32", "float16", "bfloat16")


def open_backend(checkpoint: Checkpoint, backend: str, precision: str) -> tuple[dict[str, Runtime], str, str]:
    """Opens the four graphs of a checkpoint.

    Args:
        checkpoint: What to load.
        backend: ``auto`` or one of :data:`BACKENDS`.
        precision: ``auto`` or one of :data:`PRECISIONS`.

    Returns:
        Runtimes by graph name, the back end's name, and why it was chosen.

    Raises:
        ParameterError: No such back end or precision.
    """
    if backend not in ("auto", *BACKENDS):
        raise ParameterError(f"there is no back end {backend!r}", fix=f"use auto or one of: {', '.join(BACKENDS)}")
    if precision not in ("auto", *PRECISIONS):
        raise ParameterError(f"there is no precision {precision!r}", fix=f"use auto or one of: {', '.join(PRECISIONS)}")
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
    asked = "asked for" if backend == "torch" else "the only back end so far"
    return runtimes, "torch", f"torch on {device}: {asked}"
