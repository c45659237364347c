"""Which form of a graph is taken, what is said when it is missing, and hashes that are not computed twice."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from fstrt_helpers.engines.source import cached_sha256, find_graph, graph_label, open_source
from fstrt_helpers.errors import GraphError, ParameterError


@pytest.mark.parametrize(
    ("precision", "graph", "label"),
    [
        ("float32", "prefill", "float32-decomposed"),
        ("float32", "frame", "float32-decomposed"),
        ("float32", "codec_decode", "float32"),
        ("float16", "prefill", "float16"),
        ("bfloat16", "frame", "bfloat16"),
        ("int8", "frame", "int8"),
    ],
)
def test_labels(precision, graph, label):
    for flavour in ("tensorrt", "tensorrt_rtx"):
        assert graph_label(precision, graph, flavour) == label


def test_no_label_for_int4():
    with pytest.raises(ParameterError, match="no int4 form"):
        graph_label("int4", "frame", "tensorrt_rtx")


def test_a_missing_graph_names_the_command_that_makes_it(tmp_path):
    import shlex

    from fstrt_helpers.graphs import export

    with pytest.raises(GraphError, match="prefill was not exported as float32-decomposed") as caught:
        find_graph("tiny", "prefill", "float32", "tensorrt_rtx", tmp_path)
    command = caught.value.fix
    assert command == (
        "python -m fstrt_helpers.graphs.export tiny --precision float32 --attention decomposed --graphs prefill frame"
    )
    with pytest.raises(SystemExit) as status:  # its own parser takes the command, up to a checkpoint that is not there
        export.main([*shlex.split(command)[3:], "--help"])
    assert status.value.code == 0
    with pytest.raises(GraphError) as caught:
        find_graph("tiny", "codec_encode", "float16", "tensorrt_rtx", tmp_path)
    assert caught.value.fix.endswith("tiny --precision float16 --graphs codec_encode")


def test_a_graph_that_is_there_is_found(tmp_path):
    path = tmp_path / "tiny" / "float16" / "frame.onnx"
    path.parent.mkdir(parents=True)
    path.touch()
    assert find_graph("tiny", "frame", "float16", "tensorrt_rtx", tmp_path) == path


def test_the_source_hashes_graph_and_weights(little):
    source = open_source(little)
    assert (source.graph, source.checkpoint, list(source.data)) == ("little", "", ["little.data"])
    assert source.hashes() == {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (little, little.with_suffix(".data"))
    }


def test_a_changed_manifest_is_noticed(little):
    little.with_suffix(".onnx.json").write_text("{}")
    with pytest.raises(GraphError, match="the manifest cannot be read"):
        open_source(little)


def old(path, content: bytes) -> None:
    """Writes a file that was last changed a minute ago."""
    path.write_bytes(content)
    minute_ago = time.time_ns() - 60_000_000_000
    os.utime(path, ns=(minute_ago, minute_ago))


def test_a_hash_is_kept_until_the_file_changes(tmp_path):
    path, note = tmp_path / "weights.data", tmp_path / ".weights.data.sha256"
    old(path, b"one")
    assert cached_sha256(path) == hashlib.sha256(b"one").hexdigest()
    assert note.is_file()
    note.write_text(note.read_text().replace(cached_sha256(path)[:8], "f" * 8))
    assert cached_sha256(path).startswith("f" * 8)  # the note is believed: the file is not read again
    old(path, b"longer")
    assert cached_sha256(path) == hashlib.sha256(b"longer").hexdigest()
    for broken in ("", "{", "[]", '{"state": 1}', '{"sha256": 3}'):
        note.write_text(broken)
        assert cached_sha256(path) == hashlib.sha256(b"longer").hexdigest()


def test_a_file_that_has_just_changed_is_not_noted(tmp_path):
    """A second change within one tick of the clock could not be told from the first."""
    path = tmp_path / "weights.data"
    path.write_bytes(b"one")
    cached_sha256(path)
    assert [p.name for p in tmp_path.iterdir()] == ["weights.data"]
