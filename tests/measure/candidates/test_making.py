"""Graphs and engines are made when they are missing, once, and by a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fstrt_helpers.checkpoint import Checkpoint, find_checkpoint
from fstrt_helpers.engines import recipe
from fstrt_helpers.engines.store import read_sidecar
from fstrt_helpers.errors import EngineError, GraphError
from fstrt_helpers.graphs import export
from fstrt_helpers.measure.candidates.making import graph_file, make_missing
from fstrt_helpers.measure.candidates.names import Contender
from fstrt_helpers.measure.candidates.opening import OurModel, open_runtimes

from ...checkpoints import write_random_checkpoint
from ...runtimes.trt_graphs import CONFIG, write_small_graphs

TORCH, ORT = Contender("torch", "float32", "cpu"), Contender("ort-cpu", "float32", "cpu")
RTX = Contender("tensorrt-rtx", "float16", "cuda")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return find_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("made") / "random"))


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(export, "GRAPH_FOLDER", tmp_path / "graphs")
    monkeypatch.setattr(recipe, "ENGINE_FOLDER", tmp_path / "engines")
    return tmp_path


@pytest.mark.slow
def test_missing_graphs_are_exported_once(checkpoint: Checkpoint, outputs: Path) -> None:
    assert not make_missing(TORCH, checkpoint, ("prefill",))
    assert make_missing(ORT, checkpoint, ("prefill",))
    assert not make_missing(ORT, checkpoint, ("prefill",))
    assert graph_file(ORT, checkpoint, "prefill") == outputs / "graphs" / "random" / "float32" / "prefill.onnx"
    assert open_runtimes(ORT, checkpoint, ("prefill",))["prefill"].describe()["backend"] == "onnxruntime"
    with pytest.raises(GraphError, match=r"frame\.onnx is missing"):
        OurModel(ORT, checkpoint)


def test_missing_engines_are_built_once_without_a_gpu(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("tensorrt_rtx")
    shape = dict(dim=CONFIG.dim, n_layer=CONFIG.n_layer, max_seq_len=CONFIG.max_seq_len)
    checkpoint = find_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("engines") / "small", **shape))
    write_small_graphs(outputs / "graphs", "small", checkpoint.fingerprint)
    assert make_missing(RTX, checkpoint, ("codec_decode",))
    built = sorted((outputs / "engines" / "small" / "float16").glob("*.engine"))
    assert [path.stem for path in built] == ["codec_decode", "codec_encode", "frame-128", "prefill-128"]
    assert all(read_sidecar(path).report.flavour == "tensorrt_rtx" for path in built)
    before = [path.stat().st_mtime_ns for path in built]
    assert not make_missing(RTX, checkpoint, ("codec_decode",))
    assert [path.stat().st_mtime_ns for path in built] == before


def test_what_cannot_be_made_says_why(checkpoint: Checkpoint, outputs: Path) -> None:
    with pytest.raises(EngineError, match=r"could not be built: there is no int4 form of a graph for tensorrt_rtx\n"):
        make_missing(Contender("tensorrt-rtx", "int4", "cuda"), checkpoint, ("frame",))
