"""Everything that decides what an engine will be, checked before the builder starts, and the key made of it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import EngineError, ParameterError
from ..graphs.view import GraphView
from .adapt import widened_nodes
from .flavour import Flavour, load_trt
from .profile import Profile, check_profile, default_profile
from .source import PRECISIONS, Source, open_source
from .store import fields_key

__all__ = ["ENGINE_FOLDER", "Recipe", "difference", "engine_path", "prepare"]

ENGINE_FOLDER = Path(__file__).resolve().parents[2] / "outputs" / "engines"
_LEVELS = range(6)
_NAMES = {
    "graph": "other content than the engine was built from",
    "profile": "another profile",
    "options": "other settings of the builder",
}


@dataclass(frozen=True)
class Recipe:
    """One engine to be built.

    Attributes:
        source: The graph.
        profile: Complete, and known to fit the graph.
        precision: What the products must compute in.
        flavour: Which TensorRT.
        target: ``("portable",)`` or GPUs such as ``("SM86",)``.
        options: Settings of the builder.
        islands: Parts of names of layers that may compute in something else.
        widened: Names of nodes that compute in float32 because TensorRT has no kernel in the graph's own type.
        folder: Root of the engines.
    """

    source: Source
    profile: Profile
    precision: str
    flavour: Flavour
    target: tuple[str, ...]
    options: Mapping[str, Any]
    islands: tuple[str, ...]
    widened: tuple[str, ...]
    folder: Path

    @property
    def path(self) -> Path:
        """Where the engine goes."""
        source = self.source
        return engine_path(self.folder, source.checkpoint, self.precision, source.graph, self.profile.capacity)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """What the key is made of, in words."""
        return {
            "graph": self.source.hashes(),
            "profile": self.profile.to_dict(),
            "precision": self.precision,
            "flavour": self.flavour.name,
            "version": self.flavour.version,
            "target": ",".join(self.target),
            "options": dict(self.options) | {"islands": list(self.islands), "float32 nodes": list(self.widened)},
        }

    @cached_property
    def key(self) -> str:
        """SHA-256 over :attr:`fields`: two engines with the same key are interchangeable."""
        return fields_key(self.fields)


def engine_path(folder: Path, checkpoint: str, precision: str, graph: str, capacity: int | None = None) -> Path:
    """Where an engine lies: ``<folder>/<checkpoint>/<precision>/<graph>[-<capacity>].engine``."""
    name = graph if capacity is None else f"{graph}-{capacity}"
    return folder / checkpoint / precision / f"{name}.engine"


def prepare(
    onnx_path: str | os.PathLike[str],
    profile: Profile | None = None,
    *,
    precision: str,
    flavour: str | Flavour | None = None,
    target: str | Sequence[str] | None = None,
    workspace: int | None = None,
    level: int | None = None,
    version_compatible: bool = False,
    islands: Collection[str] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Recipe:
    """Checks what :func:`fstrt_helpers.engines.build.build_engine` is given; the arguments are described there.

    Raises:
        ParameterError: A setting is out of range, or the flavour has no such thing.
        ProfileError: The profile does not fit the graph.
        EngineError: int8 is asked for and the graph is not quantised.
        GraphError: The graph is missing or damaged.
        EnvironmentMissing: There is no such TensorRT, or it needs a GPU.
    """
    chosen = load_trt(flavour)
    if precision not in PRECISIONS:
        raise ParameterError(f"there is no precision {precision!r}", fix=f"use one of: {', '.join(PRECISIONS)}")
    if level is not None and level not in _LEVELS:
        raise ParameterError(f"the optimisation level is {level!r}", fix="use 0 (fast to build) to 5 (fast to run)")
    if workspace is not None and (isinstance(workspace, bool) or not isinstance(workspace, int) or workspace < 1):
        raise ParameterError(f"the workspace is {workspace!r}", fix="give a number of bytes, such as 1 << 30")
    if version_compatible and not chosen.version_compatible:
        raise ParameterError(
            f"{chosen.name} builds no engines for later versions", fix="leave version_compatible out, or use tensorrt"
        )
    source = open_source(onnx_path)
    if precision == "int8":
        _check_quantised(source)
    profile = check_profile(profile or default_profile(source.model, name=source.graph), source.model)
    options = {"workspace": workspace, "level": level, "version_compatible": version_compatible}
    options["user_allocation"] = hasattr(chosen.module.BuilderFlag, "REQUIRE_USER_ALLOCATION")
    root = (ENGINE_FOLDER if folder is None else Path(folder)).resolve()
    return Recipe(
        source,
        profile,
        precision,
        chosen,
        chosen.target(target),
        options,
        islands=tuple(sorted(islands)),
        widened=tuple(widened_nodes(GraphView(source.model, source.path.parent))),
        folder=root,
    )


def _check_quantised(source: Source) -> None:
    """TensorRT 11 and TensorRT-RTX have no calibrators: scales come from the graph or not at all."""
    found = {node.op_type for node in source.model.graph.node}
    if "DequantizeLinear" not in found:
        raise EngineError(
            "int8 was asked for, but the graph has no QuantizeLinear or DequantizeLinear: there are no scales",
            where=source.path,
            fix="build from the quantised graph, outputs/graphs/<checkpoint>/int8",
        )


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """What distinguishes two sets of key fields, in words; empty if nothing does."""
    changes = []
    for name in dict.fromkeys((*stored, *wanted)):
        old, new = stored.get(name), wanted.get(name)
        if old == new:
            continue
        if isinstance(new, Mapping):
            old = old if isinstance(old, Mapping) else {}
            changed = _profile_changes(old, new) if name == "profile" else _changed(old, new)
            changes.append(f"{_NAMES.get(name, name)}: {', '.join(changed[:3])}")
        else:
            changes.append(f"{name} is {old}, not {new}")
    return "; ".join(changes)


def _profile_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    changed = [key for key in ("graph", "capacity") if old.get(key) != new.get(key)]
    changes = [f"{key} {old.get(key)}, not {new.get(key)}" for key in changed]
    before = old.get("inputs")
    inputs = _changed(before if isinstance(before, Mapping) else {}, new.get("inputs", {}))
    return changes + [f"sizes of {name}" for name in inputs]


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
