"""Engine files and the JSON beside each: written whole, and read for loading only if the one vouches for the other.

An engine is code to the process that loads it. So it is loaded only if its hash is the one in its sidecar, and if it
was made by the TensorRT, and for the GPU, that will run it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import EngineError, EngineRefused
from .flavour import PORTABLE, Flavour, load_trt
from .report import BuildReport
from .source import note_sha256, replace_file

__all__ = ["Sidecar", "fields_key", "load_engine_bytes", "read_sidecar", "sidecar_path", "write_engine"]

SCHEMA = 1
_REBUILD = "build it again: notebook 04, or `python -m fstrt_helpers.engines.build`"
_PORTABLE_ON = {PORTABLE: "compute capability 8.0 and later"}
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


@dataclass(frozen=True)
class Sidecar:
    """What is known about an engine file.

    Attributes:
        key: Hash of the fields.
        fields: What the engine was built from; see :class:`fstrt_helpers.engines.recipe.Recipe`.
        engine_sha256: Hash of the engine file.
        bytes: Its size.
        report: What the build found.
    """

    key: str
    fields: dict[str, Any]
    engine_sha256: str
    bytes: int
    report: BuildReport

    def mismatch(self, size: int, sha256: Callable[[], str]) -> str:
        """Why a file of that size and hash is not the engine described here; empty if it is."""
        if size != self.bytes:
            how = "truncated" if size < self.bytes else "too long"
            return f"the engine is {how}: {size:,} bytes, {self.bytes:,} were written"
        if sha256() != self.engine_sha256:
            return "the engine is not the one its sidecar vouches for: its hash differs"
        return ""


def sidecar_path(engine: Path) -> Path:
    """``<graph>.engine.json`` for ``<graph>.engine``."""
    return engine.with_name(f"{engine.name}.json")


def fields_key(fields: Mapping[str, Any]) -> str:
    """The key of an engine: SHA-256 over what it is built from. Two engines with one key are interchangeable."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def write_engine(path: Path, plan: memoryview, fields: Mapping[str, Any], report: BuildReport) -> BuildReport:
    """Writes an engine and its sidecar. If that fails, what was there before is there still.

    The engine comes first: between the two steps the old sidecar does not vouch for the new file, which is then built
    again rather than trusted.

    Returns:
        The report, with the path.

    Raises:
        EngineError: The disk is full, or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(plan).hexdigest()
        replace_file(path, plan)
        note_sha256(path, digest)
        content = {
            "schema": SCHEMA,
            "key": fields_key(fields),
            "fields": dict(fields),
            "engine_sha256": digest,
            "bytes": plan.nbytes,
            "report": report.to_dict(),
        }
        replace_file(sidecar_path(path), (json.dumps(content, indent=1) + "\n").encode())
    except OSError as error:
        full = error.errno in _FULL
        raise EngineError(
            f"the engine of {plan.nbytes / 1e6:.1f} MB cannot be written: {error.strerror or error}",
            where=path.parent,
            fix="free some space, or name another folder" if full else "name a folder that can be written",
        ) from error
    return replace(report, path=path)


def read_sidecar(path: Path) -> Sidecar:
    """Reads the sidecar of an engine file.

    Raises:
        EngineRefused: There is no engine, no sidecar, or none that can be read.
    """
    listing = sidecar_path(path)
    for file, what in ((path, "engine"), (listing, "sidecar, so nothing vouches for the engine")):
        if not file.is_file():
            raise EngineRefused(f"there is no {what}", where=file, fix=_REBUILD)
    try:
        content = json.loads(listing.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            what = f"the sidecar has schema {content['schema']}, not {SCHEMA}"
            raise EngineRefused(what, where=listing, fix=_REBUILD)
        report = BuildReport.from_dict(content["report"], path)
        sidecar = Sidecar(content["key"], content["fields"], content["engine_sha256"], content["bytes"], report)
        kept = sidecar.key == fields_key(sidecar.fields) and sidecar.fields.keys() >= {"flavour", "version", "target"}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = f"the sidecar cannot be read ({type(error).__name__}: {error})"
        raise EngineRefused(what, where=listing, fix=_REBUILD) from error
    if not kept:
        raise EngineRefused("the sidecar was changed: its key is not that of its fields", where=listing, fix=_REBUILD)
    return sidecar


def load_engine_bytes(
    path: str | os.PathLike[str], *, flavour: str | Flavour | None = None, key: str | None = None
) -> bytes:
    """Reads an engine file for deserialisation.

    Args:
        path: The ``.engine`` file.
        flavour: The TensorRT that will run it; as in :func:`fstrt_helpers.engines.flavour.load_trt`.
        key: What its key must be, if only one particular build will do.

    Returns:
        The very bytes whose hash was compared.

    Raises:
        EngineRefused: The file is missing, truncated or changed; or it was made by another flavour or version, for
            another GPU, or from something else.
    """
    path = Path(path)
    sidecar = read_sidecar(path)
    chosen = load_trt(flavour)
    if reason := _foreign(sidecar, chosen):
        raise EngineRefused(reason, where=path, fix=_REBUILD)
    if key is not None and sidecar.key != key:
        raise EngineRefused("the engine was built from something else (its key differs)", where=path, fix=_REBUILD)
    content = path.read_bytes()
    if reason := sidecar.mismatch(len(content), lambda: hashlib.sha256(content).hexdigest()):
        raise EngineRefused(reason, where=path, fix=_REBUILD)
    return content


def _foreign(sidecar: Sidecar, flavour: Flavour) -> str:
    """Why this TensorRT on this GPU must not load the engine; empty if it may."""
    fields = sidecar.fields
    name, version, target = (str(fields[key]) for key in ("flavour", "version", "target"))
    if name != flavour.name:
        return f"the engine was built by {name}, this is {flavour.name}"
    if version != flavour.version:
        later = fields.get("options", {}).get("version_compatible") and _follows(flavour.version, version)
        if not later:
            return f"the engine was built by {name} {version}, this is {flavour.version}"
    if not flavour.here:
        return ""
    fits = int(flavour.here[2:]) >= 80 if target == PORTABLE else flavour.here in target.split(",")
    return "" if fits else f"the engine was built for {_PORTABLE_ON.get(target, target)}, this GPU is {flavour.here}"


def _follows(new: str, old: str) -> bool:
    """Whether one version is later than another and of the same major version."""
    numbers = [[int(part) for part in version.split(".") if part.isdigit()] for version in (new, old)]
    return numbers[0] > numbers[1] and numbers[0][:1] == numbers[1][:1]
