"""Picks and opens a back end for a checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..checkpoint import Checkpoint, DualARConfig
from ..errors import EnvironmentMissing, FstrtError, ParameterError
from ..graphs.spec import PRECISIONS
from ..runtimes.base import Runtime
from ..runtimes.pool import LoopPool
from .cache import PrefixCache
from .device_generation import DeviceGeneration
from .faults import fault_of
from .generation import Generation, SamplingSettings

__all__ = ["AUTO_ORDER", "BACKENDS", "PRECISIONS", "Backend", "open_backend", "open_last_resort"]

_log = logging.getLogger("fstrt_helpers")

BACKENDS = ("tensorrt", "torch-cudagraph", "onnxruntime-cuda", "onnxruntime", "torch")
AUTO_ORDER = BACKENDS
"""What ``auto`` tries, and who takes over from whom when a back end fails. TensorRT stands first; where it ran, its
order to the others is yet to be measured. Of the other two on a GPU, PyTorch's CUDA graph with Triton kernels is the
faster one (``data/benchmarks``), so it stands before ONNX Runtime."""

_ASKED = "asked for"


@dataclass(frozen=True)
class Backend:
    """Four open graphs.

    Attributes:
        name: One of :data:`BACKENDS`.
        runtimes: Runtime of each graph by name.
        reason: Why this back end was chosen, in words.
        loops: Frame loops on the device; None where the host drives every frame.
        prefixes: Keys and values of the reference turns it has met.
    """

    name: str
    runtimes: dict[str, Runtime]
    reason: str
    loops: LoopPool | None = None
    prefixes: PrefixCache = field(default_factory=PrefixCache)

    def generation(
        self,
        config: DualARConfig,
        prompt: np.ndarray,
        settings: SamplingSettings,
        budget: int,
        seed: int,
        im_end_id: int,
        shared: int = 0,
    ) -> Generation | DeviceGeneration:
        """The frame loop for one prompt: on the device where there are loops. Arguments are those of both classes."""
        speaker = (config, prompt, settings, budget, seed, im_end_id, shared, self.prefixes)
        return Generation(self.runtimes, *speaker) if self.loops is None else DeviceGeneration(self.loops, *speaker)

    def close(self) -> None:
        """Releases what was opened."""
        self.prefixes.clear()
        if self.loops is not None:
            self.loops.close()
        for runtime in self.runtimes.values():
            runtime.close()


def open_backend(
    checkpoint: Checkpoint, backend: str, precision: str, graph_folder: Path | None = None, *, why: str = _ASKED
) -> Backend:
    """Opens the four graphs of a checkpoint.

    Args:
        checkpoint: What to load.
        backend: ``auto`` or one of :data:`BACKENDS`. ``auto`` takes the first of :data:`AUTO_ORDER` that opens.
        precision: ``auto`` or one of :data:`PRECISIONS`.
        graph_folder: Root of the exported graphs; ``outputs/graphs`` by default.
        why: Why a back end that is named was chosen, for :attr:`Backend.reason`.

    Raises:
        ParameterError: No such back end or precision.
        GraphError: ONNX Runtime was asked for and a graph is missing, damaged, or from another checkpoint.
        EngineError: TensorRT was asked for and an engine is refused or cannot be built.
        EnvironmentMissing: What was asked for cannot run here.
    """
    if backend not in ("auto", *BACKENDS):
        raise ParameterError(f"there is no back end {backend!r}", fix=f"use auto or one of: {', '.join(BACKENDS)}")
    if precision not in ("auto", *PRECISIONS):
        raise ParameterError(f"there is no precision {precision!r}", fix=f"use auto or one of: {', '.join(PRECISIONS)}")
    openers = {
        "tensorrt": _open_tensorrt,
        "torch-cudagraph": _open_cudagraph,
        "onnxruntime-cuda": _open_onnxruntime_cuda,
        "onnxruntime": _open_onnxruntime,
        "torch": _open_torch,
    }
    if backend != "auto":
        return openers[backend](checkpoint, precision, why, graph_folder)
    passed: list[str] = []
    for name in AUTO_ORDER[:-1]:
        why = "; ".join(["the fastest here", *passed])
        try:
            return openers[name](checkpoint, precision, why, graph_folder)
        except Exception as error:
            if (reason := fault_of(error)) is None:
                raise
            _log.info("back end %s is passed over: %s", name, reason)
            passed.append(f"{name} {reason}")
    return _open_torch(checkpoint, precision, "; ".join(passed), graph_folder)


def open_last_resort(checkpoint: Checkpoint, why: str) -> Backend:
    """PyTorch in float32 on the CPU: needs nothing but the checkpoint.

    Args:
        checkpoint: What to load.
        why: For :attr:`Backend.reason`.
    """
    return Backend("torch", _torch_runtimes(checkpoint, "cpu", "float32"), f"torch on cpu: {why}")


def _precision(precision: str, default: str) -> str:
    return default if precision == "auto" else precision


def _torch_runtimes(checkpoint: Checkpoint, device: str, precision: str) -> dict[str, Runtime]:
    import torch

    from ..model.frame import legal_rows
    from ..runtimes.torch import torch_runtimes

    if precision not in ("float32", "float16", "bfloat16"):
        raise EnvironmentMissing(
            f"PyTorch does not run {precision} here", fix="use onnxruntime or an engine, or another precision"
        )
    dtype = getattr(torch, precision)
    dual_ar = checkpoint.load_dual_ar()
    rows = legal_rows(dual_ar, checkpoint.tokenizer().im_end_id)
    runtimes = torch_runtimes(
        dual_ar.to(device=device, dtype=dtype), checkpoint.load_codec().to(device=device, dtype=dtype), rows
    )
    if hasattr(dual_ar, "output"):
        del dual_ar.output  # the frame keeps its own rows of it
    return {name: runtime.open() for name, runtime in runtimes.items()}


def _open_torch(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    import torch

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    runtimes = _torch_runtimes(checkpoint, device, _precision(precision, "float16" if gpu else "float32"))
    return Backend("torch", runtimes, f"torch on {device}: {why}")


def _open_cudagraph(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    import torch

    from ..runtimes.buffers import open_memory
    from ..runtimes.captured_codec import CapturedCodec
    from ..runtimes.pool import torch_pool

    if not torch.cuda.is_available():
        raise EnvironmentMissing(
            "there is no CUDA device", fix="use another back end; notebook 00 says what is missing"
        )
    runtimes = _torch_runtimes(checkpoint, "cuda", _precision(precision, "float16"))
    loops = torch_pool(runtimes, open_memory(torch.device("cuda", torch.cuda.current_device())))
    runtimes["codec_decode"] = CapturedCodec(runtimes["codec_decode"])
    return Backend("torch-cudagraph", runtimes, f"torch-cudagraph on cuda: {why}", loops)


def _open_tensorrt(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    """Engines lie beside the folder of the graphs. Missing ones are built only if TensorRT was asked for by name."""
    import torch

    from ..engines.flavour import load_trt
    from ..engines.recipe import ENGINE_FOLDER
    from ..engines.source import PRECISIONS as BUILT
    from ..graphs.export import GRAPH_FOLDER
    from ..runtimes.buffers import open_memory
    from ..runtimes.pool import tensorrt_pool
    from ..runtimes.tensorrt_buckets import ready_engines, tensorrt_runtimes

    precision = _precision(precision, "float16")
    fix = "use another back end; notebook 00 says what is missing"
    if precision not in BUILT:
        raise EnvironmentMissing(f"there are no engines in {precision}", fix=f"use one of: {', '.join(BUILT)}")
    if not torch.cuda.is_available():
        raise EnvironmentMissing("there is no CUDA device", fix=fix)
    flavour = load_trt()
    if not flavour.runs_here:
        raise EnvironmentMissing(f"{flavour.name} runs no engines here: {flavour.why_not_here}", fix=fix)
    config, name = checkpoint.config, checkpoint.name
    engines = ENGINE_FOLDER if folder is None else folder.parent / "engines"
    graphs = folder or GRAPH_FOLDER
    ready_engines(name, precision, config, flavour, graphs=graphs, folder=engines, missing=why == _ASKED)
    device = torch.device("cuda", torch.cuda.current_device())
    memory, beside = open_memory(device), open_memory(device)
    fingerprint = checkpoint.fingerprint
    runtimes = tensorrt_runtimes(
        engines, name, precision, config, memory, beside, flavour=flavour, fingerprint=fingerprint
    )
    opened = _open_all(runtimes)
    loops = tensorrt_pool(opened["prefill"], opened["frame"], memory)
    return Backend("tensorrt", opened, f"{flavour.name} on cuda: {why}", loops)


def _open_onnxruntime(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    from ..runtimes.onnxruntime import onnxruntime_runtimes

    precision = _precision(precision, "float32")
    label = f"{precision}-nbits" if precision in ("int8", "int4") else precision
    place = _graphs(checkpoint, label, folder)
    runtimes = onnxruntime_runtimes(place, device="cpu", fingerprint=checkpoint.fingerprint)
    return Backend("onnxruntime", _open_all(runtimes), f"onnxruntime on cpu: {why}")


def _open_onnxruntime_cuda(checkpoint: Checkpoint, precision: str, why: str, folder: Path | None) -> Backend:
    import onnxruntime
    import torch

    from ..runtimes.buffers import open_memory
    from ..runtimes.onnxruntime import OrtRuntime, onnxruntime_runtimes
    from ..runtimes.pool import onnxruntime_pool

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers() or not torch.cuda.is_available():
        raise EnvironmentMissing(
            "there is no CUDA device or no CUDA provider",
            where=f"onnxruntime {onnxruntime.__version__}",
            fix="pip install onnxruntime-gpu in place of onnxruntime; notebook 00 says what else is missing",
        )
    if precision == "int4":
        raise EnvironmentMissing("int4 graphs run on a CPU only", fix="backend='onnxruntime', or another precision")
    memory = open_memory(torch.device("cuda", torch.cuda.current_device()))
    place = _graphs(checkpoint, _precision(precision, "float16"), folder)
    facts = {"device": "cuda", "fingerprint": checkpoint.fingerprint}
    runtimes = onnxruntime_runtimes(place, stream=memory.stream, **facts)
    # cuDNN's float16 convolutions of one row are ten times slower through ONNX Runtime than its float32 ones.
    exact = _graphs(checkpoint, "float32", folder)
    for graph in ("codec_decode", "codec_encode"):
        if (exact / f"{graph}.onnx").is_file():
            runtimes[graph] = OrtRuntime(exact / f"{graph}.onnx", **facts)
    opened = _open_all(runtimes)
    loops = onnxruntime_pool(opened["prefill"], opened["frame"], memory, cuda_graph=True)
    return Backend("onnxruntime-cuda", opened, f"onnxruntime on cuda: {why}", loops)


def _graphs(checkpoint: Checkpoint, label: str, folder: Path | None) -> Path:
    from ..graphs.export import GRAPH_FOLDER

    return (folder or GRAPH_FOLDER) / checkpoint.name / label


def _open_all(runtimes: dict[str, Runtime]) -> dict[str, Runtime]:
    opened: dict[str, Runtime] = {}
    try:
        for name, runtime in runtimes.items():
            opened[name] = runtime.open()
    except FstrtError:
        for runtime in opened.values():
            runtime.close()
        raise
    return opened
