"""What lets a kernel start before the one in front of it is done."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["next_may_start", "wait"]


@triton.jit
def wait(PDL: tl.constexpr):
    """Until all that was enqueued before is done and visible; before it, only weights may be read.

    Programmatic dependent launch, as in https://docs.nvidia.com/cuda/cuda-programming-guide/ under that name.
    """
    if PDL:
        tl.extra.cuda.gdcwait()


@triton.jit
def next_may_start(PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
