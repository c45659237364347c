"""Runs candidates against each other: a process for each, rounds in turn, so that a slow spell hits all alike."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..engines.flavour import CHOICE
from ..errors import FstrtError
from .candidates.names import Contender, not_measured, why_not
from .grid import Point

__all__ = ["Limits", "Outcome", "Process", "ProcessLost", "measure_together", "start_process"]

_ROOT = Path(__file__).resolve().parents[2]


class ProcessLost(FstrtError):
    """A candidate's process ended by itself, or was ended because it did not answer."""


@dataclass(frozen=True)
class Limits:
    """Seconds after which a process that does not answer is ended.

    Attributes:
        start: To import everything.
        prepare: To load, export, build, compile and warm up.
        round: For one round.
    """

    start: float = 180.0
    prepare: float = 900.0
    round: float = 300.0


@dataclass
class Outcome:
    """What came of one candidate at one point.

    Attributes:
        contender: The candidate.
        not_run: Why there are no readings; None if there are.
        prepared: The answer to ``prepare``.
        rounds: The answers to ``round``.
        memory: MB by stage and witness.
    """

    contender: Contender
    not_run: str | None = None
    prepared: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)


class Process:
    """One candidate in a process of its own.

    Args:
        contender: The candidate. On a CPU the process sees no GPU.
        command: What is started; the worker of this package unless a test says otherwise.
    """

    def __init__(self, contender: Contender, command: Sequence[str] = ()) -> None:
        self.contender = contender
        self.lost: str | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115, lives as long as the process
        environment = {**os.environ, "TQDM_DISABLE": "1", "LOGURU_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        if contender.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if contender.name.startswith("tensorrt"):
            environment[CHOICE] = contender.name.replace("-", "_")
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", f"{__package__}.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=os.name == "posix",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed while reading
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def ask(self, op: str, seconds: float, **arguments: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            ProcessLost: It ended, or did not answer in time and was ended.
        """
        if self.lost:
            raise ProcessLost(self.lost)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            self.lost = f"no answer to {op!r} within {seconds:g} s: its process was ended"
        except OSError:
            line = None
        if not self.lost and line is None:
            code = self._process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            self.lost = f"its process ended with {how}: {self._last_words()}"
        if self.lost:
            raise ProcessLost(self.lost)
        return json.loads(line)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "it said nothing")

    def kill(self) -> None:
        """Ends the process and those it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Lets it end by itself, or ends it."""
        if not self.lost:
            with contextlib.suppress(ProcessLost):
                self.ask("stop", 20)
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]


def measure_together(
    points: Sequence[Point],
    processes: dict[Contender, Process | str],
    rounds: int,
    longest: int,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> list[tuple[Point, list[Outcome]]]:
    """Measures points of one shape for all candidates, round by round in turn.

    A round goes over all points and, at each, over all candidates, so that neither a comparison of candidates nor one
    of points compares different hours. Only one process works at a time. In every other round the order is reversed, so
    that no candidate always comes right after the same one.

    Args:
        points: What to measure, of equal :attr:`~.grid.Point.shape`.
        processes: A started process per candidate, or the reason why there is none.
        rounds: How often each takes its turn.
        longest: Columns the model was made for.
        limits: Seconds to wait.
        progress: Called with a line of text before each step.

    Returns:
        For every point one outcome per candidate, in the order given; a candidate that fails has its reason, the
        others go on.
    """
    limits = limits or Limits()
    table = [{contender: Outcome(contender) for contender in processes} for _ in points]
    for number, point in enumerate(points):
        for contender, outcome in table[number].items():
            process = processes[contender]
            outcome.not_run = process if isinstance(process, str) else not_measured(contender, point, longest)
            if outcome.not_run is None:
                progress(f"{point}: preparing {contender}")
                answer = _ask(process, "prepare", limits.prepare, number=number, point=asdict(point))
                outcome.not_run = answer.get("error")
                outcome.prepared = answer
                outcome.memory = dict(answer.get("memory", {}))
    for index in range(rounds):
        turn = slice(None, None, 1 if index % 2 == 0 else -1)
        for number, point in list(enumerate(points))[turn]:
            progress(f"{point}: round {index + 1} of {rounds}")
            for contender, outcome in list(table[number].items())[turn]:
                if outcome.not_run is None:
                    answer = _ask(processes[contender], "round", limits.round, number=number, index=index)
                    outcome.not_run = answer.get("error")
                    outcome.rounds.append(answer)
    for contender, process in processes.items():
        mine = [outcomes[contender] for outcomes in table if outcomes[contender].not_run is None]
        if mine:
            peak = _ask(process, "finish", limits.round).get("memory", {})
            for outcome in mine:
                outcome.memory |= peak
    return [(point, list(outcomes.values())) for point, outcomes in zip(points, table, strict=True)]


def start_process(
    contender: Contender, settings: dict[str, Any], limits: Limits | None = None
) -> tuple[Process | None, str | None]:
    """Starts a candidate's process.

    Args:
        contender: The candidate.
        settings: Checkpoint, seed, frames and threads, as the worker's ``start`` takes them.
        limits: Seconds to wait.

    Returns:
        The process, or None and the reason.
    """
    reason = why_not(contender)
    if reason:
        return None, reason
    process = Process(contender)
    answer = _ask(process, "start", (limits or Limits()).start, **asdict(contender), **settings)
    if answer["ok"]:
        return process, None
    process.close()
    return None, answer["error"]


def _ask(process: Process | str, op: str, seconds: float, **arguments: Any) -> dict[str, Any]:
    """The answer, or one that says why there is none."""
    assert isinstance(process, Process)
    try:
        answer = process.ask(op, seconds, **arguments)
    except ProcessLost as error:
        return {"ok": False, "error": error.what}
    if not answer["ok"] and answer.get("fix"):
        answer["error"] = f"{answer['error']} (fix: {answer['fix']})"
    return answer
