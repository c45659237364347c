"""Which engine file serves what. Everything here is read from the sidecars, so it needs neither TensorRT nor a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import DualARConfig
from ..engines.recipe import engine_path
from ..engines.report import BuildReport, BuiltTensor
from ..engines.store import read_sidecar
from ..errors import EngineRefused, ProfileError
from ..graphs.spec import LOGITS, GraphSpec, graph_spec, noise_size
from .base import check_inputs

__all__ = ["CACHED", "EngineFile", "find_engines", "read_engine", "serving"]

CACHED = ("prefill", "frame")
"""Graphs with a KV cache; their engines come in several capacities."""

_TYPES = {"FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16, "INT8": torch.int8,
          "INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool, "UINT8": torch.uint8}  # fmt: skip
_BUILD = "build it: notebook 04, or `python -m fstrt_helpers.engines.build`"


@dataclass(frozen=True)
class EngineFile:
    """An engine file that its sidecar describes.

    Attributes:
        path: The ``.engine`` file.
        config: Shape of the transformers.
        spec: Inputs and outputs of its graph.
        report: What its build found.
        tensors: The engine's own view of inputs and outputs; inputs have the range of the profile.
    """

    path: Path
    config: DualARConfig
    spec: GraphSpec
    report: BuildReport
    tensors: Mapping[str, BuiltTensor]

    @property
    def capacity(self) -> int | None:
        """Columns of the KV cache it is built for; None where there is none."""
        return self.report.capacity

    def dtype(self, name: str) -> torch.dtype:
        """Type of one of the engine's tensors."""
        return _TYPES[self.tensors[name].dtype]

    def check(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """Compares inputs with the graph and with the profile.

        Returns:
            The value of every free dimension.

        Raises:
            RuntimeInputError: A tensor does not fit the graph.
            ProfileError: It fits the graph but not the engine; names the tensor and the profile.
        """
        sizes = check_inputs(self.spec, tensors)
        for name, tensor in tensors.items():
            built, shape = self.tensors[name], tuple(tensor.shape)
            if not all(low <= size <= high for low, size, high in zip(built.min, shape, built.max, strict=True)):
                given, low, high = ("x".join(map(str, sizes)) for sizes in (shape, built.min, built.max))
                raise ProfileError(
                    f"input {name!r} is {given}; the profile of {self.path.name} takes {low} to {high}",
                    where=self.path,
                    fix="split the input, or build the engine with a wider profile: notebook 04",
                )
        return sizes


def read_engine(path: Path, config: DualARConfig, *, fingerprint: str | None = None) -> EngineFile:
    """Reads what the sidecar says of an engine.

    Args:
        path: The ``.engine`` file.
        config: Shape of the transformers.
        fingerprint: Of the checkpoint it must come from; None accepts any.

    Raises:
        EngineRefused: There is no engine, nothing vouches for it, or it is of another checkpoint.
    """
    sidecar = read_sidecar(path)
    report = sidecar.report
    # Files of weights are named after the checkpoint: frame.74381e966755.data, frame.74381e966755-f00baa.data in INT8.
    made_of = {name.split(".")[-2].split("-")[0] for name in sidecar.fields["graph"] if name.endswith(".data")}
    if fingerprint is not None and made_of != {fingerprint[:12]}:
        what = f"the engine was built from another checkpoint ({report.checkpoint or 'unknown'})"
        raise EngineRefused(what, where=path, fix=_BUILD)
    tensors = {t.name: t for t in report.tensors}
    dtype = _TYPES[tensors["k_0"].dtype] if "k_0" in tensors else torch.float32
    spec = graph_spec(report.graph, config, noise=noise_size(config), dtype=dtype, logits=LOGITS[0] in tensors)
    if wrong := {t.name for t in spec.inputs} ^ {t.name for t in report.tensors if t.mode == "input"}:
        what = f"engine and checkpoint differ in the inputs {', '.join(sorted(wrong)[:4])}"
        raise EngineRefused(what, where=path, fix=_BUILD)
    return EngineFile(path, config, spec, report, tensors)


def find_engines(
    folder: Path, checkpoint: str, precision: str, graph: str, config: DualARConfig, *, fingerprint: str | None = None
) -> dict[int | None, EngineFile]:
    """The engines of one graph by capacity, ascending; under None that of a graph without a KV cache.

    Args:
        folder: Root of the engines.
        checkpoint: Name of the checkpoint.
        precision: Of the engines.
        graph: Name of the graph.
        config: Shape of the transformers.
        fingerprint: See :func:`read_engine`.

    Raises:
        EngineRefused: There is none, or one that cannot be used.
    """
    plain = engine_path(folder, checkpoint, precision, graph)
    paths = [plain]
    if graph in CACHED:
        numbers = (path.stem.removeprefix(f"{graph}-") for path in plain.parent.glob(f"{graph}-*.engine"))
        capacities = sorted(int(number) for number in numbers if number.isdecimal())
        paths = [engine_path(folder, checkpoint, precision, graph, capacity) for capacity in capacities]
        if not paths:
            raise EngineRefused(f"there is no engine of {graph} in {precision}", where=plain.parent, fix=_BUILD)
    files = [read_engine(path, config, fingerprint=fingerprint) for path in paths]
    return {file.capacity: file for file in files}


def serving(capacities: Iterable[int], columns: int, where: object = None) -> int:
    """The smallest capacity that holds so many columns.

    Raises:
        ProfileError: None does.
    """
    fitting = [capacity for capacity in capacities if capacity >= columns]
    if not fitting:
        largest = max(capacities, default=0)
        raise ProfileError(
            f"{columns} columns of KV cache are wanted; the largest engine there is has {largest}",
            where=where,
            fix=f"build engines of a larger capacity: python -m fstrt_helpers.engines.build --capacity {columns}",
        )
    return min(fitting)
