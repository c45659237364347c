"""Pictures of engines draw what was given, and the bar tells what a real build does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from onnx import TensorProto, helper

from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.profile import Profile, default_profile
from fstrt_helpers.engines.report import BuildReport
from fstrt_helpers.errors import BuildCancelled
from fstrt_helpers.show.engines import BuildProgress, named_sizes, plot_builds, plot_precision, plot_profiles

from ..engines.conftest import SIZES, save, write_graph
from .test_plots import text_in

HALF = TensorProto.FLOAT16


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("show") / "graphs")


@pytest.fixture(scope="module")
def shown_build(graph: Path) -> tuple[BuildProgress, BuildReport]:
    """One real build, with the bar as its listener."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    with BuildProgress("little, float16") as shown:
        report = build_engine(
            graph,
            default_profile(graph, sizes=SIZES),
            precision="float16",
            flavour="tensorrt_rtx",
            folder=graph.parent / "engines",
            progress=shown,
        )
    return shown, report


def bars(figure: Figure, panel: int) -> list[tuple[float, float, str]]:
    """Left edge, width and colour of every bar that lies, in one panel."""
    patches = figure.axes[panel].patches
    return [(round(p.get_x(), 3), round(p.get_width(), 3), to_hex(p.get_facecolor())) for p in patches]


def test_sizes_are_those_of_the_named_dimensions(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="r")]
    graph = save(tmp_path, "codec", nodes, {"x": (HALF, ["B", 8, "4*T"])}, {"y": (HALF, ["B", 8, "4*T"])}, [])
    profile = Profile("codec", {"x": ((1, 8, 4), (1, 8, 40), (2, 8, 400))})
    assert named_sizes(graph, profile) == {"B": (1, 1, 2), "T": (1, 10, 100)}


def test_a_profile_is_drawn_from_least_to_most(graph: Path) -> None:
    profile = default_profile(graph, sizes={"B": (2, 4, 32)})
    figure = plot_profiles({graph: profile})
    line, diamond = figure.axes[0].lines
    assert list(line.get_xdata()) == [2, 32] and diamond.get_xdata() == [4]
    drawn = text_in(figure).split("\n")
    assert "little   B, rows of a batch" in drawn and {"2", "4", "32"} <= set(drawn)
    fixed = plot_profiles({graph: default_profile(graph, sizes={"B": (8, 8, 8)})})
    assert "always 8" in text_in(fixed)


def test_shares_of_layers_are_drawn_by_precision(shown_build: tuple[BuildProgress, BuildReport]) -> None:
    _, report = shown_build
    figure = plot_precision([report])
    products, layers = bars(figure, 0), bars(figure, 1)
    assert products == [(0.0, 1.0, "#0072b2")], "the only product is float16"
    assert sum(width for _, width, _ in layers) == pytest.approx(1, abs=0.01)
    drawn = text_in(figure).split("\n")
    assert {"little  float16", "float16", str(sum(s.count for s in report.layers))} <= set(drawn)


def test_what_was_not_measured_is_not_drawn() -> None:
    rows = [
        {"graph": "frame", "precision": "float32", "MB": 64.0, "seconds": None},
        {"graph": "frame", "precision": "float16", "MB": 39.6, "seconds": 14.2},
        {"graph": "prefill", "precision": "float16", "MB": 18.8, "seconds": 2.7},
    ]
    figure = plot_builds({"tiny, here": rows})
    sizes, seconds = figure.axes
    assert [p.get_height() for p in sizes.patches] == [64.0, 39.6, 18.8]
    assert [p.get_height() for p in seconds.patches] == [14.2, 2.7]
    assert to_hex(sizes.patches[0].get_facecolor()) != to_hex(sizes.patches[1].get_facecolor())
    assert {"tiny, here", "64", "2.7", "float32", "build, seconds"} <= set(text_in(figure).split("\n"))
    used = plot_builds({"tiny": [row | {"cpu_seconds": 3.0} for row in rows]}, seconds="cpu_seconds")
    assert [p.get_height() for p in used.axes[1].patches] == [3.0] * 3 and "build, CPU seconds" in text_in(used)


