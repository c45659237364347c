"""What came out of a build: time, size, memory, precision of the layers, and the profile as built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..tables import html_table, text_table
from .readback import LayerShare, heavy_share

__all__ = ["BuildReport", "BuiltTensor", "PeakMemory"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BuiltTensor:
    """An input or output of the engine as TensorRT sees it.

    Attributes:
        name: Its name.
        mode: ``input`` or ``output``.
        dtype: TensorRT's name of the type, such as ``HALF``.
        shape: As parsed; -1 is free.
        min: Smallest shape that the profile allows; empty for outputs. ``opt`` and ``max`` likewise.
        opt: The shape it is tuned for.
        max: The largest shape.
    """

    name: str
    mode: str
    dtype: str
    shape: Shape
    min: Shape = ()
    opt: Shape = ()
    max: Shape = ()


@dataclass(frozen=True, repr=False)
class BuildReport:
    """Facts about one built engine. Shows itself as tables.

    Attributes:
        graph: Name of the graph.
        checkpoint: Name of the checkpoint; empty if unknown.
        precision: What was asked for, and what the layers were found to compute in.
        flavour: ``tensorrt`` or ``tensorrt_rtx``.
        version: Its version.
        target: ``portable``, or the GPUs it is made for.
        capacity: Columns of the KV cache, where there is one.
        seconds: Wall-clock time of parsing and building.
        parse_seconds: Of that, parsing.
        bytes: Size of the engine.
        graph_bytes: Size of the graph with the weights it reads.
        peak_host_mb: Largest resident memory of this process while it built, in 10^6 bytes; None where unknown.
        extra_host_mb: By how much that was more than before.
        layers: Layers by type and precision.
        tensors: Inputs and outputs, with the profile as built.
        options: Settings of the builder.
        warnings: What the parser and the builder warned of.
        path: Where the engine lies.
    """

    graph: str
    checkpoint: str
    precision: str
    flavour: str
    version: str
    target: str
    capacity: int | None
    seconds: float
    parse_seconds: float
    bytes: int
    graph_bytes: int
    peak_host_mb: float | None
    extra_host_mb: float | None
    layers: tuple[LayerShare, ...]
    tensors: tuple[BuiltTensor, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Share of the heavy layers (products, convolutions, attention) per precision."""
        return heavy_share(self.layers)

    def row(self) -> dict[str, Any]:
        """The report as one row of a table."""
        return {
            "graph": self.graph,
            "capacity": self.capacity,
            "precision": self.precision,
            "products": ", ".join(f"{precision} {share:.0%}" for precision, share in self.shares.items()),
            "target": self.target,
            "seconds": round(self.seconds, 1),
            "MB": round(self.bytes / 1e6, 1),
            "graph MB": round(self.graph_bytes / 1e6, 1),
            "peak host MB": None if self.peak_host_mb is None else round(self.peak_host_mb),
            "of it new": None if self.extra_host_mb is None else round(self.extra_host_mb),
            "built by": f"{self.flavour} {self.version}",
        }

    def layer_rows(self) -> list[dict[str, Any]]:
        """A row per type and precision of layer."""
        return [{"layer": s.layer, "precision": s.precision, "count": s.count, "heavy": s.heavy} for s in self.layers]

    def profile_rows(self) -> list[dict[str, Any]]:
        """A row per input and output: type, shape, and the profile as built."""
        return [
            {"tensor": t.name, "mode": t.mode, "type": t.dtype}
            | {key: "x".join(map(str, getattr(t, key))) for key in ("shape", "min", "opt", "max")}
            for t in self.tensors
        ]

    def __repr__(self) -> str:
        return text_table([self.row()])

    def __str__(self) -> str:
        tables = [[self.row()], self.layer_rows(), self.profile_rows()]
        notes = [f"warning: {text}" for text in self.warnings]
        return "\n\n".join([*map(text_table, tables), *notes])

    def _repr_html_(self) -> str:
        details = "".join(
            f"<details><summary>{title}</summary>{html_table(rows)}</details>"
            for title, rows in (("layers", self.layer_rows()), ("profile as built", self.profile_rows()))
        )
        return html_table([self.row()]) + details

    def to_dict(self) -> dict[str, Any]:
        """As JSON stores it; without the path, which a copy would get wrong."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "path"}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], path: Path | None = None) -> BuildReport:
        """The report that :meth:`to_dict` stored.

        Raises:
            TypeError: A key is missing or unknown.
        """
        layers = tuple(LayerShare(**{**s, "names": tuple(s["names"])}) for s in stored["layers"])
        shapes = ("shape", "min", "opt", "max")
        tensors = tuple(BuiltTensor(**{**t, **{k: tuple(t[k]) for k in shapes}}) for t in stored["tensors"])
        changed = {"layers": layers, "tensors": tensors, "warnings": tuple(stored["warnings"]), "path": path}
        return cls(**{**stored, **changed})


class PeakMemory:
    """Watches the resident memory of this process, where the system tells it.

    Linux keeps the high-water mark itself; if a build does not reach it, the largest of the looks counts.
    """

    def __init__(self) -> None:
        self._start, self._mark = _resident(), _high_water()
        self._largest = self._start

    def look(self) -> None:
        """Notes the memory now."""
        now = _resident()
        if now is not None and self._largest is not None:
            self._largest = max(self._largest, now)

    def megabytes(self) -> tuple[float | None, float | None]:
        """The largest resident memory and by how much it exceeds that of the start, in 10^6 bytes."""
        self.look()
        if self._start is None or self._largest is None:
            return None, None
        mark = _high_water()
        largest = max(self._largest, mark) if mark is not None and mark != self._mark else self._largest
        return largest / 1e6, (largest - self._start) / 1e6


def _high_water() -> int | None:
    """The most memory that this process ever had, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _resident() -> int | None:
    try:
        import psutil  # comes with Jupyter
    except ImportError:
        return None
    return psutil.Process().memory_info().rss
