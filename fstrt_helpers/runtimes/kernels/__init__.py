"""Triton kernels of one frame at small batch, where every kernel is bound by memory or by its own launch.

Five kernels make a layer: norm and QKV projection; rotation, cache write and attention; output projection and
residual; norm and gated projections; down projection and residual. Attention reads the filled prefix of the cache, a
length that lies in device memory, so a captured CUDA graph costs what the speech so far needs.

Sums are float32; what is stored is rounded to the weights' type. Imported only where Triton is installed.
"""

from __future__ import annotations

from .attention import attend_fast, attend_slow
from .projection import linear
from .tokens import draw, embed

__all__ = ["attend_fast", "attend_slow", "draw", "embed", "linear"]
