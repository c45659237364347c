"""The codec in INT8: what the nodes look like, how close it stays, and that TensorRT takes it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch

from fstrt_helpers.graphs.calibration import collect_calibration
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.graphs.precision import quantise_graphs
from fstrt_helpers.graphs.sensitivity import sweep
from fstrt_helpers.runtimes.onnxruntime import OrtRuntime
from fstrt_helpers.speech import FishSpeech

from .test_tensorrt_parse import build

CODEC = ("codec_decode", "codec_encode")


@pytest.fixture(scope="module")
def int8(exported, tmp_path_factory) -> SimpleNamespace:
    """Both codec graphs of the random checkpoint, calibrated on its babble."""
    speech = FishSpeech.from_checkpoint(exported.checkpoint.folder, backend="torch", precision="float32")
    texts = {"one": "Yes.", "two": "What time is it?", "silence": ""}
    data = collect_calibration(speech, texts=texts, max_seconds=0.5, folder=tmp_path_factory.mktemp("calibration"))
    choices = {"graphs": CODEC, "calibration": data, "folder": exported.root}
    return SimpleNamespace(
        paths=quantise_graphs(exported.checkpoint, **choices),
        data=data,
        choices=choices,
        checkpoint=exported.checkpoint,
    )


@pytest.mark.parametrize("graph", CODEC)
def test_pairs_are_as_tensorrt_takes_them(int8, graph):
    path = int8.paths[graph]
    onnx.checker.check_model(str(path))
    model = onnx.load(path)
    found = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    kinds = Counter(node.op_type for node in model.graph.node)
    made = sum(read_manifest(path).quantised.values())
    constant = [n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in found]
    assert len(constant) == made > 10 and 0 < kinds["QuantizeLinear"] <= made
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert found[node.input[1]].dtype == np.float16
            assert len(node.input) == 2 or (found[node.input[2]].dtype == np.int8 and not found[node.input[2]].any())
    assert not any(array.dtype == np.int32 for name, array in found.items() if "bias" in name)
    scales = [found[n.input[1]] for n in constant]
    assert all(s.ndim == 1 and len(s) > 1 for s in scales if s.size > 1) and any(len(np.unique(s)) > 1 for s in scales)


def test_what_stays_float16(int8):
    model = onnx.load(int8.paths["codec_decode"], load_external_data=False)
    readers = {node.input[1]: node for node in model.graph.node if node.op_type in ("Conv", "MatMul")}
    plain = {name for name in readers if name.startswith("codec.") and name.endswith(".weight")}
    assert "codec.head.conv_post.conv.weight" in plain
    assert sum("residual_fsq" in name for name in plain) == 8
    assert sum("dwconv" in name for name in plain) == 2  # depthwise
    assert len(plain) == 11


def test_it_decodes_nearly_the_same_sound(int8, exported):
    codes = torch.randint(0, 1000, (1, 8, 12), generator=torch.Generator().manual_seed(3))
    ours = exported.ort["codec_decode"].run({"codes": codes})["waveform"]
    theirs = OrtRuntime(int8.paths["codec_decode"], threads=1).open().run({"codes": codes})["waveform"]
    assert (ours - theirs).abs().max() > 0 and torch.cosine_similarity(ours, theirs, dim=-1).item() > 0.97


def test_it_encodes_mostly_the_same_codes(int8, exported):
    mel = {"log_mel": torch.from_numpy(int8.data.log_mels["two"])}
    ours = exported.ort["codec_encode"].run(mel)["codes"]
    theirs = OrtRuntime(int8.paths["codec_encode"], threads=1).open().run(mel)["codes"]
    assert 0.5 < (ours == theirs).float().mean() <= 1


def test_a_kept_stage_has_no_pairs(int8, tmp_path):
    paths = quantise_graphs(
        int8.checkpoint, **int8.choices | {"graphs": ["codec_decode"]}, keep=["codec.head.resblocks"], into=tmp_path
    )
    manifest = read_manifest(paths["codec_decode"])
    assert len(manifest.kept) == 90 and manifest.quantised == {"Conv": 1, "ConvTranspose": 7, "MatMul": 4}
    assert manifest.calibration.startswith("percentile, data ")
    names = [t.name for t in onnx.load(paths["codec_decode"], load_external_data=False).graph.initializer]
    assert "codec.head.resblocks.0.blocks.0.convs1.0.conv.weight" in names


def test_sweep_of_the_codec(int8, exported):
    codes = torch.randint(0, 1000, (1, 8, 6), generator=torch.Generator().manual_seed(3))
    reference = exported.ort["codec_decode"].run({"codes": codes})["waveform"]

    def judge(paths) -> float:
        other = OrtRuntime(paths["codec_decode"], threads=1).open().run({"codes": codes})["waveform"]
        return (other - reference).abs().mean().item()

    choices = {k: v for k, v in int8.choices.items() if k != "graphs"}
    some = ["codec.head.conv_pre", "codec.head.ups.4", "codec.head.resblocks.4"]
    found = sweep(int8.checkpoint, "codec_decode", judge, unit="error", only=some, **choices)
    assert set(found.ranked) == set(some) and all(cost > 0 for cost in found.costs.values())


@pytest.mark.parametrize("graph", CODEC)
def test_it_builds(int8, graph):
    trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    engine = build(trt, int8.paths[graph])
    assert all("scales to fp32" in problem for problem in engine.problems), engine.problems
    made = sum(read_manifest(int8.paths[graph]).quantised.values())
    assert engine.kinds["DEQUANTIZE"] == made + engine.kinds["QUANTIZE"]
