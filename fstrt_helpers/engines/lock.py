"""A lock on a file, held by one process (or thread) at a time and gone when its holder is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ..errors import EngineError

__all__ = ["file_lock"]

_POLL = 0.1  # seconds


@contextlib.contextmanager
def file_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[bool]:
    """Holds an exclusive lock while the context is open.

    The operating system releases it when the holder dies, so a killed build never blocks the next one. The file itself
    stays: deleting it would let two processes lock two files of one name.

    Args:
        path: File to lock; made if it is not there.
        waiting: Called every tenth of a second while another process holds the lock; may raise to give up.

    Yields:
        Whether it had to wait.

    Raises:
        EngineError: The folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+b")
    except OSError as error:
        raise EngineError(
            f"nothing can be written there: {error.strerror or error}", where=path.parent, fix="name another folder"
        ) from error
    with handle:
        waited = False
        while not _try(handle):
            waited = True
            if waiting:
                waiting()
            time.sleep(_POLL)
        try:
            yield waited
        finally:
            _release(handle)


def _try(handle: IO[bytes]) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            handle.seek(0)
            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _release(handle: IO[bytes]) -> None:
    if os.name == "nt":
        import msvcrt

        handle.seek(0)
        msvcrt.locking(handle.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)
