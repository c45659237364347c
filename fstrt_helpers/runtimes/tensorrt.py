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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import FRAME_SAMPLES, DualARConfig
from ..engines.flavour import Flavour, load_trt
from ..engines.report import BuiltTensor
from ..engines.store import load_engine_bytes, read_sidecar
from ..errors import EngineError, EngineRefused, EnvironmentMissing, ProfileError, RuntimeInputError
from ..graphs.spec import LOGITS, graph_spec, noise_size
from .base import check_inputs
from .buffers import DeviceMemory, open_memory
from .state import FrameState
from .tensorrt_engine import LoadedEngine, output_allocator

__all__ = ["TrtRuntime", "TrtStep", "check_ranges"]

ALIGNMENT = 256  # bytes; what TensorRT wants of an address, and every allocator gives
_TYPES = {"FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16, "INT8": torch.int8,
          "INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool, "UINT8": torch.uint8}  # fmt: skip


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
        path: The ``.engine`` file, its sidecar beside it.
        config: Shape of the transformers.
        memory: Device memory, and the stream where everything is enqueued; opened by :meth:`open` if not given.
        flavour: Which TensorRT; see :func:`fstrt_helpers.engines.flavour.load_trt`.
        fingerprint: Of the checkpoint it must come from; None accepts any.

    Attributes:
        tensors: Inputs and outputs by the engine's names, inputs with the profile.
        capacity: Columns of the KV cache it is built for; None where there is none.

    Raises:
        EngineRefused: There is no engine, nothing vouches for it, or it is of another checkpoint.
    """

    def __init__(
        self,
        path: Path,
        config: DualARConfig,
        memory: DeviceMemory | None = None,
        *,
        flavour: str | Flavour | None = None,
        fingerprint: str | None = None,
    ) -> None:
        sidecar = read_sidecar(path)
        made_of = {name.split(".")[-2] for name in sidecar.fields["graph"] if name.endswith(".data")}
        if fingerprint is not None and made_of - {fingerprint[:12]}:  # files of weights are named after the checkpoint
            what = f"the engine was built from another checkpoint ({sidecar.report.checkpoint or 'unknown'})"
            raise EngineRefused(what, where=path, fix="export the graphs and build the engines again")
        self.path, self.config, self.memory = path, config, memory
        self.report, self.capacity = sidecar.report, sidecar.report.capacity
        self.tensors: dict[str, BuiltTensor] = {t.name: t for t in self.report.tensors}
        dtype = _TYPES[self.tensors["k_0"].dtype] if "k_0" in self.tensors else torch.float32
        logits = LOGITS[0] in self.tensors
        self.spec = graph_spec(self.report.graph, config, noise=noise_size(config), dtype=dtype, logits=logits)
        if wrong := {t.name for t in self.spec.inputs} ^ {t.name for t in self.report.tensors if t.mode == "input"}:
            what = f"engine and checkpoint differ in the inputs {', '.join(sorted(wrong)[:4])}"
            raise EngineRefused(what, where=path, fix="build it again from this checkpoint's graphs")
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
                    raise EnvironmentMissing(f"{flavour.name} runs no engines here: {why}", where=self.path, fix=fix)
                content = load_engine_bytes(self.path, flavour=flavour)
                self.memory = self.memory or open_memory(torch.device("cuda", 0))
                host_code = bool(self.report.options.get("version_compatible"))
                engine = LoadedEngine(flavour, content, self.path, host_code=host_code)
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
        facts = {"backend": self.report.flavour, "device": str(self.device), "precision": self.report.precision}
        return facts | ({} if self.capacity is None else {"capacity": self.capacity})

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
                out = {
                    name: found if isinstance(found, Tensor) else found.tensor() for name, found in bound.out.items()
                }
                caller.wait_stream(stream)
        finally:
            with self._lock:
                self._idle.append(context)
        for tensor in out.values():
            tensor.record_stream(caller)
        if skip:
            out["waveform"] = out["waveform"][..., skip * FRAME_SAMPLES :]
        return out

    def _checked(self, tensors: Mapping[str, Tensor]) -> LoadedEngine:
        if self._engine is None:
            raise RuntimeInputError(f"graph {self.spec.graph!r} is not open", fix="call open() first")
        check_inputs(self.spec, tensors)
        check_ranges(self.tensors, tensors, self.path)
        return self._engine

    def _bind(self, context: Any, tensors: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> _Bound:
        """Sets shapes and addresses, and allocates the outputs that are not given."""
        bound = _Bound(context, {name: self._placed(name, tensor) for name, tensor in tensors.items()})
        for name, tensor in bound.inputs.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise EngineError(f"TensorRT refuses shape {list(tensor.shape)} of input {name!r}", where=self.path)
            context.set_tensor_address(name, tensor.data_ptr())
        if unknown := context.infer_shapes():
            raise EngineError(f"TensorRT cannot tell the shapes of {', '.join(unknown)}", where=self.path)
        for name in self.spec.outputs:
            own = f"{name}_out" if name in bound.inputs else name
            shape, dtype = tuple(context.get_tensor_shape(own)), _TYPES[self.tensors[own].dtype]
            bound.out[name] = bound.inputs.get(name, outputs.get(name))
            place = bound.out[name]
            if place is None and min(shape, default=0) < 0:  # known only when it has run
                bound.out[name] = output_allocator(self._flavour, self.device, dtype)
                context.set_output_allocator(own, bound.out[name])
                continue
            if place is None or (name in bound.inputs and self._engine.writes_into(own) != name):
                place = torch.empty(shape, dtype=dtype, device=self.device)
                if bound.out[name] is not None:
                    bound.copies.append((bound.out[name], place))
                else:
                    bound.out[name] = place
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


def check_ranges(ranges: Mapping[str, BuiltTensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Compares tensors with the engine's profile.

    Raises:
        ProfileError: Names the first tensor that lies outside, and the profile.
    """
    for name, tensor in tensors.items():
        built, shape = ranges[name], tuple(tensor.shape)
        if not all(low <= size <= high for low, size, high in zip(built.min, shape, built.max, strict=True)):
            given, low, high = ("x".join(map(str, sizes)) for sizes in (shape, built.min, built.max))
            raise ProfileError(
                f"input {name!r} is {given}; the profile of {path.name} takes {low} to {high}",
                where=path,
                fix="split the input, or build the engine with a wider profile: notebook 04",
            )
