"""Ranges of the codec's activations, by ONNX Runtime's calibrators: what int8 has to cover.

An int8 tensor has one scale, so its range decides how coarse every value becomes. Three ways to choose it: the least
and the greatest value seen; the range that loses the least information (entropy); all but one value in 100,000
(percentile).
https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html#static-quantization
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GraphError, ParameterError
from .calibration import CalibrationSet
from .manifest import file_sha256
from .weights import WeightGraph

__all__ = ["METHODS", "Ranges", "measure_ranges"]

METHODS = ("minmax", "entropy", "percentile")
_CLASSES = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
_KINDS = ("Conv", "ConvTranspose", "MatMul")


@dataclass(frozen=True)
class Ranges:
    """What enters the products and convolutions of one graph.

    Attributes:
        graph: ``codec_decode`` or ``codec_encode``.
        method: One of :data:`METHODS`.
        limits: Least and greatest value to cover, by the label of the weight that the tensor meets.
        histograms: Counts [n] and edges [n + 1] of all values seen, by the same labels; empty for ``minmax``.
        key: Hash over graph, data and method.
    """

    graph: str
    method: str
    limits: Mapping[str, tuple[float, float]]
    histograms: Mapping[str, tuple[np.ndarray, np.ndarray]]
    key: str

    def scale(self, label: str) -> float:
        """Width of one int8 step for that tensor."""
        low, high = self.limits[label]
        return max(abs(low), abs(high)) / 127

    def rows(self) -> list[dict[str, Any]]:
        """One row per tensor for a table, in the order of the graph."""
        return [
            {"reads": label, "from": round(low, 4), "to": round(high, 4), "step": float(f"{self.scale(label):.3g}")}
            for label, (low, high) in self.limits.items()
        ]


def measure_ranges(source: Path, data: CalibrationSet, method: str, *, graph: str | None = None) -> Ranges:
    """Runs the calibration data through a float32 graph and keeps the ranges, or reads those of an earlier call.

    Args:
        source: The exported float32 graph.
        data: From :func:`fstrt_helpers.graphs.calibration.collect_calibration`; the ranges are cached beside it.
        method: One of :data:`METHODS`.
        graph: Name of the graph; the file's by default.

    Raises:
        ParameterError: No such method, or the graph has no calibration data.
        GraphError: The data makes values that are no numbers.
    """
    if method not in METHODS:
        raise ParameterError(f"there is no calibration method {method!r}", fix=f"use one of: {', '.join(METHODS)}")
    graph = graph or source.stem
    facts = [file_sha256(source), data.key, method, 1]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    cache = data.folder / f"ranges-{graph}-{method}.npz"
    if (stored := _load(cache, key)) is not None:
        return Ranges(graph, method, *stored, key)
    weights = WeightGraph(source)
    labels = {w.nodes[0]: w.label for w in weights.weights() if w.kind in _KINDS}
    reads = {labels[node.name]: node.input[0] for node in weights.model.graph.node if node.name in labels}
    limits, histograms = _calibrate(source, data.inputs(graph), method, reads)
    if not all(np.isfinite(limit).all() for limit in limits.values()):
        raise GraphError("calibration met values that are no numbers", where=source, fix="export the graph again")
    _store(cache, key, limits, histograms)
    return Ranges(graph, method, limits, histograms, key)


def _calibrate(
    source: Path, pieces: list[dict[str, np.ndarray]], method: str, reads: Mapping[str, str]
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[np.ndarray, np.ndarray]]]:
    import onnx
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    class Reader:
        """Hands one piece to the calibrator, which asks until it gets None."""

        def __init__(self, piece: dict[str, np.ndarray]) -> None:
            self._pieces = iter([piece])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._pieces, None)

    with tempfile.TemporaryDirectory(prefix="calibrate-") as scratch, contextlib.redirect_stdout(io.StringIO()):
        whole = Path(scratch) / "model.onnx"  # the calibrator writes beside its model
        onnx.save(onnx.load(source), whole)
        calibrator = create_calibrator(
            whole,
            list(_KINDS),
            augmented_model_path=str(Path(scratch) / "augmented.onnx"),
            calibrate_method=getattr(CalibrationMethod, _CLASSES[method]),
            extra_options={"symmetric": True},
        )
        for piece in pieces:  # one at a time: it keeps all activations until it has counted them
            calibrator.collect_data(Reader(piece))
            calibrator.clear_collected_data()
        found = calibrator.compute_data()
    limits: dict[str, tuple[float, float]] = {}
    histograms: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for label, tensor in reads.items():
        if tensor not in found:
            raise GraphError(f"calibration has no range for {tensor}, which {label} reads", where=source)
        low, high = (float(np.asarray(v).reshape(-1)[0]) for v in found[tensor].range_value)
        limits[label] = low, high
        if collector := getattr(calibrator, "collector", None):
            counts, edges = collector.get_histogram_dict()[tensor][:2]
            histograms[label] = np.asarray(counts), np.asarray(edges, np.float32)
    return limits, histograms


def _store(cache: Path, key: str, limits: Mapping[str, tuple[float, float]], histograms: Mapping[str, Any]) -> None:
    arrays = {"key": np.array(key), "labels": np.array(list(limits)), "limits": np.array(list(limits.values()))}
    for number, label in enumerate(limits):
        if label in histograms:
            arrays[f"counts{number}"], arrays[f"edges{number}"] = histograms[label]
    handle, draft = tempfile.mkstemp(prefix=f".{cache.stem}-", suffix=".npz", dir=cache.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            np.savez(stream, **arrays)
        os.replace(draft, cache)
    finally:
        Path(draft).unlink(missing_ok=True)


def _load(cache: Path, key: str) -> tuple[dict[str, tuple[float, float]], dict[str, Any]] | None:
    """Ranges and histograms of an earlier call, or None if there are none for this graph, data and method."""
    try:
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            labels = [str(label) for label in stored["labels"]]
            limits = {label: (float(a), float(b)) for label, (a, b) in zip(labels, stored["limits"], strict=True)}
            counted = {i: label for i, label in enumerate(labels) if f"counts{i}" in stored}
            return limits, {label: (stored[f"counts{i}"], stored[f"edges{i}"]) for i, label in counted.items()}
    except (OSError, ValueError, KeyError, EOFError):
        return None  # measured again, and written again
