"""The frame loop on a GPU: frame after frame is enqueued, nothing comes back to the host in between.

A frame is noise, the ``frame`` graph, and the step to the next; where the back end allows, all of it is captured
once as a CUDA graph and replayed. https://docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import RuntimeInputError
from ..model.dual_ar import StaticCache, causal_mask
from ..model.frame import Frame, SamplingInputs
from .base import Runtime
from .state import FrameState

__all__ = ["FrameLoop", "FrameStep", "PlainStep"]

_CAPTURE = threading.Lock()  # one capture at a time in a process


class FrameStep(Protocol):
    """Enqueues the ``frame`` graph: reads the state's inputs, writes its ``next`` and its keys and values.

    Attributes:
        capture: What to capture as one CUDA graph: ``all`` of a frame, ``around``: noise and the step to the next only,
            because the back end replays a graph of its own, or ``nothing``.
    """

    capture: str

    def launch(self) -> None:
        """Enqueues it on the current stream."""


class PlainStep:
    """The PyTorch module as it is.

    Args:
        frame: The module.
        state: Tensors at fixed addresses.
        capture: See :class:`FrameStep`.
    """

    def __init__(self, frame: Frame, state: FrameState, capture: str = "all") -> None:
        self._frame, self._state, self.capture = frame, state, capture

    def launch(self) -> None:
        """See :meth:`FrameStep.launch`."""
        i, kv = self._state.inputs, list(self._state.kv.values())
        caches = [StaticCache(k, v, i["start"]) for k, v in zip(kv[::2], kv[1::2], strict=True)]
        sampling = SamplingInputs(*(i[n] for n in ("noise", "window", "temperature", "top_p", "penalty")))
        self._state.next.copy_(self._frame(i["column"], i["start"], i["mask"], caches, sampling))


class FrameLoop:
    """B rows of speech, one frame per :meth:`launch`.

    Not for several threads at once: its tensors are those of one generation.

    Args:
        prefill: The ``prefill`` graph, open, on the same device.
        step: The ``frame`` graph on `state`.
        state: Tensors at fixed addresses.
        stream: Where everything is enqueued; None on a CPU, where nothing is captured.
        turn: Held while something is enqueued, by all loops that share a stream: what another thread enqueues while one
            of them is captured would become part of its graph.

    Attributes:
        capture_seconds: Wall-clock time of warm-up and capture; 0 before the first :meth:`launch`.
    """

    def __init__(
        self,
        prefill: Runtime,
        step: FrameStep,
        state: FrameState,
        stream: torch.cuda.Stream | None = None,
        turn: AbstractContextManager | None = None,
    ) -> None:
        self.state, self.stream = state, stream
        self._prefill, self._step = prefill, step
        self._turn = turn or contextlib.nullcontext()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ready = stream is None or step.capture == "nothing"
        self.capture_seconds = 0.0

    @torch.inference_mode()
    def prefill(self, columns: Tensor, start: int = 0) -> None:
        """All prompt columns but the last into the keys and values of every row.

        Args:
            columns: int64 [B, 9, S]; S may be 0.
            start: Slot of the first.

        Raises:
            RuntimeInputError: They do not fit.
        """
        rows, _, new = columns.shape
        if rows != self.state.batch or start + new >= self.state.capacity:
            raise RuntimeInputError(
                f"{rows} rows of {start + new} columns and the last one do not fit {self.state.batch} rows of "
                f"{self.state.capacity}",
                fix="open a loop of that batch and a larger capacity",
            )
        if not new:
            return
        with self._on_stream():
            where = torch.full((rows,), start, dtype=torch.int64, device=self.state.device)
            mask = causal_mask(where, new, self.state.capacity)
            columns = columns.to(self.state.device).contiguous()
            self._prefill.run({"columns": columns, "start": where, "mask": mask, **self.state.kv})

    @torch.inference_mode()
    def begin(self, column: Tensor, start: int, settings: tuple[float, float, float], seed: int) -> None:
        """Sets the last column of the prompt, the sampler and the seed; see :meth:`FrameState.begin`.

        Args:
            column: int64 [B, 9].
            start: Its position.
            settings: Temperature, top-p, and repetition penalty.
            seed: Of the noise.
        """
        self.make_ready()
        with self._on_stream():
            where = torch.full((self.state.batch,), start, dtype=torch.int64)
            self.state.begin(column.to(self.state.device), where, *settings, seed)
            if self._graph is not None and self._step.capture == "around":
                self.state.draw_noise()

    @torch.inference_mode()
    def launch(self) -> None:
        """Enqueues one frame; returns before it has run."""
        self.make_ready()
        with self._enqueueing():
            if self._graph is None:
                self.state.draw_noise()
                self._step.launch()
                self.state.advance()
                return
            if self._step.capture == "around":
                self._step.launch()
            self._graph.replay()

    def synchronise(self) -> None:
        """Waits until everything enqueued has run."""
        if self.stream is not None:
            self.stream.synchronize()

    def read(self, first: int, last: int, columns: Tensor, doubt: Tensor) -> torch.cuda.Event | None:
        """Enqueues a copy of some columns of the history to the host.

        Args:
            first: First column.
            last: One behind the last; as many frames must have been launched.
            columns: int64 [HISTORY, B, 9], page-locked: receives them at the same places.
            doubt: float32 [1], page-locked: receives the state's.

        Returns:
            What to wait for; None on a CPU, where they are there.
        """
        with self._enqueueing():
            columns[first:last].copy_(self.state.history[first:last], non_blocking=True)
            doubt.copy_(self.state.doubt, non_blocking=True)
            if self.stream is None:
                return None
            event = torch.cuda.Event()
            event.record(self.stream)
            return event

    @torch.inference_mode()
    def continue_from(self, other: FrameLoop) -> None:
        """Goes on with another loop's generation, at this one's capacity; see :meth:`FrameState.take_over`."""
        self.make_ready()
        if self.stream is not None:
            self.stream.wait_stream(other.stream)
        with self._on_stream():
            self.state.take_over(other.state)
        if self.stream is not None:
            other.stream.wait_stream(self.stream)  # it must not be used again before it has been read

    def describe(self) -> dict[str, Any]:
        """Batch, capacity, and what is captured."""
        captured = "nothing" if self._graph is None else self._step.capture
        return {"batch": self.state.batch, "capacity": self.state.capacity, "captured": captured}

    @contextlib.contextmanager
    def _enqueueing(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        with self._turn, torch.cuda.stream(self.stream):
            yield

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """On the loop's stream, behind what PyTorch has enqueued on this thread's."""
        if self.stream is not None:
            outer = torch.cuda.current_stream(self.state.device)
        with self._enqueueing():
            if self.stream is not None:
                self.stream.wait_stream(outer)
            yield

    @torch.inference_mode()
    def make_ready(self) -> None:
        """Warms up and captures, once; the state's contents are put back, so this may come at any time."""
        with _CAPTURE:
            if not self._ready:
                self._capture()

    def _capture(self) -> None:
        began = time.perf_counter()
        with self._turn:
            self._warm_up_and_capture()
        self.synchronise()
        self.capture_seconds = time.perf_counter() - began

    def _warm_up_and_capture(self) -> None:
        state, step = self.state, self._step
        kept = FrameState(state.spec, state.config, state.device, state.batch, state.capacity)
        with self._on_stream():
            kept.take_over(state)
            for _ in range(3):  # compiles, plans and allocates what must not be captured
                state.draw_noise()
                step.launch()
                state.advance()
        self.synchronise()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(state.generator)
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(state.device), capture_error_mode="thread_local"):
            if step.capture == "all":
                state.draw_noise()
                step.launch()
            state.advance()
            if step.capture == "around":
                state.draw_noise()  # of the next frame; the first one's is drawn in `begin`
        self._graph, self._ready = graph, True
        with self._on_stream():
            state.take_over(kept)
