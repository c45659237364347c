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
from .state import FrameState

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["OrtRuntime", "OrtStep", "onnxruntime_runtimes"]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ELEMENT = {torch.float32: np.float32, torch.float16: np.float16, torch.int64: np.int64, torch.bool: np.bool_}


class OrtRuntime:
    """Runs one exported graph.

    Args:
        path: The ``.onnx`` file; its manifest and data lie beside it.
        device: ``cpu`` or ``cuda``.
        fingerprint: Of the checkpoint the graph must come from; None accepts any.
        threads: Threads of one operator on a CPU; 0 means one per core.
        stream: On a GPU: where to enqueue everything. None lets ONNX Runtime make a stream of its own, and every run
            waits for what PyTorch has enqueued before.
        cuda_graph: On a GPU: let ONNX Runtime capture the graph; then :class:`OrtStep` runs it.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "cpu",
        fingerprint: str | None = None,
        threads: int = 0,
        stream: torch.cuda.Stream | None = None,
        cuda_graph: bool = False,
    ) -> None:
        self.path, self.device = path, torch.device(device)
        self.manifest: GraphManifest = read_manifest(path, fingerprint=fingerprint)
        if device == "cpu" and self.manifest.activation_type == "bfloat16":
            raise EnvironmentMissing(
                "ONNX Runtime has no bfloat16 MatMul on a CPU",
                where=path,
                fix="export float32 or float16, or use a GPU",
            )
        self.dtype = getattr(torch, self.manifest.activation_type)
        config = DualARConfig.from_dict(self.manifest.config)
        noise = noise_size(config)
        self.spec: GraphSpec = graph_spec(
            self.manifest.graph, config, noise=noise, dtype=self.dtype, logits=LOGITS[0] in self.manifest.outputs
        )
        self.config, self._threads = config, threads
        self._stream, self._cuda_graph = stream, cuda_graph
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
        if self.manifest.form == "qdq":  # made for TensorRT: run as written, or its fusions turn int8 into uint8
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            session = ort.InferenceSession(self.path, options, providers=[(wanted, self._provider_options())])
        except Exception as error:  # onnxruntime raises classes of its own for every kind of fault
            raise GraphError(f"ONNX Runtime cannot open the graph: {error}", where=self.path) from error
        if session.get_providers()[0] != wanted:
            raise EnvironmentMissing(
                f"{wanted} was asked for, {session.get_providers()[0]} was opened", where=self.path, fix=_fix(wanted)
            )
        session.disable_fallback()
        self._session = session
        return self

    def _provider_options(self) -> dict[str, str]:
        """See https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html."""
        if self.device.type == "cpu":
            return {}
        options = {
            "device_id": str(self.device.index or 0),
            "use_tf32": "0",  # float32 means float32
            # ONNX Runtime's default tries all algorithms for every new length; cuDNN's heuristics know none for some
            # dilated float16 convolutions.
            "cudnn_conv_algo_search": "HEURISTIC" if self.dtype == torch.float32 else "DEFAULT",
            "arena_extend_strategy": "kSameAsRequested",
        }
        if self._stream is not None:
            options["user_compute_stream"] = str(self._stream.cuda_stream)
        if self._cuda_graph:
            options["enable_cuda_graph"] = "1"
        return options

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
        if self._cuda_graph:  # it would replay what it captured, on the tensors of that run
            raise RuntimeInputError(
                f"graph {self.spec.graph!r} is captured", fix="run it through OrtStep, or open it without cuda_graph"
            )
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
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # what PyTorch still writes into the inputs
        self._session.run_with_iobinding(binding)
        if skip:
            out["waveform"] = out["waveform"][..., skip * FRAME_SAMPLES :]
        return out

    def _allocate(self, name: str, sizes: dict[str, int]) -> Tensor:
        rows, books, entries = sizes["B"], self.config.num_codebooks, self.config.codebook_size
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


class OrtStep:
    """The ``frame`` graph bound once to a state's tensors, for the frame loop on a GPU.

    With CUDA graphs on, ONNX Runtime captures the first run and replays it from then on:
    https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html#using-cuda-graphs-preview

    Args:
        runtime: ``frame`` on a GPU, opened with the stream of the loop.
        state: Tensors at fixed addresses.
        graph_id: Different for every state of one runtime.
    """

    def __init__(self, runtime: OrtRuntime, state: FrameState, graph_id: int = 1) -> None:
        import onnxruntime as ort

        if runtime._session is None or runtime._stream is None:
            raise RuntimeInputError("the frame graph is not open on a stream", fix="open it with stream=")
        check_inputs(runtime.spec, state.inputs)
        self.capture = "around"
        self._session = runtime._session
        self._binding = self._session.io_binding()
        for name, tensor in state.inputs.items():
            self._binding.bind_input(name, *runtime._place(tensor))
            if name in state.kv:
                self._binding.bind_output(f"{name}_out", *runtime._place(tensor))
        self._binding.bind_output("next", *runtime._place(state.next))
        self._options = ort.RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._first: ort.RunOptions | None = None
        if runtime._cuda_graph:
            self._options.add_run_config_entry("gpu_graph_id", str(graph_id))
            self._first = ort.RunOptions()  # the first run is not captured: it allocates, which a capture must not
            self._first.add_run_config_entry("gpu_graph_id", "-1")

    def launch(self) -> None:
        """See :meth:`fstrt_helpers.runtimes.loop.FrameStep.launch`."""
        options, self._first = self._first or self._options, None
        self._session.run_with_iobinding(self._binding, options)


def _fix(provider: str) -> str:
    if provider == _PROVIDERS["cpu"]:
        return "pip install onnxruntime"
    return "pip install onnxruntime-gpu in place of onnxruntime, with the CUDA and cuDNN versions it names"


def onnxruntime_runtimes(
    folder: Path, *, device: str, fingerprint: str, stream: torch.cuda.Stream | None = None, cuda_graph: bool = True
) -> dict[str, OrtRuntime]:
    """The four graphs of a folder, not yet open.

    Args:
        folder: ``outputs/graphs/<checkpoint>/<precision>``.
        device: ``cpu`` or ``cuda``.
        fingerprint: Of the checkpoint they must come from.
        stream: On a GPU: where ``prefill`` and ``frame`` are enqueued; the codec has a stream of its own, beside them.
        cuda_graph: On a GPU: whether ``frame`` is captured; then only an :class:`OrtStep` can run it.

    Raises:
        GraphError: A graph is missing, damaged, or from another checkpoint.
    """

    def runtime(graph: str) -> OrtRuntime:
        path = folder / f"{graph}.onnx"
        if stream is None or graph.startswith("codec"):
            return OrtRuntime(path, device=device, fingerprint=fingerprint)
        captured = cuda_graph and graph == "frame"
        return OrtRuntime(path, device=device, fingerprint=fingerprint, stream=stream, cuda_graph=captured)

    return {graph: runtime(graph) for graph in GRAPHS}
