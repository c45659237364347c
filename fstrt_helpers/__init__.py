"""Fish Speech 1.5 from PyTorch to ONNX to TensorRT: the plumbing behind the notebooks.

Importing this package loads nothing else; ``fstrt_helpers.FishSpeech`` is looked up on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .speech import FishSpeech

__all__ = ["FishSpeech", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "FishSpeech":
        from .speech import FishSpeech

        return FishSpeech
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
