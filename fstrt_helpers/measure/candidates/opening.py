"""Opens our candidates on the device they were asked to run on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...checkpoint import Checkpoint
from ...errors import EnvironmentMissing
from ...runtimes.base import Runtime
from .frames import Frames, LoopFrames, RuntimeLoop
from .making import graph_file
from .names import Contender

if TYPE_CHECKING:
    from ...runtimes.pool import LoopPool

__all__ = ["OurModel", "open_runtimes"]


class OurModel:
    """One of our candidates, opened once; frame loops of any shape are made from it.

    Args:
        contender: Which, in which precision, on which device.
        checkpoint: What to load.
        seed: Of the noise.
        threads: CPU threads of one operator in ONNX Runtime; 0 means one per core.

    Raises:
        FstrtError: It cannot run here; the message says why.
    """

    def __init__(self, contender: Contender, checkpoint: Checkpoint, *, seed: int = 0, threads: int = 0) -> None:
        self._config, self._seed = checkpoint.config, seed
        self._pool: LoopPool | None = None
        self._runtimes: dict[str, Runtime] = {}
        if contender.device == "cuda":
            self._pool = _open_pool(contender, checkpoint)
        else:
            self._runtimes = open_runtimes(contender, checkpoint, ("prefill", "frame"), threads)

    def frames(self, batch: int, capacity: int) -> Frames:
        """A loop of B rows and C columns; the one before it is forgotten."""
        if self._pool is None:
            loop: Any = RuntimeLoop(self._runtimes, self._config, batch=batch, capacity=capacity)
            return LoopFrames(loop, capacity=capacity, seed=self._seed)
        self._pool.close()
        loop = self._pool.take(batch, capacity)
        # Engines exist for some capacities only: what is measured is the one that was opened.
        return LoopFrames(loop, capacity=loop.state.capacity, seed=self._seed, stream=loop.stream)

    def close(self) -> None:
        """Releases everything."""
        if self._pool is not None:
            self._pool.close()
        for runtime in self._runtimes.values():
            runtime.close()
        self._pool, self._runtimes = None, {}


def _open_pool(contender: Contender, checkpoint: Checkpoint) -> LoopPool:
    """The one place that knows how the loops on a GPU are opened."""
    from ...runtimes.buffers import open_memory
    from ...runtimes.onnxruntime import OrtRuntime
    from ...runtimes.pool import onnxruntime_pool, torch_pool

    if contender.name.startswith("tensorrt"):
        from ...speech.backends import open_backend

        # Which of the two TensorRTs it is, the environment says (:class:`~fstrt_helpers.measure.rounds.Process`).
        loops = open_backend(checkpoint, "tensorrt", contender.precision).loops
        if loops is None:
            raise EnvironmentMissing(f"{contender.name} has no frame loop on the device", fix="use another candidate")
        return loops
    memory = open_memory(torch.device("cuda", torch.cuda.current_device()))
    graph = contender.name.endswith("graph")
    if contender.name.startswith("torch"):
        runtimes = _open_torch(contender, checkpoint, ("prefill", "frame"))
        return torch_pool(runtimes, memory, kernels="auto" if graph else "plain", capture=graph)
    opened = {
        name: OrtRuntime(
            graph_file(contender, checkpoint, name),
            device="cuda",
            fingerprint=checkpoint.fingerprint,
            stream=memory.stream,
            cuda_graph=graph and name == "frame",
        ).open()
        for name in ("prefill", "frame")
    }
    return onnxruntime_pool(opened["prefill"], opened["frame"], memory, cuda_graph=graph)


def open_runtimes(
    contender: Contender, checkpoint: Checkpoint, graphs: tuple[str, ...], threads: int = 0
) -> dict[str, Runtime]:
    """Opens some of the four graphs on PyTorch or ONNX Runtime.

    Raises:
        FstrtError: They cannot run here.
    """
    if contender.name.startswith("torch"):
        opened = _open_torch(contender, checkpoint, graphs)
        if contender.name == "torch-cudagraph" and "codec_decode" in opened:
            from ...runtimes.captured_codec import CapturedCodec

            opened["codec_decode"] = CapturedCodec(opened["codec_decode"])
        return opened
    from ...runtimes.onnxruntime import OrtRuntime

    opened = {}
    for graph in graphs:
        path = graph_file(contender, checkpoint, graph)
        runtime = OrtRuntime(path, device=contender.device, fingerprint=checkpoint.fingerprint, threads=threads)
        opened[graph] = runtime.open()
    return opened


def _open_torch(contender: Contender, checkpoint: Checkpoint, graphs: tuple[str, ...]) -> dict[str, Any]:
    from ...graphs.spec import graph_spec, noise_size
    from ...model.frame import Frame, legal_rows
    from ...runtimes.torch import ONE_THREAD_WIDTH, TorchRuntime

    config, place = checkpoint.config, dict(device=contender.device, dtype=getattr(torch, contender.precision))
    spec = {g: graph_spec(g, config, noise=noise_size(config), dtype=place["dtype"]) for g in graphs}
    opened: dict[str, Any] = {}
    if {"prefill", "frame"} & set(graphs):
        model = checkpoint.load_dual_ar().to(**place)
        frame = Frame(model, legal_rows(model, checkpoint.tokenizer().im_end_id).to(contender.device)).eval()
        if hasattr(model, "output"):
            del model.output  # the frame keeps its own rows of it
        alone = contender.device == "cpu" and config.dim <= ONE_THREAD_WIDTH
        modules = {"prefill": model, "frame": frame}
        opened |= {g: TorchRuntime(spec[g], modules[g], one_thread=alone) for g in graphs if g in modules}
    if {"codec_decode", "codec_encode"} & set(graphs):
        codec = checkpoint.load_codec().to(**place)
        opened |= {g: TorchRuntime(spec[g], codec) for g in graphs if g.startswith("codec")}
    return opened
