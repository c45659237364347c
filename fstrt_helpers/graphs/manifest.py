"""What an exported graph is: a JSON file beside it, written last and checked before the graph is opened."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import GraphError

__all__ = ["GraphManifest", "file_sha256", "graph_path", "read_manifest"]

SCHEMA = 1
_FIX = "make it again: notebook 02, or `python -m fstrt_helpers.graphs.export`; INT8 and INT4: `graphs.precision`"


@dataclass(frozen=True)
class GraphManifest:
    """Facts about one exported graph.

    Attributes:
        graph: ``prefill``, ``frame``, ``codec_decode`` or ``codec_encode``.
        checkpoint: Name of the checkpoint.
        fingerprint: Hash of the checkpoint's weights and configuration.
        precision: One of :data:`fstrt_helpers.graphs.spec.PRECISIONS`.
        attention: ``fused`` (one Attention operator) or ``decomposed``.
        opset: ONNX opset.
        onnx_sha256: Hash of the ``.onnx`` file.
        data_bytes: Size of every external data file the graph reads, by file name.
        inputs: Name, type and shape of every input.
        outputs: Names of the outputs.
        config: The transformers' configuration.
        versions: Libraries that made it.
        seconds: Wall-clock time of the export.
        form: How a quantised graph spells it: ``qdq`` or ``nbits``; empty for one that is not quantised.
        activations: Type of a quantised graph's keys, values and other activations; empty means `precision`.
        quantised: How many weights were quantised, by the operator that reads them.
        kept: Weights that could have been quantised and were not.
        block_size: Weights per scale in form ``nbits``.
        calibration: Method and data that activation ranges come from.
    """

    graph: str
    checkpoint: str
    fingerprint: str
    precision: str
    attention: str
    opset: int
    onnx_sha256: str
    data_bytes: dict[str, int]
    inputs: list[str]
    outputs: list[str]
    config: dict[str, Any]
    versions: dict[str, str]
    seconds: float
    schema: int = SCHEMA
    form: str = ""
    activations: str = ""
    quantised: dict[str, int] = dataclasses.field(default_factory=dict)
    kept: list[str] = dataclasses.field(default_factory=list)
    block_size: int = 0
    calibration: str = ""

    @property
    def activation_type(self) -> str:
        """Type of keys, values and other activations: ``float32``, ``float16`` or ``bfloat16``."""
        return self.activations or self.precision

    def write(self, path: Path) -> None:
        """Writes the JSON in one step."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, path)


def graph_path(root: Path, checkpoint: str, precision: str, graph: str) -> Path:
    """Where a graph lies: ``<root>/<checkpoint>/<precision>/<graph>.onnx``."""
    return root / checkpoint / precision / f"{graph}.onnx"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_manifest(path: Path, *, fingerprint: str | None = None) -> GraphManifest:
    """Reads the manifest of ``<graph>.onnx`` and compares it with the files.

    Args:
        path: The ``.onnx`` file.
        fingerprint: Of the checkpoint the graph must come from; None accepts any.

    Raises:
        GraphError: The graph, its manifest or its data is missing, changed or cut short, or it comes from another
            checkpoint.
    """
    listing = path.with_suffix(".onnx.json")
    for file in (path, listing):
        if not file.is_file():
            raise GraphError(f"{file.name} is missing", where=path.parent, fix=_FIX)
    try:
        manifest = GraphManifest(**json.loads(listing.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise GraphError(f"the manifest cannot be read: {error}", where=listing, fix=_FIX) from error
    if manifest.schema != SCHEMA:
        raise GraphError(f"the manifest has schema {manifest.schema}, not {SCHEMA}", where=listing, fix=_FIX)
    if fingerprint is not None and manifest.fingerprint != fingerprint:
        raise GraphError(
            f"the graph was exported from another checkpoint ({manifest.checkpoint})", where=path, fix=_FIX
        )
    for name, size in manifest.data_bytes.items():
        data = path.parent / name
        if not data.is_file():
            raise GraphError(f"the graph's data file {name} is missing", where=path.parent, fix=_FIX)
        if data.stat().st_size != size:
            raise GraphError(f"{name} has {data.stat().st_size} bytes, not {size}", where=path.parent, fix=_FIX)
    if file_sha256(path) != manifest.onnx_sha256:
        raise GraphError("the graph differs from the one its manifest describes", where=path, fix=_FIX)
    return manifest
