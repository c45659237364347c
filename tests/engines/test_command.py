"""The command line: a row per engine, and errors that name the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from fstrt_helpers.engines.command import main

from .conftest import save, write_graph

HALF = TensorProto.FLOAT16


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """Two small graphs in the place, and under the names, of two of ours."""
    folder = tmp_path / "graphs" / "tiny" / "float16"
    write_graph(folder, "codec_decode")
    nodes = [
        helper.make_node("TensorScatter", ["k", "new", "start"], ["k_out"], name="write", axis=2),
        helper.make_node("MatMul", ["new", "turned"], ["y"], name="product"),
        helper.make_node("Transpose", ["new"], ["turned"], name="turn", perm=[0, 1, 3, 2]),
    ]
    nodes = [nodes[0], nodes[2], nodes[1]]
    inputs = {"k": (HALF, ["B", 2, "C", 16]), "new": (HALF, ["B", 2, 1, 16]), "start": (TensorProto.INT64, ["B"])}
    save(folder, "frame", nodes, inputs, {"k_out": (HALF, ["B", 2, "C", 16]), "y": (HALF, ["B", 2, 1, 1])}, [])
    return tmp_path / "graphs"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as status:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return status.value.code, out, err


def test_builds_once_per_capacity_and_finds_it_again(graphs, rtx, tmp_path, capsys):
    arguments = ("tiny", "--graphs", "codec_decode", "frame", "--capacity", 32, 64, "--flavour", rtx.name)
    arguments += ("--graph-folder", graphs, "--folder", tmp_path / "engines")
    for now in ("built", "kept"):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        header, _, *rows = out.splitlines()
        assert header.split()[:3] == ["graph", "capacity", "precision"]
        assert [row.split()[:2] for row in rows] == [["codec_decode", "float16"], ["frame", "32"], ["frame", "64"]]
        assert all(f" {now} " in row and "float16 100%" in row for row in rows)
    made = sorted(p.name for p in (tmp_path / "engines").rglob("*.engine"))
    assert made == ["codec_decode.engine", "frame-32.engine", "frame-64.engine"]


def test_a_missing_graph_names_the_export_command_and_the_others_are_built(graphs, rtx, tmp_path, capsys):
    arguments = ("tiny", "--graphs", "prefill", "codec_decode", "--flavour", rtx.name)
    code, out, err = run(capsys, *arguments, "--graph-folder", graphs, "--folder", tmp_path / "engines")
    assert code == 1
    assert "prefill was not exported as float16" in err
    assert "python -m fstrt_helpers.graphs.export tiny --precision float16 --graphs prefill frame" in err
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["codec_decode"]


def test_choices_are_checked(capsys):
    code, _, err = run(capsys, "tiny", "--precision", "int4")
    assert code == 2 and "invalid choice: 'int4'" in err
