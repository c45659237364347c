"""Engines found again, and those that must not be: of another graph, version, GPU or profile, or tampered with."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fstrt_helpers.driver import Gpu
from fstrt_helpers.engines.cache import CachedEngine, cached_engine, load_engine_bytes
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.engines.recipe import prepare
from fstrt_helpers.engines.store import fields_key, read_sidecar, sidecar_path
from fstrt_helpers.errors import BuildCancelled, EngineError, EngineRefused

from .conftest import SIZES, write_graph


@pytest.fixture
def folder(built, tmp_path) -> Path:
    """A copy of the graph and its engine."""
    source = built.path.parents[2]  # engines/float16/little.engine
    shutil.copytree(source, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def engine(folder) -> Path:
    return folder / "engines" / "float16" / "little.engine"


def get(folder: Path, rtx, *, sizes=SIZES, **options) -> CachedEngine:
    path = folder / "graphs" / "little.onnx"
    return cached_engine(
        path,
        default_profile(path, sizes=sizes),
        **{"precision": "float16", "flavour": rtx, "folder": folder / "engines"} | options,
    )


def change_sidecar(engine: Path, **changes) -> None:
    path = sidecar_path(engine)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_fields(engine: Path, **changes) -> None:
    """Makes an engine one that was built from something else."""
    fields = json.loads(sidecar_path(engine).read_text())["fields"] | changes
    change_sidecar(engine, key=fields_key(fields), fields=fields)


# found again


def test_a_copied_engine_is_kept_and_again(folder, rtx, engine):
    stamp = engine.stat().st_mtime_ns
    for _ in range(2):
        found = get(folder, rtx)
        assert not found.built and found.why == "key and hash agree"
        assert found.path == engine and found.path.stat().st_mtime_ns == stamp
        assert found.report.shares == {"float16": 1.0}
    assert "kept" in repr(found) and "<table>" in found._repr_html_()


def test_the_first_call_builds_and_says_why(rtx, tmp_path):
    write_graph(tmp_path / "graphs")
    first = get(tmp_path, rtx)
    assert first.built and first.why == "there is no engine"
    assert not get(tmp_path, rtx).built
    forced = get(tmp_path, rtx, force=True)
    assert forced.built and forced.why == "asked to build"


# found stale


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sizes": {"B": (1, 2, 8)}}, "another profile: sizes of x"),
        ({"target": "SM86"}, "target is portable, not SM86"),
        ({"workspace": 1 << 28}, "other settings of the builder: workspace"),
        ({"level": 1}, "other settings of the builder: level"),
    ],
)
def test_anything_else_asked_for_is_built(folder, rtx, options, why):
    found = get(folder, rtx, **options)
    assert found.built and found.why == why
    assert not get(folder, rtx, **options).built


@pytest.mark.parametrize(("changed", "file"), [("weights", "little.data"), ("graph", "little.onnx")])
def test_a_changed_graph_is_built(folder, rtx, changed, file):
    write_graph(folder / "graphs", seed=int(changed == "weights"), op="Tanh" if changed == "graph" else "Relu")
    found = get(folder, rtx)
    assert found.built and found.why == f"other content than the engine was built from: {file}"


def test_an_engine_of_another_version_is_refused_and_built(folder, rtx, engine):
    change_fields(engine, version="1.0.0.21")
    with pytest.raises(EngineRefused, match=r"built by tensorrt_rtx 1\.0\.0\.21, this is"):
        load_engine_bytes(engine, flavour=rtx)
    found = get(folder, rtx)
    assert found.built and found.why == f"version is 1.0.0.21, not {rtx.version}"
    assert load_engine_bytes(engine, flavour=rtx)


def test_fields_that_make_no_sense_are_another_engine(folder, rtx, engine):
    change_fields(engine, profile=[], options=None)
    found = get(folder, rtx)
    assert found.built and found.why.startswith("another profile: graph None, not little")


def test_an_engine_of_another_flavour_is_refused(engine, rtx):
    with pytest.raises(EngineRefused, match="built by tensorrt_rtx, this is tensorrt"):
        load_engine_bytes(engine, flavour=replace(rtx, name="tensorrt"))


def test_an_engine_for_another_gpu_is_refused(folder, rtx, engine):
    ampere = replace(rtx, gpus=(Gpu("some card", (8, 6), 8192),))
    ada = replace(rtx, gpus=(Gpu("some card", (8, 9), 8192),))
    turing = replace(rtx, gpus=(Gpu("some card", (7, 5), 8192),))
    with pytest.raises(EngineRefused, match=r"built for compute capability 8\.0 and later, this GPU is SM75"):
        load_engine_bytes(engine, flavour=turing)
    assert load_engine_bytes(engine, flavour=ada)
    path = get(folder, rtx, target="SM86").path
    with pytest.raises(EngineRefused, match="built for SM86, this GPU is SM89"):
        load_engine_bytes(path, flavour=ada)
    assert load_engine_bytes(path, flavour=ampere) == load_engine_bytes(path, flavour=rtx)


def test_a_version_compatible_engine_serves_later_versions_only(engine, rtx):
    change_fields(engine, flavour="tensorrt", version="11.2.0", options={"version_compatible": True})
    for version, fits in (("11.4.0.106", True), ("11.1.0", False), ("12.0.0", False)):
        flavour = replace(rtx, name="tensorrt", version=version)
        if fits:
            assert load_engine_bytes(engine, flavour=flavour)
        else:
            with pytest.raises(EngineRefused, match=r"built by tensorrt 11\.2\.0"):
                load_engine_bytes(engine, flavour=flavour)


def truncate(engine: Path) -> None:
    engine.write_bytes(engine.read_bytes()[:1000])


def flip(engine: Path) -> None:
    content = bytearray(engine.read_bytes())
    content[len(content) // 2] ^= 1
    engine.write_bytes(content)


DAMAGES = {
    "truncated": (truncate, "the engine is truncated: 1,000 bytes"),
    "empty": (lambda engine: engine.write_bytes(b""), "the engine is truncated: 0 bytes"),
    "one bit": (flip, "its hash differs"),
    "longer": (lambda engine: engine.write_bytes(engine.read_bytes() + b"x"), "the engine is too long"),
    "no engine": (Path.unlink, "there is no engine"),
    "no sidecar": (lambda engine: sidecar_path(engine).unlink(), "nothing vouches for the engine"),
    "no json": (lambda engine: sidecar_path(engine).write_text("{"), "the sidecar cannot be read"),
    "a list": (lambda engine: sidecar_path(engine).write_text("[]"), "the sidecar cannot be read"),
    "old schema": (lambda engine: change_sidecar(engine, schema=0), "the sidecar has schema 0"),
    "other key": (lambda engine: change_sidecar(engine, key="0" * 64), "its key is not that of its fields"),
    "no fields": (lambda engine: change_sidecar(engine, fields=[]), "the sidecar"),
    "half a report": (lambda engine: change_sidecar(engine, report={}), "the sidecar cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_engine_is_never_read_for_loading_and_is_built_again(folder, rtx, engine, damage):
    whole = engine.read_bytes()
    how, why = DAMAGES[damage]
    how(engine)
    with pytest.raises(EngineRefused, match=why) as caught:
        load_engine_bytes(engine, flavour=rtx)
    assert "fstrt_helpers.engines.build" in caught.value.fix
    found = get(folder, rtx)
    assert found.built and why in found.why
    assert abs(len(load_engine_bytes(engine, flavour=rtx)) - len(whole)) < 1000


def test_an_engine_is_refused_where_another_key_is_wanted(folder, rtx, engine):
    path = folder / "graphs" / "little.onnx"
    profile = default_profile(path, sizes=SIZES)
    key = prepare(path, profile, precision="float16", flavour=rtx, folder=folder / "engines").key
    assert read_sidecar(engine).key == key
    assert load_engine_bytes(engine, flavour=rtx, key=key)
    with pytest.raises(EngineRefused, match="its key differs"):
        load_engine_bytes(engine, flavour=rtx, key="0" * 64)


def test_a_cancelled_or_failed_build_leaves_the_old_engine(folder, rtx, engine):
    before = engine.read_bytes(), sidecar_path(engine).read_bytes()
    with pytest.raises(BuildCancelled):
        get(folder, rtx, sizes={"B": (1, 4, 8)}, cancel=lambda: True)
    assert (engine.read_bytes(), sidecar_path(engine).read_bytes()) == before
    assert not get(folder, rtx).built


def test_a_folder_that_cannot_be_written_is_named(rtx, tmp_path):
    write_graph(tmp_path / "graphs")
    (tmp_path / "engines").write_text("a file")
    with pytest.raises(EngineError, match="nothing can be written there") as caught:
        get(tmp_path, rtx)
    assert caught.value.where == tmp_path / "engines" / "float16"


def test_what_a_killed_build_left_is_cleared_away(folder, rtx, engine):
    leftover = engine.with_name(f".{engine.name}.12345-1.tmp")
    leftover.write_bytes(b"half an engine")
    get(folder, rtx, force=True)
    assert not leftover.exists()
