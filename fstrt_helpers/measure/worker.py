"""The process one candidate lives in: reads a request per line, answers with a line of JSON.

    {"op": "start", "name": ..., "precision": ..., "device": ..., "checkpoint": ..., "seed": ..., "frames": ...}
    {"op": "prepare", "number": 0, "point": {...}}   opens, compiles and warms up one point of the grid
    {"op": "round", "number": 0, "index": 0}         takes the readings of one round at that point
    {"op": "finish"}                                 tells the peak memory
    {"op": "stop"}

Every answer has ``ok``; where it is false, ``error`` says why and the process stays ready for the next request. What
libraries print goes to the error stream, so that nothing but answers travels through the pipe.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from ..errors import FstrtError
from .memory import MemoryLog

__all__ = ["Worker", "main"]


class Worker:
    """Answers requests. One candidate per process."""

    def __init__(self) -> None:
        self._maker: Any = None
        self._tasks: dict[int, Any] = {}
        self._memory: MemoryLog | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Does what a request asks for; a failure becomes an answer."""
        try:
            done = getattr(self, f"_{request.pop('op')}")(**request)
        except FstrtError as error:
            return {"ok": False, "error": " ".join(error.what.split()), "fix": error.fix}
        except Exception as error:  # whatever a library raises: a row that says so, and the others go on
            return {"ok": False, "error": " ".join(f"{type(error).__name__}: {error}".split())[:300], "fix": None}
        return {"ok": True, **done}

    def _start(
        self, name: str, precision: str, device: str, checkpoint: str, seed: int, frames: int, threads: int
    ) -> dict[str, Any]:
        import torch

        from ..checkpoint import find_checkpoint
        from .candidates.names import Contender
        from .tasks import TaskMaker

        if threads:
            torch.set_num_threads(threads)
        if name.startswith("upstream"):
            from .upstream import import_upstream_lib

            import_upstream_lib()  # takes seconds that are no part of opening a model
        contender = Contender(name, precision, device)
        found = find_checkpoint(checkpoint)
        self._memory = MemoryLog(gpu=device == "cuda")
        self._maker = TaskMaker(contender, found, seed=seed, frames=frames, threads=threads)
        return {"pid": os.getpid(), "torch_threads": torch.get_num_threads()}

    def _prepare(self, number: int, point: dict[str, Any]) -> dict[str, Any]:
        from .grid import Point

        memory = self._memory
        assert memory is not None
        before = self._maker.openings
        memory.restart_peak()
        with memory.turn(watch=True):
            task = self._maker.make(Point(**point))
        if self._maker.openings != before:
            self._tasks.clear()
        weights, opening = memory.now(), memory.peak()
        memory.restart_peak()
        with memory.turn(watch=True):
            task.warm_up()
        self._tasks[number] = task
        held = {"weights": weights.row(), "opening": opening.row(), "steady": memory.now().row()}
        return {"stages": task.stages, "capacity": task.capacity, "memory": held}

    def _round(self, number: int, index: int) -> dict[str, Any]:
        assert self._memory is not None
        with self._memory.turn():
            return self._tasks[number].round(index)

    def _finish(self) -> dict[str, Any]:
        assert self._memory is not None
        return {"memory": {"peak": self._memory.peak().row()}}

    def _stop(self) -> dict[str, Any]:
        self._tasks.clear()
        self._maker = None
        return {}


def main(requests: IO[str], answers: IO[str]) -> None:
    """Serves requests until ``stop`` or the end of the stream."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        stop = request["op"] == "stop"
        print(json.dumps(worker.answer(request)), file=answers, flush=True)
        if stop:
            return


if __name__ == "__main__":
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main(sys.stdin, pipe)
