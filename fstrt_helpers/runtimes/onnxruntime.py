"""The ONNX Runtime back end: an exported graph on a CPU or on a CUDA device.

Tensors are bound by address, so nothing is copied on the way in or out, and a key or value tensor is bound as input
and as output at once: TensorScatter then writes into it in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES, DualARConfig
from ..errors import EnvironmentMissing, GraphError, RuntimeInputError
from ..graphs.manifest import GraphManifest, read_manifest
from ..graphs.spec import GRAPHS, LOGITS, GraphSpec, graph_spec, noise_size
from .base import check_inputs, filled_columns

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["OrtRuntime", "onnxruntime_runtimes"]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ELEMENT = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64, torch.bool: np.bool_}


class OrtRuntime:
    """Runs one exported graph.

    Args:
        path: The ``.onnx`` file; its manifest and data lie beside it.
        device: ``cpu`` or ``cuda``.
        fingerprint: Of the checkpoint the graph must come from; None accepts any.
        threads: Threads of one operator on a CPU; 0 means one per core.
    """

    def __init__(self, path: Path, *, device: str = "cpu", fingerprint: str | None = None, threads: int = 0) -> None:
        self.path, self.device = path, torch.device(device)
        self.manifest: GraphManifest = read_manifest(path, fingerprint=fingerprint)
        if device == "cpu" and self.manifest.precision == "bfloat16":
            raise EnvironmentMissing(
                "ONNX Runtime has no bfloat16 MatMul on a CPU",
                where=path,
                fix="export float32 or float16, or use a GPU",
            )
        self.dtype = getattr(torch, self.manifest.precision)
        config = DualARConfig.from_dict(self.manifest.config)
        noise = noise_size(config)
        self.spec: GraphSpec = graph_spec(
            self.manifest.graph, config, noise=noise, dtype=self.dtype, logits=LOGITS[0] in self.manifest.outputs
        )
        self._config, self._threads = config, threads
        self._session: onnxruntime.InferenceSession | None = None

    def open(self) -> OrtRuntime:
        """Loads the graph and checks that it runs where it was asked to.

        Raises:
            EnvironmentMissing: The provider is not there, or ONNX Runtime chose another one.
            GraphError: ONNX Runtime cannot read the graph.
        """
        import onnxruntime as ort

        wanted = _PROVIDERS[self.device.type]
        if wanted not in ort.get_available_providers():
            raise EnvironmentMissing(
                f"this ONNX Runtime has no {wanted}", where=f"onnxruntime {ort.__version__}", fix=_fix(wanted)
            )
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        try:
            session = ort.InferenceSession(self.path, options, providers=[(wanted, {})])
        except Exception as error:  # onnxruntime raises classes of its own for every kind of fault
            raise GraphError(f"ONNX Runtime cannot open the graph: {error}", where=self.path) from error
        if session.get_providers()[0] != wanted:
            raise EnvironmentMissing(
                f"{wanted} was asked for, {session.get_providers()[0]} was opened", where=self.path, fix=_fix(wanted)
            )
        session.disable_fallback()
        self._session = session
        return self

    def close(self) -> None:
        """Frees the session."""
        self._session = None

    def describe(self) -> dict[str, Any]:
        """Back end, device and precision."""
        return {"backend": "onnxruntime", "device": str(self.device), "precision": self.manifest.precision}

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """See :meth:`Runtime.run`."""
        if self._session is None:
            raise RuntimeInputError(f"graph {self.spec.graph!r} is not open", fix="call open() first")
        sizes = check_inputs(self.spec, tensors)
        if self.device.type == "cpu" and "start" in tensors:
            filled_columns(tensors, sizes)
        binding = self._session.io_binding()
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            binding.bind_input(name, *self._place(tensor))
        out: dict[str, Tensor] = {}
        for name in self.spec.outputs:
            in_place = tensors.get(name)
            out[name] = self._allocate(name, sizes) if in_place is None else in_place
            binding.bind_output(name if in_place is None else f"{name}_out", *self._place(out[name]))
        self._session.run_with_iobinding(binding)
        if skip:
            out["waveform"] = out["waveform"][..., skip * FRAME_SAMPLES :]
        return out

    def _allocate(self, name: str, sizes: dict[str, int]) -> Tensor:
        rows, books, entries = sizes["B"], self._config.num_codebooks, self._config.codebook_size
        match name:
            case "next":
                shape, dtype = (rows, 1 + books), torch.int64
            case "token_logits":
                shape, dtype = (rows, entries + 1), torch.float32
            case "code_logits":
                shape, dtype = (rows, books - 1, entries), torch.float32
            case "waveform":
                shape, dtype = (rows, 1, sizes["T"] * FRAME_SAMPLES), torch.float32
            case _:
                shape, dtype = (rows, books, sizes["M"] // 4), torch.int64
        return torch.empty(shape, dtype=dtype, device=self.device)

    def _place(self, tensor: Tensor) -> tuple[str, int, Any, list[int], int]:
        if tensor.device.type != self.device.type:
            raise RuntimeInputError(
                f"graph {self.spec.graph!r} runs on {self.device}, a tensor lies on {tensor.device}",
                fix="move it there first",
            )
        kind = _ELEMENT.get(tensor.dtype, 16)  # 16 is bfloat16 in ONNX's list of types
        return self.device.type, self.device.index or 0, kind, list(tensor.shape), tensor.data_ptr()


def _fix(provider: str) -> str:
    if provider == _PROVIDERS["cpu"]:
        return "pip install onnxruntime"
    return "pip install onnxruntime-gpu in place of onnxruntime, with the CUDA and cuDNN versions it names"


def onnxruntime_runtimes(folder: Path, *, device: str, fingerprint: str) -> dict[str, OrtRuntime]:
    """The four graphs of a folder, not yet open.

    Args:
        folder: ``outputs/graphs/<checkpoint>/<precision>``.
        device: ``cpu`` or ``cuda``.
        fingerprint: Of the checkpoint they must come from.

    Raises:
        GraphError: A graph is missing, damaged, or from another checkpoint.
    """
    return {graph: OrtRuntime(folder / f"{graph}.onnx", device=device, fingerprint=fingerprint) for graph in GRAPHS}
