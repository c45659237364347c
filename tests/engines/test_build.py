"""Real builds of small graphs by TensorRT-RTX, and of what it refuses."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.profile import Profile, default_profile
from fstrt_helpers.engines.report import BuildReport
from fstrt_helpers.engines.store import load_engine_bytes, read_sidecar
from fstrt_helpers.errors import BuildCancelled, EngineError, GraphError, ParameterError, ProfileError

from ..graphs.faults import attention
from .conftest import SIZES, WIDTH, save, write_graph

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def build(path: Path, rtx, folder: Path, *, sizes=SIZES, precision: str = "float16", **options) -> BuildReport:
    return build_engine(
        path, default_profile(path, sizes=sizes), precision=precision, flavour=rtx, folder=folder, **options
    )


def files(folder: Path) -> list[str]:
    """Everything under a folder but locks and noted hashes."""
    return sorted(p.name for p in folder.rglob("*") if p.is_file() and p.suffix not in (".lock", ".sha256"))


# what comes out


def test_the_report_says_what_was_built(built, rtx):
    assert (built.graph, built.precision, built.flavour, built.target) == ("little", "float16", rtx.name, "portable")
    assert built.version == rtx.version
    assert built.bytes == built.path.stat().st_size > 2 * WIDTH * WIDTH
    assert built.graph_bytes > 2 * WIDTH * WIDTH
    assert built.shares == {"float16": 1.0}
    products = [s for s in built.layers if s.heavy]
    assert [(s.layer, s.count, s.names) for s in products] == [("MATRIX_MULTIPLY", 1, ("product",))]
    x, y = built.tensors
    assert (x.name, x.mode, x.dtype, x.shape) == ("x", "input", "HALF", (-1, WIDTH))
    assert (x.min, x.opt, x.max) == ((1, WIDTH), (1, WIDTH), (8, WIDTH))  # read back from the profile
    assert (y.name, y.mode, y.min) == ("y", "output", ())
    assert 0 < built.parse_seconds < built.seconds
    assert built.peak_host_mb is None or built.peak_host_mb > 50
    assert built.warnings == ()


def test_the_report_shows_itself_and_survives_json(built):
    assert "float16 100%" in repr(built) and "MATRIX_MULTIPLY" in str(built) and "8x64" in str(built)
    html = built._repr_html_()
    assert html.count("<table>") == 3 and "profile as built" in html
    again = BuildReport.from_dict(json.loads(json.dumps(built.to_dict())), built.path)
    assert again == built


def test_the_engine_lies_whole_beside_its_sidecar_and_nothing_else(built):
    assert files(built.path.parent) == ["little.engine", "little.engine.json"]
    sidecar = read_sidecar(built.path)
    assert sidecar.report == built and sidecar.bytes == built.bytes
    assert sidecar.fields["flavour"] == "tensorrt_rtx" and set(sidecar.fields["graph"]) == {
        "little.onnx",
        "little.data",
    }
    assert len(load_engine_bytes(built.path, flavour=built.flavour)) == built.bytes


def test_weights_are_found_from_another_working_directory_and_their_folder_stays_as_it_was(
    little, rtx, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    before = files(little.parent)
    report = build(Path(os.path.relpath(little)), rtx, tmp_path / "engines")
    assert report.path.is_file() and report.path.is_absolute()
    assert files(elsewhere) == []
    assert files(little.parent) == before


def test_options_reach_the_builder(little, rtx, tmp_path):
    report = build(little, rtx, tmp_path, target=["SM86"], workspace=1 << 28, level=0)
    assert report.target == "SM86"
    capturable = hasattr(rtx.module.BuilderFlag, "REQUIRE_USER_ALLOCATION")  # as a CUDA graph
    asked = {"workspace": 1 << 28, "level": 0, "version_compatible": False, "user_allocation": capturable}
    assert report.options == asked


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ({"level": 6}, "optimisation level is 6"),
        ({"workspace": 0}, "the workspace is 0"),
        ({"workspace": 1.5}, "the workspace is 1.5"),
        ({"target": "SM10"}, "has no target SM10"),
        ({"precision": "int4"}, "there is no precision 'int4'"),
        ({"version_compatible": True}, "builds no engines for later versions"),
        ({"timing_cache": Path("timing.cache")}, "has no timing cache"),
    ],
)
def test_settings_that_cannot_be(little, rtx, tmp_path, option, complaint):
    with pytest.raises(ParameterError, match=complaint):
        build(little, rtx, tmp_path / "engines", **option)
    assert not (tmp_path / "engines").exists()


# the profile


def test_a_profile_that_does_not_fit_never_reaches_the_builder(little, rtx, tmp_path):
    seen = []
    with pytest.raises(ProfileError, match="is always 64"):
        build_engine(
            little,
            Profile("little", {"x": ((1, 32), (1, 32), (8, 32))}),
            precision="float16",
            flavour=rtx,
            folder=tmp_path / "engines",
            progress=lambda *event: seen.append(event),
        )
    assert seen == [] and not (tmp_path / "engines").exists()


def test_the_capacity_is_fixed_and_no_second_file_appears(rtx, tmp_path):
    path = save(
        tmp_path / "graphs",
        "frame",
        [helper.make_node("TensorScatter", ["k", "new", "start"], ["k_out"], name="write", axis=2)],
        {"k": (HALF, ["B", 2, "C", 16]), "new": (HALF, ["B", 2, 1, 16]), "start": (TensorProto.INT64, ["B"])},
        {"k_out": (HALF, ["B", 2, "C", 16])},
        [],
    )
    report = build_engine(
        path, default_profile(path, capacity=32), precision="float16", flavour=rtx, folder=tmp_path / "engines"
    )
    assert report.path.name == "frame-32.engine" and report.capacity == 32
    assert {t.name: t.shape for t in report.tensors}["k_out"] == (-1, 2, 32, 16)
    assert files(path.parent) == ["frame.onnx"]
    free = onnx.load(path).graph.input[0].type.tensor_type.shape.dim[2]
    assert free.dim_param == "C"


# precision


def test_float16_asked_float32_got_is_an_error(rtx, tmp_path):
    path = write_graph(tmp_path / "graphs", kind="float32")
    with pytest.raises(EngineError, match="float16 was asked for, but the products are float32 100%: product"):
        build(path, rtx, tmp_path / "engines")
    assert build(path, rtx, tmp_path / "engines", precision="float32").shares == {"float32": 1.0}
    assert build(path, rtx, tmp_path / "islands", islands=["prod"]).shares == {"float32": 1.0}


def test_an_island_that_only_begins_alike_is_none(rtx, tmp_path):
    path = write_graph(tmp_path / "graphs", kind="float32")
    with pytest.raises(EngineError, match="float16 was asked for"):
        build(path, rtx, tmp_path / "engines", islands=["product_1"])


def test_int8_needs_a_quantised_graph(little, rtx, tmp_path):
    with pytest.raises(EngineError, match="no QuantizeLinear or DequantizeLinear"):
        build(little, rtx, tmp_path / "engines", precision="int8")


@pytest.mark.parametrize(("activations", "found"), [(False, "int8 weights"), (True, "int8")])
def test_int8_is_read_back_from_where_the_operands_come_from(rtx, tmp_path, activations, found):
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8), "w"),
        numpy_helper.from_array(np.full(WIDTH, 0.01, np.float16), "scale"),
        numpy_helper.from_array(np.float16(0.05), "step"),
    ]
    nodes = [helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"], name="dequantise", axis=1)]
    x = "x"
    if activations:
        nodes += [
            helper.make_node("QuantizeLinear", ["x", "step"], ["narrow"], name="q", output_dtype=TensorProto.INT8),
            helper.make_node("DequantizeLinear", ["narrow", "step"], ["x_again"], name="dq"),
        ]
        x = "x_again"
    nodes.append(helper.make_node("MatMul", [x, "wide"], ["y"], name="product"))
    path = save(
        tmp_path / "graphs", "quantised", nodes, {"x": (HALF, ["B", WIDTH])}, {"y": (HALF, ["B", WIDTH])}, weights
    )
    assert build(path, rtx, tmp_path / "engines", precision="int8").shares == {found: 1.0}
    with pytest.raises(EngineError, match=f"float16 was asked for, but the products are {found} 100%"):
        build(path, rtx, tmp_path / "engines")


def test_quantised_nodes_that_quantise_no_product_are_not_enough(rtx, tmp_path):
    weights = [
        numpy_helper.from_array(np.eye(WIDTH, dtype=np.float16), "w"),
        numpy_helper.from_array(np.float16(0.05), "step"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("QuantizeLinear", ["h", "step"], ["q"], name="q", output_dtype=TensorProto.INT8),
        helper.make_node("DequantizeLinear", ["q", "step"], ["y"], name="dq"),
    ]
    path = save(tmp_path / "graphs", "idle", nodes, {"x": (HALF, ["B", WIDTH])}, {"y": (HALF, ["B", WIDTH])}, weights)
    with pytest.raises(EngineError, match=r"no product has int8 operands \(float16 100%\)"):
        build(path, rtx, tmp_path / "engines", precision="int8")


# what TensorRT refuses


def test_every_unsupported_node_is_named_in_one_error(rtx, tmp_path):
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float16), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Unique", ["h"], ["u"], name="first_bad"),
        helper.make_node("NoSuchOp", ["u"], ["y"], name="second_bad"),
    ]
    path = save(tmp_path / "graphs", "bad", nodes, {"x": (HALF, ["B", WIDTH])}, {"y": (HALF, ["N"])}, [weight])
    with pytest.raises(EngineError, match="the parser refuses the graph") as caught:
        build(path, rtx, tmp_path / "engines")
    for part in ("first_bad [Unique]", "UNSUPPORTED_NODE", "second_bad [NoSuchOp]"):
        assert part in caught.value.what
    assert not (tmp_path / "engines").exists()


def test_an_input_that_the_parser_drops_is_an_error(rtx, tmp_path):
    path = tmp_path / "attention.onnx"
    onnx.save(attention("nonpad", width=16), path)
    sizes = dict.fromkeys(_letters(path), (1, 1, 2))
    with pytest.raises(EngineError, match="left out what the graph reads") as caught:
        build(path, rtx, tmp_path / "engines", sizes=sizes, precision=_precision_of(path))
    assert "'length' is read by no layer" in caught.value.what


def _letters(path: Path) -> set[str]:
    dims = [d.dim_param for value in onnx.load(path).graph.input for d in value.type.tensor_type.shape.dim]
    return set(dims) - {"", "C"}


def _precision_of(path: Path) -> str:
    return {FLOAT: "float32", HALF: "float16"}[onnx.load(path).graph.input[0].type.tensor_type.elem_type]


def test_too_little_memory_is_explained(little, rtx, tmp_path):
    with pytest.raises(EngineError, match="within workspace limit") as caught:
        build(little, rtx, tmp_path / "engines", workspace=1)
    assert "a larger workspace=" in caught.value.fix
    assert not (tmp_path / "engines").exists()


def test_missing_weights_and_a_missing_graph(little, rtx, tmp_path):
    little.with_suffix(".data").unlink()
    with pytest.raises(GraphError, match=r"little\.data of little\.onnx is missing"):
        build(little, rtx, tmp_path / "engines")
    with pytest.raises(GraphError, match="missing"):
        build_engine(tmp_path / "nothing.onnx", precision="float16", flavour=rtx)


# progress and cancelling


def test_progress_comes_in_the_callers_thread_and_ends_complete(little, rtx, tmp_path):
    events, threads = [], set()

    def progress(phase: str, step: int, total: int) -> None:
        events.append((phase, step, total))
        threads.add(threading.current_thread())

    build(little, rtx, tmp_path, progress=progress)
    assert threads == {threading.current_thread()}
    assert all(0 <= step <= total for _, step, total in events)
    assert {"Parsing", "Building engine"} <= {phase for phase, *_ in events}
    last = [e for e in events if e[0] == "Building engine"][-1]
    assert last[1] == last[2] > 1


@pytest.mark.parametrize("after", [0, 1, 20, 60])
def test_cancelling_leaves_nothing(little, rtx, tmp_path, after):
    asked = []

    def cancel() -> bool:
        asked.append(threading.current_thread().name)
        return len(asked) > after

    with pytest.raises(BuildCancelled):
        build(little, rtx, tmp_path / "engines", cancel=cancel)
    assert len(asked) == after + 1  # it is not asked again once it has said yes
    assert not (tmp_path / "engines").exists()
    assert build(little, rtx, tmp_path / "engines", cancel=lambda: False).path.is_file()


def test_a_callback_that_fails_stops_the_build_and_is_heard(little, rtx, tmp_path):
    def broken(*_: object) -> bool:
        raise ZeroDivisionError("mine")

    for callbacks in ({"progress": broken}, {"cancel": broken}):
        with pytest.raises(ZeroDivisionError, match="mine"):
            build(little, rtx, tmp_path / "engines", **callbacks)
        assert not (tmp_path / "engines").exists()
    assert not any(thread.name == "trt-build" for thread in threading.enumerate())


def test_ctrl_c_stops_the_build(little, rtx, tmp_path):
    """The signal arrives while the builder works in its thread; it is held there until the signal has been handled."""
    sent = threading.Event()

    def interrupt() -> bool:
        if not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # the caller's thread wakes up every few milliseconds
        return False

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background jobs
    try:
        with pytest.raises(KeyboardInterrupt):
            build(little, rtx, tmp_path / "engines", cancel=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "engines").exists()
    assert not any(thread.name == "trt-build" for thread in threading.enumerate())
    assert build(little, rtx, tmp_path / "engines").path.is_file()


def test_inputs_of_64_bits_are_meant_and_no_warning(rtx, tmp_path):
    weight = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float16), "w")
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["rows"], name="look_up"),
        helper.make_node("MatMul", ["rows", "w"], ["y"], name="product"),
    ]
    inputs, outputs = {"ids": (TensorProto.INT64, ["B"])}, {"y": (HALF, ["B", WIDTH])}
    report = build(save(tmp_path / "graphs", "ids", nodes, inputs, outputs, [weight]), rtx, tmp_path / "engines")
    assert report.warnings == ()
    assert [t.dtype for t in report.tensors] == ["INT64", "HALF"]
