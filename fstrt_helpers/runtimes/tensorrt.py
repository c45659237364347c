"""The TensorRT back end: a built engine, run on our memory and our stream.

Every tensor is bound by address, so nothing is copied on the way in or out. Keys and values are bound as input and as
output at once: KVCacheUpdate writes into its input. ``set_input_shape``, ``infer_shapes``, ``set_tensor_address`` and
``get_tensor_shape`` are described at
https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/_static/python-api/infer/Core/ExecutionContext.html
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES
from ..engines.flavour import Flavour, load_trt
from ..engines.store import load_engine_bytes
from ..errors import EngineError, EnvironmentMissing, RuntimeInputError
from .buffers import DeviceMemory, open_memory
from .state import FrameState
from .tensorrt_engine import LoadedEngine, output_allocator
from .tensorrt_files import EngineFile

__all__ = ["TrtRuntime", "TrtStep"]

ALIGNMENT = 256
"""Bytes; what ``setTensorAddress`` wants of an address, and what allocators give:
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/c-api/classnvinfer1_1_1_i_execution_context.html"""


@dataclass
class _Bound:
    """A context whose shapes and addresses are set, and the tensors these belong to."""

    context: Any
    inputs: dict[str, Tensor]
    out: dict[str, Any] = field(default_factory=dict)
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # back to where keys and values belong


class TrtRuntime:
    """Runs one engine. Several threads may call it at once: each has an execution context to itself meanwhile
    (https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/architecture/how-trt-works.html, on thread safety).

    Args:
        file: The engine, from :func:`fstrt_helpers.runtimes.tensorrt_files.read_engine`.
        memory: Device memory, and the stream where everything is enqueued; opened by :meth:`open` if not given.
        flavour: Which TensorRT; see :func:`fstrt_helpers.engines.flavour.load_trt`.
    """

    def __init__(
        self, file: EngineFile, memory: DeviceMemory | None = None, *, flavour: str | Flavour | None = None
    ) -> None:
        self.file, self.spec, self.memory = file, file.spec, memory
        self._asked = flavour
        self._engine: LoadedEngine | None = None
        self._idle: list[Any] = []
        self._lock, self._one_enqueues = threading.Lock(), threading.Lock()

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return torch.device("cuda", (self.memory.device.index or 0) if self.memory else 0)

    def open(self) -> TrtRuntime:
        """Loads the engine and allocates the workspace; does nothing if that was done.

        Raises:
            EnvironmentMissing: No TensorRT, or no GPU that it runs on.
            EngineRefused: The file changed, was made by or for something else, or TensorRT does not load it.
            EngineError: TensorRT cannot make an execution context.
        """
        with self._lock:
            if self._engine is None:
                flavour = self._flavour = load_trt(self._asked)
                if why := flavour.why_not_here:
                    fix = "use another back end; notebook 00 says what this machine can run"
                    raise EnvironmentMissing(
                        f"{flavour.name} runs no engines here: {why}", where=self.file.path, fix=fix
                    )
                content = load_engine_bytes(self.file.path, flavour=flavour)
                self.memory = self.memory or open_memory(torch.device("cuda", 0))
                host_code = bool(self.file.report.options.get("version_compatible"))
                engine = LoadedEngine(flavour, content, self.file.path, host_code=host_code)
                # One for all contexts: what they do is enqueued on one stream, one run after the other.
                self._workspace = self.memory.empty((engine.workspace_bytes,), torch.uint8)
                self._idle.append(engine.context(self._workspace))
                self._engine = engine
        return self

    def close(self) -> None:
        """Waits for what is enqueued, then releases contexts, workspace and engine."""
        with self._lock:
            if self._engine is not None:
                self.memory.stream.synchronize()
                self._idle.clear()  # contexts before their engine
                self._engine = self._workspace = None

    def describe(self) -> dict[str, Any]:
        """Back end, device, precision, and the capacity where there is one."""
        facts = {
            "backend": self.file.report.flavour,
            "device": str(self.device),
            "precision": self.file.report.precision,
        }
        return facts | ({} if self.file.capacity is None else {"capacity": self.file.capacity})

    def run(self, tensors: Mapping[str, Tensor], *, skip: int = 0) -> dict[str, Tensor]:
        """See :meth:`Runtime.run`. It returns when all is enqueued, and the caller's stream waits for it.

        Raises:
            RuntimeInputError: A tensor does not fit the graph, or lies elsewhere.
            ProfileError: It fits the graph but not the engine.
            EngineError: TensorRT reports a fault.
        """
        engine = self._checked(tensors)
        caller, stream = torch.cuda.current_stream(self.device), self.memory.stream
        with self._lock:
            context = self._idle.pop() if self._idle else engine.context(self._workspace)
        try:
            bound = self._bind(context, tensors, {})
            with self._one_enqueues, torch.cuda.stream(stream):
                stream.wait_stream(caller)
                self._enqueue(bound)
                out = dict(bound.out)
                for name in (name for name in out if not isinstance(out[name], Tensor)):
                    out[name] = out[name].tensor()
                    out[name].record_stream(caller)  # it was allocated for the other stream
                caller.wait_stream(stream)
        finally:
            with self._lock:
                self._idle.append(context)
        if skip:
            out["waveform"] = out["waveform"][..., skip * FRAME_SAMPLES :]
        return out

    def _checked(self, tensors: Mapping[str, Tensor]) -> LoadedEngine:
        if self._engine is None:
            raise RuntimeInputError(f"graph {self.spec.graph!r} is not open", fix="call open() first")
        self.file.check(tensors)
        return self._engine

    def _bind(self, context: Any, tensors: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> _Bound:
        """Sets shapes and addresses, and allocates the outputs that are not given."""
        bound = _Bound(context, {name: self._placed(name, tensor) for name, tensor in tensors.items()})
        for name, tensor in bound.inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise EngineError(
                    f"TensorRT refuses shape {list(tensor.shape)} of input {name!r}", where=self.file.path
                )
            context.set_tensor_address(name, tensor.data_ptr())
        if unknown := context.infer_shapes():
            raise EngineError(f"TensorRT cannot tell the shapes of {', '.join(unknown)}", where=self.file.path)
        for name in self.spec.outputs:
            own = f"{name}_out" if name in bound.inputs else name
            shape, dtype = tuple(context.get_tensor_shape(own)), self.file.dtype(own)
            given = bound.inputs.get(name, outputs.get(name))
            if given is not None and (name not in bound.inputs or self._engine.writes_into(own) == name):
                place = bound.out[name] = given
            elif given is None and min(shape, default=0) < 0:  # known only when it has run
                bound.out[name] = output_allocator(self._flavour, self.device, dtype)
                context.set_output_allocator(own, bound.out[name])
                continue
            else:
                place = torch.empty(shape, dtype=dtype, device=self.device)
                bound.out[name] = place if given is None else given
                bound.copies += [] if given is None else [(given, place)]
            context.set_tensor_address(own, place.data_ptr())
        return bound

    def _enqueue(self, bound: _Bound) -> None:
        self._engine.enqueue(bound.context, torch.cuda.current_stream(self.device))
        for target, source in bound.copies:
            target.copy_(source)

    def _placed(self, name: str, tensor: Tensor) -> Tensor:
        if tensor.device != self.device:
            where = f"graph {self.spec.graph!r} runs on {self.device}, tensor {name!r} lies on {tensor.device}"
            raise RuntimeInputError(where, fix="move it there first")
        if tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        if name in self.spec.outputs:
            what = f"tensor {name!r} is written in place, and is not contiguous from a multiple of {ALIGNMENT} bytes on"
            raise RuntimeInputError(what, fix="give a tensor of its own, not a view of another")
        return tensor.clone(memory_format=torch.contiguous_format)


class TrtStep:
    """The ``frame`` engine bound once to a state's tensors, for the frame loop.

    The first run after shapes were set readies the engine, later ones can be captured in a CUDA graph; the frame loop
    warms up before it captures (https://docs.nvidia.com/deeplearning/tensorrt/11.4.1/performance/optimization.html, on
    CUDA graphs). TensorRT-RTX says whether a context can be captured at all: not if it allocates while it runs
    (https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/getting-started/release-notes-1/1.2.html).

    Args:
        runtime: ``frame``, open, of the state's capacity.
        state: Tensors at fixed addresses.

    Raises:
        RuntimeInputError: The runtime is not open, or the state is of another shape.
        ProfileError: The engine is not built for the state's batch or capacity.
    """

    def __init__(self, runtime: TrtRuntime, state: FrameState) -> None:
        engine = runtime._checked(state.inputs)
        self._runtime = runtime
        self._workspace = runtime.memory.empty((engine.workspace_bytes,), torch.uint8)  # it has a stream of its own
        self._bound = runtime._bind(engine.context(self._workspace, fixed=True), state.inputs, {"next": state.next})
        can_capture = getattr(self._bound.context, "is_stream_capturable", lambda stream: True)
        self.capture = "all" if can_capture(runtime.memory.stream.cuda_stream) else "nothing"

    def launch(self) -> None:
        """See :meth:`fstrt_helpers.runtimes.loop.FrameStep.launch`."""
        self._runtime._enqueue(self._bound)