def test_pictures_are_small(graph: Path) -> None:
    assert len(plot_profiles({graph: default_profile(graph, sizes=SIZES)})._repr_png_()) < 20_000


def test_the_bar_tells_where_the_time_of_a_build_went(shown_build: tuple[BuildProgress, BuildReport]) -> None:
    shown, report = shown_build
    phases = {row["phase"] for row in shown.rows()}
    assert len(phases) > 1 and "Building engine" in phases
    assert sum(shown.seconds.values()) <= report.seconds + 0.5
    longest = shown.rows()[0]["phase"]
    assert repr(shown) == shown.line and shown.line.startswith("little, float16: ") and repr(longest) in shown.line
    assert set(shown._repr_mimebundle_()) == {"text/plain"}, "the widget is gone, the line stays"


def test_inner_phases_do_not_count_twice() -> None:
    shown = BuildProgress("x")
    with shown:
        shown("outer", 0, 2)
        shown("inner", 0, 1)
        shown("inner", 1, 1)
        shown("outer", 2, 2)
    assert set(shown.seconds) == {"outer", "inner"}
    assert sum(shown.seconds.values()) <= shown._ended - shown._began


def test_stopping_ends_the_build_and_says_so(graph: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    shown = BuildProgress("little")
    with pytest.raises(BuildCancelled), shown:
        build_engine(
            graph,
            default_profile(graph, sizes=SIZES),
            precision="float16",
            flavour="tensorrt_rtx",
            folder=tmp_path,
            progress=shown,
            cancel=lambda: True,
        )
    assert "ended by BuildCancelled" in shown.line
    assert not list(tmp_path.rglob("*.engine"))


def test_nothing_built_is_said_too() -> None:
    with BuildProgress("little") as shown:
        pass
    assert shown.line.startswith("little: nothing to build")


def test_in_a_kernel_it_is_a_widget_that_leaves_a_line() -> None:
    """In a real kernel: the widget is shown first; what remains is text."""
    import nbformat
    from nbclient import NotebookClient

    source = """
from fstrt_helpers.show.engines import BuildProgress
with BuildProgress("little") as shown:
    shown("Parsing", 0, 4)
    print(shown._bar.max, shown._text.value)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=120, kernel_name="python3", extra_arguments=["--log-level=ERROR"]).execute()
    outputs = notebook.cells[0].outputs
    printed = "".join(o.text for o in outputs if o.output_type == "stream")
    assert printed == "4 little: Parsing 0/4\n"
    (shown,) = [o.data for o in outputs if o.output_type == "display_data"]
    assert set(shown) == {"text/plain"} and shown["text/plain"].startswith("little: ")


def test_interrupting_the_kernel_stops_a_build(graph: Path, tmp_path: Path) -> None:
    """The square button of a notebook: the build ends, the line says so, and nothing is left."""
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=ERROR"])
    try:
        client.execute(f"""
import time
from pathlib import Path
from fstrt_helpers.engines.build import build_engine
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.show.engines import BuildProgress
graph, said = Path({str(graph)!r}), []
def waits():
    if not said:
        said.append(print("building"))
    time.sleep(0.2)
    return False
with BuildProgress("little") as shown:
    build_engine(graph, default_profile(graph, sizes={SIZES!r}), precision="float16", flavour="tensorrt_rtx",
                 folder={str(tmp_path)!r}, progress=shown, cancel=waits)
""")
        shown, failure, interrupted = "", "", False
        while not failure:
            message = client.get_iopub_msg(timeout=120)
            kind, content = message["msg_type"], message["content"]
            if kind == "stream" and "building" in content["text"] and not interrupted:
                manager.interrupt_kernel()
                interrupted = True
            if kind == "update_display_data":
                shown = content["data"]["text/plain"]
            failure = content["ename"] if kind == "error" else ""
        assert failure == "KeyboardInterrupt" and shown.startswith("little: ended by KeyboardInterrupt")
        assert not list(tmp_path.rglob("*.engine"))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_importing_loads_neither_matplotlib_nor_widgets_nor_tensorrt() -> None:
    heavy = "matplotlib", "ipywidgets", "tensorrt_rtx", "tensorrt"
    program = f"import sys, fstrt_helpers.show.engines; print(sorted(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
