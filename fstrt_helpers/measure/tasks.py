"""One point of the grid for one candidate: open it, warm it up, then a round of timings whenever asked."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from ..checkpoint import Checkpoint
from ..graphs.spec import GRAPHS
from .candidates.audio import open_codec, open_speaker
from .candidates.frames import Frames
from .candidates.making import make_missing
from .candidates.names import Contender
from .candidates.opening import OurModel
from .grid import SENTENCES, Point, code_frames, make_codes, make_prompt, sha256_of
from .latency import StageTimer, time_calls

__all__ = ["Round", "Task", "TaskMaker"]

Round = dict[str, Any]
"""``ms``: readings; ``device_ms``, ``pipelined_ms``: where there are; ``inputs``: hashes; ``more``: further figures."""

_WARM_FRAMES = 8
_PREFILLS = 3
_WARM_TEXT = "This sentence only warms everything up."


class Task(Protocol):
    """A point that is ready to be measured.

    Attributes:
        stages: Milliseconds it took to get ready: ``build``, ``open``, ``first``, ``warmup``.
        capacity: Columns of the KV cache, where there is one.
    """

    stages: dict[str, float]
    capacity: int | None

    def warm_up(self) -> None:
        """Runs until everything that happens once has happened."""

    def round(self, index: int) -> Round:
        """Takes the readings of one round; another index brings other inputs."""


class TaskMaker:
    """Makes tasks for one candidate and keeps its model open from point to point while its shape allows.

    Args:
        contender: Candidate, precision, device.
        checkpoint: What to load.
        seed: Of prompts and noise.
        frames: Frames timed per round.
        threads: CPU threads of one operator in ONNX Runtime; 0 means one per core.
    """

    def __init__(
        self, contender: Contender, checkpoint: Checkpoint, *, seed: int = 0, frames: int = 24, threads: int = 0
    ) -> None:
        self.contender, self.checkpoint = contender, checkpoint
        self.seed, self.frames, self.threads = seed, frames, threads
        self.tokenizer = checkpoint.tokenizer()
        self.openings = 0  # how often a model or its shape changed; earlier tasks are of no use then
        self._kind: str | None = None
        self._model: Any = None
        self._shape: tuple[int, int | None] | None = None
        self._frames: Frames | None = None

    def make(self, point: Point) -> Task:
        """Opens what a point needs; what is open is used again.

        Raises:
            FstrtError: The candidate cannot run here.
        """
        timer = StageTimer()
        kind = "frames" if point.graph in ("frame", "prefill") else f"{point.graph} {point.seconds}"
        if point.graph == "codec_decode":
            kind = "codec"
        if self._kind != kind:
            self.close()
            self.openings += 1
            self._open(point, timer)
            self._kind = kind
        if kind != "frames":
            return (CodecTask if kind == "codec" else PipelineTask)(self, point, self._model, timer)
        shape = (point.batch, self._capacity(point))
        if self._shape != shape:
            self._frames = self._shape = None
            _collect(self.contender)
            self.openings += 1
            with timer("first"):
                self._frames = self._model.frames(*shape)
            self._shape = shape
        return (FrameTask if point.graph == "frame" else PrefillTask)(self, point, self._frames, timer)

    def _capacity(self, point: Point) -> int | None:
        """None stands for what upstream allocates by itself."""
        whole = not point.sized or (point.capacity or 0) >= self.checkpoint.config.max_seq_len
        return None if self.contender.name.startswith("upstream") and whole else point.capacity

    def _open(self, point: Point, timer: StageTimer) -> None:
        graphs: tuple[str, ...] = {"codec_decode": ("codec_decode",), "pipeline": GRAPHS}.get(
            point.graph, ("prefill", "frame")
        )
        with timer("build"):
            built = make_missing(self.contender, self.checkpoint, graphs)
        if not built:
            del timer.ms["build"]
        who = (self.contender, self.checkpoint)
        with timer("open"):
            if point.graph == "codec_decode":
                self._model = open_codec(*who, self.threads)
            elif point.graph == "pipeline":
                self._model = open_speaker(*who, point.seconds or 1.0, self.threads)
            elif self.contender.name.startswith("upstream"):
                from .candidates.theirs import UpstreamFrames

                self._model = UpstreamFrames(*who, seed=self.seed)
            else:
                self._model = OurModel(*who, seed=self.seed, threads=self.threads)

    def close(self) -> None:
        """Releases the model that is open."""
        getattr(self._model, "close", lambda: None)()
        self._kind = self._model = self._frames = self._shape = None
        _collect(self.contender)

    def prompt(self, columns: int, batch: int, index: int) -> np.ndarray:
        """Prompt of a round, int64 [B, 9, S]; negative indices are for warming up."""
        return make_prompt(self.tokenizer, columns, batch, (self.seed + 1) * 1_000_003 + index)


class FrameTask:
    """Milliseconds per frame around a position, after a prompt that reaches up to it."""

    def __init__(self, maker: TaskMaker, point: Point, model: Frames, timer: StageTimer) -> None:
        self._maker, self._point, self._model, self._timer = maker, point, model, timer
        self.capacity: int | None = model.capacity
        self._columns = (point.position or 0) - maker.frames // 2

    @property
    def stages(self) -> dict[str, float]:
        """See :class:`Task`."""
        return self._timer.ms

    def warm_up(self) -> None:
        """The first frame alone, because some candidates compile or capture there, then a short round."""
        with self._timer("first"):
            self._model.prefill(self._maker.prompt(self._columns, self._point.batch, -1))
            self._model.time(1)
        if self._maker.contender.name == "upstream-compile":
            self._timer.ms["build"] = self._timer.ms.get("build", 0.0) + self._timer.ms["first"]
        with self._timer("warmup"):
            self._model.prefill(self._maker.prompt(self._columns, self._point.batch, -2))
            self._model.time(min(_WARM_FRAMES, self._maker.frames))

    def round(self, index: int) -> Round:
        """See :class:`Task`."""
        prompt = self._maker.prompt(self._columns, self._point.batch, index)
        self._model.prefill(prompt)
        times = self._model.time(self._maker.frames, pipelined=self._maker.frames // 2)
        device = None if times.device is None else list(times.device)
        return {
            "ms": list(times.host),
            "device_ms": device,
            "pipelined_ms": times.pipelined,
            "inputs": [sha256_of(prompt)],
        }


class PrefillTask:
    """Milliseconds from a prompt to the first frame after it, which is where upstream's prefill ends too."""

    def __init__(self, maker: TaskMaker, point: Point, model: Frames, timer: StageTimer) -> None:
        self._maker, self._point, self._model, self._timer = maker, point, model, timer
        self.capacity: int | None = model.capacity

    @property
    def stages(self) -> dict[str, float]:
        """See :class:`Task`."""
        return self._timer.ms

    def warm_up(self) -> None:
        """Two prompts."""
        for stage, index in (("first", -1), ("warmup", -2)):
            with self._timer(stage):
                self._model.first(self._maker.prompt(self._point.prompt or 2, self._point.batch, index))

    def round(self, index: int) -> Round:
        """See :class:`Task`; a few prompts, all different."""
        first, alone, inputs = [], [], []
        for i in range(_PREFILLS):
            prompt = self._maker.prompt(self._point.prompt or 2, self._point.batch, index * _PREFILLS + i)
            first += time_calls(_call(self._model.first, prompt), 1)
            if not self._maker.contender.name.startswith("upstream"):
                alone += time_calls(_call(self._model.prefill, prompt), 1)
            inputs.append(sha256_of(prompt))
        return {"ms": first, "more": {"prefill_only": alone}, "inputs": inputs}


