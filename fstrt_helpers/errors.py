"""Typed errors: what is wrong, where it was looked for, and the command or change that fixes it.

Every error a user can cause derives from :class:`FstrtError`, so ``except FstrtError`` catches exactly those.
"""

from __future__ import annotations

__all__ = [
    "AudioError",
    "BackendFailed",
    "BuildCancelled",
    "CheckpointError",
    "DownloadError",
    "EngineError",
    "EngineRefused",
    "EnvironmentMissing",
    "FstrtError",
    "GraphError",
    "NonFiniteOutput",
    "NotebookOrderError",
    "ParameterError",
    "ProfileError",
    "PromptTooLong",
    "RuntimeInputError",
    "TextError",
]


class FstrtError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        what: One sentence that names what was wrong.
        where: The file, folder, argument or text that was looked at.
        fix: The command or the change that mends it.
    """

    def __init__(self, what: str, *, where: object = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where is not None:
            lines.append(f"  looked at: {self.where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class CheckpointError(FstrtError):
    """A checkpoint folder is incomplete, damaged, or of another model."""


class DownloadError(FstrtError):
    """A download did not finish or did not match its published checksum."""


class TextError(FstrtError):
    """The text holds nothing that can be spoken, or is not text."""


class AudioError(FstrtError):
    """Reference audio cannot be read, or is too short or too long."""


class ParameterError(FstrtError):
    """A setting lies outside its legal range."""


class PromptTooLong(FstrtError):
    """Prompt plus requested frames do not fit into the KV cache."""


class EnvironmentMissing(FstrtError):
    """The machine lacks a library, driver or device that was asked for by name."""


class GraphError(FstrtError):
    """An exported graph is missing, damaged, or belongs to another checkpoint."""


class RuntimeInputError(FstrtError):
    """A tensor given to a runtime has the wrong name, dtype or shape."""


class NotebookOrderError(FstrtError):
    """A notebook needs a file that an earlier notebook writes."""


class EngineError(FstrtError):
    """A graph cannot be built into an engine, or the engine is not what was asked for."""


class ProfileError(EngineError):
    """An optimisation profile does not fit the graph it is meant for."""


class BuildCancelled(EngineError):
    """An engine build was stopped on request; nothing was written."""


class EngineRefused(EngineError):
    """An engine file that is not loaded: nothing vouches for it, or it was made for something else."""


class NonFiniteOutput(FstrtError):
    """A back end computed NaN or infinity where there must be numbers."""


class BackendFailed(FstrtError):
    """A back end failed while speaking, and no other one may take over or is left."""
