"""The chain of back ends: when one fails, the next one takes over, and everybody is told.

A fault is whatever :func:`fstrt_helpers.speech.faults.fault_of` names. The next back end is the one behind the failed
one in :data:`fstrt_helpers.speech.backends.AUTO_ORDER` that opens; the last resort is PyTorch on the CPU in float32,
which needs nothing but the checkpoint. After values that were not finite, the next ones run in float32, since a narrow
type is what overflows. There is no way back: what failed once is not tried again, unless nothing else is left.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from ..checkpoint import Checkpoint
from ..errors import BackendFailed, FstrtError
from .backends import AUTO_ORDER, Backend, open_backend, open_last_resort
from .faults import NOT_FINITE, fault_of

__all__ = ["Fallback", "FallbackChain", "Held"]

_log = logging.getLogger("fstrt_helpers")


class Fallback(NamedTuple):
    """One step from a back end to the next.

    Attributes:
        source: Back end that failed or could not be opened.
        target: The next one.
        reason: Why, in words; begins with the kind of fault.
        chunk: Number of the chunk that was being spoken; None if none was.
    """

    source: str
    target: str
    reason: str
    chunk: int | None


@dataclass(frozen=True)
class _Place:
    """A back end that has not been tried yet."""

    name: str
    precision: str
    last_resort: bool = False


@dataclass(eq=False)
class Held:
    """An open back end and who uses it.

    Attributes:
        backend: The four graphs.
        way: The steps that led to it.
        users: Speeches in flight on it.
        retired: Whether another one has taken over; it is closed when its last user is done.
        closed: Whether it has been closed.
    """

    backend: Backend
    way: tuple[Fallback, ...] = ()
    users: int = 0
    retired: bool = False
    closed: bool = False

    def close(self) -> None:
        """Closes the back end; one that is broken may not even manage that."""
        self.closed = True
        try:
            self.backend.close()
        except Exception as error:
            _log.warning("back end %s could not be closed: %s", self.backend.name, error)


class FallbackChain:
    """The back end in use, and those that may take over. Safe to share between threads.

    Args:
        checkpoint: What to load.
        backend: ``auto`` or a name; what ``auto`` passes over is no fallback, its ``reason`` tells. Or one that is
            open: then those behind its name may take over.
        precision: ``auto`` or a name.
        strict: Whether a fault is an error instead of a step.
        folder: Root of the exported graphs; ``outputs/graphs`` by default.

    Attributes:
        strict: As given.

    Raises:
        ParameterError: No such back end or precision.
        FstrtError: Under `strict`, why the back end cannot be opened.
        BackendFailed: None can be opened.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: str | Backend = "auto",
        precision: str = "auto",
        *,
        strict: bool = False,
        folder: Path | None = None,
    ) -> None:
        self._checkpoint, self._folder, self.strict = checkpoint, folder, strict
        self._moving = threading.Lock()  # held while another back end is opened
        self._counting = threading.Lock()
        try:
            given = isinstance(backend, Backend)
            first = backend if given else open_backend(checkpoint, backend, precision, folder)
        except Exception as error:
            reason = self._reason(error, backend)
            self._left = self._behind(backend, precision, reason)
            self._current = self._next(backend, reason, None, ())
        else:
            self._left = self._behind(first.name, precision)
            self._current = Held(first)

    @property
    def current(self) -> Held:
        """What is in use now."""
        return self._current

    @contextlib.contextmanager
    def lease(self) -> Iterator[Held]:
        """The back end in use, kept open until the end of the block even if others move on from it meanwhile."""
        with self._moving, self._counting:
            held = self._current
            held.users += 1
        try:
            yield held
        finally:
            with self._counting:
                held.users -= 1
                close = held.retired and not held.users
            if close:
                held.close()

    def move_on(self, held: Held, error: Exception, chunk: int | None = None) -> tuple[tuple[Fallback, ...], int]:
        """Puts the next back end in the place of one that failed, or finds that another thread has done so.

        Call it when the caller's own lease has ended.

        Args:
            held: What failed.
            error: How.
            chunk: Number of the chunk that was being spoken.

        Returns:
            The steps taken, and the length of the whole way to what is in use now.

        Raises:
            FstrtError: Under `strict`, the fault itself, or :class:`BackendFailed` if it has no type of ours.
            BackendFailed: No other back end can be opened. The failed one stays, and the next call tries again.
            Exception: `error`, if it is no fault of a back end.
        """
        reason = self._reason(error, held.backend.name)
        with self._moving:
            if held is not self._current:
                step = Fallback(held.backend.name, self._current.backend.name, reason, chunk)
                self._tell(step)
                return (step,), len(self._current.way)
            before = self._left
            if reason.startswith(NOT_FINITE):
                self._left = [replace(place, precision="float32") for place in self._left]
            self._retire(held, error)
            try:
                self._current = self._next(held.backend.name, reason, chunk, held.way)
            except BaseException:
                self._left = before
                self._take_back(held)
                raise
            return self._current.way[len(held.way) :], len(self._current.way)

    def _reason(self, error: Exception, name: str) -> str:
        """Why it failed; raises if that is no reason to move on."""
        reason = fault_of(error)
        if reason is None or (self.strict and isinstance(error, FstrtError)):
            raise error
        if self.strict:
            raise BackendFailed(
                f"{name} failed: {reason}", fix="leave strict=True out, and another back end takes over"
            ) from error
        return reason

    @staticmethod
    def _behind(name: str, precision: str, reason: str = "") -> list[_Place]:
        names = AUTO_ORDER[AUTO_ORDER.index(name) + 1 :] if name in AUTO_ORDER else ()
        places = [_Place(n, "float32" if reason.startswith(NOT_FINITE) else precision) for n in names]
        plain = name == "torch" and not torch.cuda.is_available() and precision in ("auto", "float32")
        return places if plain else [*places, _Place("torch", "float32", last_resort=True)]

    def _next(self, name: str, reason: str, chunk: int | None, way: tuple[Fallback, ...]) -> Held:
        """Opens the next back end that can be opened, telling of every step on the way there."""
        tried = [f"{name}: {reason}"]
        while self._left:
            place, *self._left = self._left
            step = Fallback(name, place.name, reason, chunk)
            self._tell(step)
            way = (*way, step)
            try:
                return Held(self._open(place, f"after {tried[0]}"), way)
            except Exception as error:
                name, reason = place.name, self._reason(error, place.name)
                tried.append(f"{name}: {reason}")
        raise BackendFailed(
            "no back end could take over; " + "; ".join(tried),
            where=self._checkpoint.folder,
            fix="notebook 00 says what is missing here, notebook 10 how each fault is mended",
        )

    def _open(self, place: _Place, why: str) -> Backend:
        if place.last_resort:
            return open_last_resort(self._checkpoint, why)
        return open_backend(self._checkpoint, place.name, place.precision, self._folder, why=why)

    def _retire(self, held: Held, error: Exception) -> None:
        """Closes it, or leaves that to its last user, and frees what the fault still holds."""
        with self._counting:
            held.retired = True
            close = not held.users
        if close:
            held.close()
        traceback.clear_frames(error.__traceback__)  # they hold tensors that the next back end may need room for
        gc.collect()
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):  # a broken context; what comes next meets it and says so
                torch.cuda.empty_cache()

    def _take_back(self, held: Held) -> None:
        """The failed back end in use again, since there is no other: its fault may have been one of the moment."""
        with self._counting:
            held.retired = False
        if not held.closed:
            return
        held.closed = False
        for runtime in held.backend.runtimes.values():
            with contextlib.suppress(FstrtError):  # then the next call finds it closed, and says so
                runtime.open()

    @staticmethod
    def _tell(step: Fallback) -> None:
        where = "" if step.chunk is None else f" in chunk {step.chunk}"
        _log.warning("back end %s%s -> %s: %s", step.source, where, step.target, step.reason)