class CodecTask:
    """Milliseconds to decode some seconds of audio at once."""

    capacity: int | None = None

    def __init__(self, maker: TaskMaker, point: Point, model: Callable[[np.ndarray], None], timer: StageTimer) -> None:
        self._maker, self._model, self._timer = maker, model, timer
        self._frames = code_frames(point.seconds or 1)

    @property
    def stages(self) -> dict[str, float]:
        """See :class:`Task`."""
        return self._timer.ms

    def warm_up(self) -> None:
        """Two calls of the length that is measured: every new length may cost a plan."""
        for stage, seed in (("first", 1), ("warmup", 2)):
            with self._timer(stage):
                self._model(make_codes(self._frames, seed))

    def round(self, index: int) -> Round:
        """See :class:`Task`."""
        codes = make_codes(self._frames, (self._maker.seed + 1) * 1_000_003 + index)
        return {"ms": time_calls(_call(self._model, codes), 1), "inputs": [sha256_of(codes)]}


class PipelineTask:
    """Milliseconds from a text to the last sample, and everything the pipeline tells about its stages."""

    capacity: int | None = None

    def __init__(self, maker: TaskMaker, point: Point, model: Callable[[str, int], Round], timer: StageTimer) -> None:
        self._maker, self._model, self._timer = maker, model, timer

    @property
    def stages(self) -> dict[str, float]:
        """See :class:`Task`."""
        return self._timer.ms

    def warm_up(self) -> None:
        """One text twice."""
        for stage in ("first", "warmup"):
            with self._timer(stage):
                self._model(_WARM_TEXT, self._maker.seed)

    def round(self, index: int) -> Round:
        """See :class:`Task`."""
        text = SENTENCES[index % len(SENTENCES)]
        began = time.perf_counter()
        spoken = self._model(text, self._maker.seed + index)
        ms = 1e3 * (time.perf_counter() - began)
        stages = {k: [v] for k, v in spoken.items() if k in ("text", "prefill", "frames", "codec", "codec_work")}
        more = {"first_audio": [spoken["first_audio"]], "audio": [spoken["audio"]], **stages}
        return {"ms": [ms], "more": more, "ends": spoken["ends"], "inputs": [sha256_of(text)]}


def _collect(contender: Contender) -> None:
    gc.collect()  # captured graphs hold memory until they are collected
    if contender.device == "cuda":
        torch.cuda.empty_cache()


def _call(function: Callable[[np.ndarray], object], argument: np.ndarray) -> Callable[[], object]:
    return lambda: function(argument)
