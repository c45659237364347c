"""Exported graphs against the modules they came from, at lengths the export never saw."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import onnx
import pytest
import torch

from fstrt_helpers.errors import GraphError, ParameterError
from fstrt_helpers.graphs.export import export_graphs
from fstrt_helpers.graphs.manifest import read_manifest
from fstrt_helpers.model.dual_ar import causal_mask
from fstrt_helpers.runtimes.onnxruntime import OrtRuntime

from .conftest import cache


def frame_inputs(config, noise: int, starts: list[int], capacity: int, seed: int) -> dict[str, torch.Tensor]:
    """A column in mid-speech for each row, over a cache of random keys and values."""
    generator = torch.Generator().manual_seed(seed)
    rows, start = len(starts), torch.tensor(starts)
    codes = torch.randint(0, 1000, (rows, 8, 1), generator=generator)
    kv = {k: torch.randn(v.shape, generator=generator) for k, v in cache(config, rows, capacity).items()}
    return {
        "column": torch.cat([codes[:, :1] + 268, codes], dim=1),
        "start": start,
        "mask": causal_mask(start, 1, capacity),
        "noise": torch.empty(rows, noise).exponential_(1, generator=generator),
        "window": torch.randint(0, 1000, (rows, 9, 16), generator=generator),
        "temperature": torch.full((rows, 1), 0.7),
        "top_p": torch.full((rows, 1), 0.8),
        "penalty": torch.full((rows, 1), 1.2),
    } | kv


def noise_of(runtime) -> int:
    return next(t.shape[1] for t in runtime.spec.inputs if t.name == "noise")


@pytest.mark.parametrize("columns", [1, 2, 7, 33, 64])
@pytest.mark.parametrize("capacity", [128, 512, 2048])
def test_prefill(exported, columns, capacity):
    config = exported.checkpoint.config
    start = torch.zeros(1, dtype=torch.int64)
    prompt = torch.randint(0, 256, (1, 9, columns), generator=torch.Generator().manual_seed(columns))
    prompt[:, 0, columns // 2 :] += 268
    inputs = {"columns": prompt, "start": start, "mask": causal_mask(start, columns, capacity)}
    ours = exported.torch["prefill"].run({**inputs, **cache(config, 1, capacity)})
    theirs = exported.ort["prefill"].run({**inputs, **cache(config, 1, capacity)})
    for name, tensor in ours.items():
        assert tensor[:, :, :columns].abs().max() > 1e-3
        assert (tensor - theirs[name]).abs().max() <= 1e-4


@pytest.mark.parametrize("starts", [[0], [63], [5, 40, 100], [3, 9, 1, 77, 20, 50, 0, 126]])
@pytest.mark.parametrize("capacity", [128, 512, 2048])
def test_frame_and_its_rows(exported, starts, capacity):
    config, ort = exported.checkpoint.config, exported.ort["frame"]
    inputs = frame_inputs(config, noise_of(ort), starts, capacity, seed=len(starts))
    copies = [{k: v.clone() for k, v in inputs.items()} for _ in range(2)]
    ours, theirs = exported.torch["frame"].run(copies[0]), ort.run(copies[1])
    assert torch.equal(ours["next"], theirs["next"])
    for name, tensor in ours.items():
        assert (tensor.float() - theirs[name].float()).abs().max() <= 1e-4
    for row in range(len(starts)):
        alone = ort.run({k: v[row : row + 1].clone() for k, v in inputs.items()})
        assert torch.equal(alone["next"][0], theirs["next"][row])


def test_slots_beyond_the_prefix_are_never_read(exported):
    config, ort = exported.checkpoint.config, exported.ort["frame"]
    inputs = frame_inputs(config, noise_of(ort), [20], 128, seed=9)
    other = {k: v.clone() for k, v in inputs.items()}
    for name in cache(config, 1, 1):
        other[name][:, :, 21:] = 1e4
    assert torch.equal(ort.run(inputs)["next"], ort.run(other)["next"])


@pytest.mark.parametrize("frames", [1, 3, 20, 50, 200])
@pytest.mark.parametrize("rows", [1, 3])
def test_codec_decode(exported, frames, rows):
    codes = torch.randint(0, 1000, (rows, 8, frames), generator=torch.Generator().manual_seed(frames))
    ours = exported.torch["codec_decode"].run({"codes": codes})["waveform"]
    theirs = exported.ort["codec_decode"].run({"codes": codes})["waveform"]
    assert ours.std() > 1e-4
    assert (ours - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("frames", [1, 3, 20, 50, 200])
def test_codec_encode(exported, frames):
    mel = torch.randn(1, 160, 4 * frames, generator=torch.Generator().manual_seed(frames))
    ours = exported.torch["codec_encode"].run({"log_mel": mel})["codes"]
    assert torch.equal(exported.ort["codec_encode"].run({"log_mel": mel})["codes"], ours)


def test_300_frames_are_the_same_tokens(exported):
    config = exported.checkpoint.config
    tokens = {}
    for name in ("torch", "ort"):
        frame = getattr(exported, name)["frame"]
        state = frame_inputs(config, noise_of(frame), [0], 512, seed=1) | cache(config, 1, 512)
        generator = torch.Generator().manual_seed(2)
        said = []
        for step in range(300):
            start = torch.tensor([step])
            noise = torch.empty(1, noise_of(frame)).exponential_(1, generator=generator)
            state |= {"start": start, "mask": causal_mask(start, 1, 512), "noise": noise}
            column = frame.run(state)["next"][:, :, None]
            state["window"] = torch.cat([state["window"][:, :, 1:], column], dim=2)
            state["column"] = column
            said.append(column[0, :, 0])
        tokens[name] = torch.stack(said)
    assert torch.equal(tokens["torch"], tokens["ort"])
    assert len(tokens["ort"].unique()) > 300


def test_cache_is_updated_in_place(exported, capfd):
    import onnxruntime

    path = exported.paths["frame"]
    runtime = OrtRuntime(path).open()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2  # TensorScatter warns whenever it has to copy
    runtime._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = frame_inputs(exported.checkpoint.config, noise_of(runtime), [20], 128, seed=9)
    before = {k: v.clone() for k, v in inputs.items() if k[:2] in ("k_", "v_")}
    out = runtime.run(inputs)
    assert "in-place optimization not activated" not in capfd.readouterr().err
    for name, tensor in before.items():
        assert out[name].data_ptr() == inputs[name].data_ptr()
        changed = (inputs[name] != tensor).any(dim=(0, 1, 3)).nonzero().flatten()
        assert changed.tolist() == [20]


def test_free_dimensions_and_operators(exported):
    model = onnx.load(exported.paths["frame"], load_external_data=False)
    onnx.checker.check_model(str(exported.paths["frame"]))
    shapes = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    config = exported.checkpoint.config
    assert shapes["column"] == ["B", 9, 1]
    assert shapes["mask"] == ["B", 1, 1, "C"]
    assert shapes["k_0"] == ["B", config.n_local_heads, "C", config.head_dim]
    kinds = [node.op_type for node in model.graph.node]
    layers = config.n_layer + 7 * config.n_fast_layer
    assert kinds.count("Attention") == kinds.count("RotaryEmbedding") == layers
    assert kinds.count("TensorScatter") == 2 * config.n_layer
    assert {o.version for o in model.opset_import if o.domain == ""} == {24}
    assert not any("stack_trace" in p.key for node in model.graph.node for p in node.metadata_props)


def test_rope_table_in_the_graph_is_the_bfloat16_rounded_one(exported):
    model = onnx.load(exported.paths["frame"])
    half = exported.checkpoint.config.head_dim // 2
    longest = exported.checkpoint.config.max_seq_len
    tables = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer if list(t.dims) == [longest, half]]
    assert len(tables) == 2
    for table in tables:
        assert np.array_equal(torch.from_numpy(table.copy()).bfloat16().float().numpy(), table)
        assert len(np.unique(table)) > 100


def test_prefill_and_frame_share_one_copy_of_the_slow_layers(exported):
    sizes = {g: read_manifest(p).data_bytes for g, p in exported.paths.items()}
    (prefill_file,) = sizes["prefill"]
    assert prefill_file in sizes["frame"]
    assert any(name.startswith("frame.") for name in sizes["frame"])


def test_graphs_open_from_another_working_directory(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(exported.paths["codec_decode"], tmp_path)
    codes = torch.zeros(1, 8, 2, dtype=torch.int64)
    from pathlib import Path

    assert OrtRuntime(Path(relative)).open().run({"codes": codes})["waveform"].shape == (1, 1, 4096)


@pytest.fixture
def copy(exported, tmp_path):
    folder = tmp_path / "float32"
    shutil.copytree(exported.paths["frame"].parent, folder)
    return folder


def test_missing_and_truncated_files(copy):
    data = next(copy.glob("codec_decode.*.data"))
    data.write_bytes(data.read_bytes()[:-10])
    with pytest.raises(GraphError, match=r"has \d+ bytes, not"):
        OrtRuntime(copy / "codec_decode.onnx")
    data.unlink()
    with pytest.raises(GraphError, match=r"data file .* is missing"):
        OrtRuntime(copy / "codec_decode.onnx")
    (copy / "frame.onnx").unlink()
    with pytest.raises(GraphError, match=r"frame\.onnx is missing"):
        OrtRuntime(copy / "frame.onnx")
    (copy / "prefill.onnx.json").write_text("{")
    with pytest.raises(GraphError, match="manifest cannot be read"):
        OrtRuntime(copy / "prefill.onnx")


def test_graph_of_another_checkpoint_or_changed_by_hand(copy):
    with pytest.raises(GraphError, match="another checkpoint"):
        OrtRuntime(copy / "frame.onnx", fingerprint="0" * 64)
    path = copy / "codec_encode.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(GraphError, match="differs"):
        OrtRuntime(path)
    listing = copy / "prefill.onnx.json"
    listing.write_text(json.dumps(json.loads(listing.read_text()) | {"schema": 99}))
    with pytest.raises(GraphError, match="schema 99"):
        OrtRuntime(copy / "prefill.onnx")


@pytest.mark.parametrize("choice", [{"precision": "int3"}, {"graphs": ["vocoder"]}, {"attention": "flash"}], ids=str)
def test_unknown_choices(exported, choice):
    with pytest.raises(ParameterError):
        export_graphs(exported.checkpoint, folder=exported.root, **choice)


def test_decomposed_attention_has_no_attention_operator_and_the_same_result(exported, tmp_path):
    paths = export_graphs(exported.checkpoint, folder=tmp_path, graphs=["prefill"], attention="decomposed")
    kinds = {n.op_type for n in onnx.load(paths["prefill"], load_external_data=False).graph.node}
    assert "Attention" not in kinds and "Softmax" in kinds
    start = torch.zeros(1, dtype=torch.int64)
    prompt = torch.randint(0, 256, (1, 9, 12), generator=torch.Generator().manual_seed(0))
    inputs = {"columns": prompt, "start": start, "mask": causal_mask(start, 12, 64)}
    config = exported.checkpoint.config
    fused = exported.ort["prefill"].run({**inputs, **cache(config, 1, 64)})
    plain = OrtRuntime(paths["prefill"]).open().run({**inputs, **cache(config, 1, 64)})
    assert all((fused[k] - plain[k]).abs().max() <= 1e-4 for k in fused)
