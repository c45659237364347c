"""What a TensorRT builder says while it works: its log, its progress, and the way to stop it.

The callbacks run inside the builder, where a Python exception would end the process. So they only take notes: the
thread that started the build reads those, calls the user's functions, and raises what there is to raise.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from .flavour import Flavour

__all__ = ["Progress", "Watch", "collect_log", "trt_logger"]

Progress = Callable[[str, int, int], None]
"""Called with the name of a phase, the steps done, and the steps in all."""

Result = TypeVar("Result")
_POLL = 0.02  # seconds between two looks at the builder
_LOGGERS: dict[str, Any] = {}
# About 64-bit inputs, which the graphs have on purpose; and about a logger that is ours, since there is only one.
_HARMLESS = ("Int64 binding", "The logger passed into")


def trt_logger(flavour: Flavour) -> Any:
    """The one logger of this process for a flavour.

    TensorRT takes the first logger it is given for all of its objects, so there must not be two. It prints nothing.
    """
    if flavour.name not in _LOGGERS:
        trt = flavour.module

        class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.sinks: list[list[tuple[str, str]]] = []

            def log(self, severity: Any, message: str) -> None:
                if severity <= trt.ILogger.Severity.WARNING and not any(part in message for part in _HARMLESS):
                    for sink in self.sinks:
                        sink.append((severity.name, message))

        _LOGGERS[flavour.name] = Logger()
    return _LOGGERS[flavour.name]


@contextlib.contextmanager
def collect_log(flavour: Flavour) -> Iterator[list[tuple[str, str]]]:
    """Collects warnings and errors as pairs of severity and message while the context is open."""
    logger, sink = trt_logger(flavour), []
    logger.sinks.append(sink)
    try:
        yield sink
    finally:
        logger.sinks[:] = [s for s in logger.sinks if s is not sink]


class Watch:
    """Runs a build in a thread of its own, passes its progress on, and stops it when asked to.

    A builder can be stopped only between two of its steps. The longest step, the one that compiles the network, is most
    of a build, so stopping may take as long as that.

    Args:
        flavour: Whose builder.
        progress: Called in the caller's thread. Steps that follow each other quickly are told as one.
        cancel: Asked before each step, in the builder's thread; true stops the build.
        look: Called every few milliseconds in the caller's thread while the build runs.

    Attributes:
        stopped: Whether the build was stopped because `cancel` said so.
    """

    def __init__(
        self,
        flavour: Flavour,
        progress: Progress | None = None,
        cancel: Callable[[], bool] | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._flavour, self._progress, self._cancel, self._look = flavour, progress, cancel, look
        self._events: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._fault: BaseException | None = None
        self._monitor: Any = None
        self.stopped = False

    def note(self, phase: str, step: int, total: int) -> None:
        """Tells of a step that is not the builder's."""
        self._events.put((phase, step, total))

    def wants_stop(self) -> bool:
        """Whether the build shall end. Asks `cancel`; never raises."""
        if not self._stop.is_set() and self._cancel is not None:
            try:
                self.stopped = bool(self._cancel())
            except BaseException as error:
                self._fault = error
            if self.stopped or self._fault:
                self._stop.set()
        return self._stop.is_set()

    def monitor(self) -> Any:
        """An ``IProgressMonitor`` for the builder's configuration.

        https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/infer/Core/ProgressMonitor.html
        """
        trt, watch = self._flavour.module, self

        class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                trt.IProgressMonitor.__init__(self)
                self.totals: dict[str, int] = {}

            def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
                self.totals[phase_name] = num_steps
                watch.note(phase_name, 0, num_steps)

            def step_complete(self, phase_name: str, step: int) -> bool:
                watch.note(phase_name, step + 1, self.totals.get(phase_name, step + 1))
                return not watch.wants_stop()

            def phase_finish(self, phase_name: str) -> None:
                total = self.totals.get(phase_name, 1)
                watch.note(phase_name, total, total)

        self._monitor = Monitor()  # the builder keeps no reference of its own
        return self._monitor

    def run(self, work: Callable[[], Result]) -> Result:
        """Does the work and returns its result, or raises what it, a callback, or Ctrl-C raised."""
        outcome: list[Any] = []
        failure: list[BaseException] = []
        done = threading.Event()  # not Thread.join: in Python 3.11, Ctrl-C while joining makes a live thread look dead
        go = threading.Event()

        def body() -> None:
            go.wait()
            try:
                if not self._stop.is_set():
                    outcome.append(work())
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=body, name="trt-build", daemon=True)
        raised: BaseException | None = None
        try:
            thread.start()
        except BaseException:  # Ctrl-C: if the thread runs already, it ends without having done anything
            self._stop.set()
            go.set()
            raise
        try:
            go.set()
            while not done.wait(_POLL):
                if self._look:
                    self._look()
                self._tell()
            self._tell()
        except BaseException as error:  # Ctrl-C, or a progress function that failed
            raised = error
            self._stop.set()
        while not done.is_set():  # never leave a builder running behind the caller's back
            with contextlib.suppress(KeyboardInterrupt):
                done.wait()
        thread.join()
        if raised or self._fault:
            raise raised or self._fault  # type: ignore[misc]
        if failure:
            raise failure[0]
        return outcome[0]

    def _tell(self) -> None:
        """Passes events on; of steps of one phase that came together only the last."""
        last: tuple[str, int, int] | None = None
        while not self._events.empty():
            event = self._events.get()
            if last and last[0] != event[0] and self._progress:
                self._progress(*last)
            last = event
        if last and self._progress:
            self._progress(*last)
