"""The look at the machine: true where things are there, complete and silent where they are not."""

from __future__ import annotations

import dataclasses
import importlib.abc
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fstrt_helpers import environment
from fstrt_helpers.driver import NO_GPU, Gpu, driver_gpus
from fstrt_helpers.environment import Machine, inspect_machine, usable_providers

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "polygraphy", "tensorrt_rtx")
NEEDED_BY = {
    "torch": ("export to ONNX", "run PyTorch on cpu"),
    "onnx": ("export to ONNX",),
    "onnxscript": ("export to ONNX",),
    "onnxruntime": ("run ONNX Runtime on cpu",),
    "polygraphy": (),
    "tensorrt_rtx": ("build tensorrt-rtx engines",),
}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return inspect_machine()


class Broken(importlib.abc.MetaPathFinder):
    """Makes one package fail on import the way a missing shared library does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == self.name:
            raise OSError("libsomething.so.13: cannot open shared object file")


def part(machine: Machine, name: str) -> environment.Finding:
    return next(finding for finding in machine.parts if finding.about == name)


def test_this_machine_can_do_what_the_pins_bring(machine: Machine) -> None:
    assert machine.can("export to ONNX")
    assert machine.can("run PyTorch on cpu")
    assert machine.can("run ONNX Runtime on cpu")
    assert "CPUExecutionProvider" in machine.providers
    assert part(machine, "torch").found == sys.modules["torch"].__version__


def test_tensorrt_rtx_builds_without_a_gpu(machine: Machine) -> None:
    pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX has no wheel for this processor")
    assert machine.can("build tensorrt-rtx engines")


def test_every_row_that_is_not_ok_says_why_and_every_lost_capability_has_a_fix(machine: Machine) -> None:
    for finding in (*machine.parts, *machine.capabilities):
        assert finding.found
        assert not (finding.ok and finding.fix) or finding.about == "checkpoints"
    assert all(finding.fix for finding in machine.capabilities if not finding.ok)


def test_an_unknown_capability_is_an_error_not_a_no(machine: Machine) -> None:
    with pytest.raises(KeyError):
        machine.can("fly")


def test_the_machine_cannot_be_changed_and_shows_itself(machine: Machine) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine.gpus = ()
    text, page = str(machine), machine._repr_html_()
    assert repr(machine) == text
    for finding in (*machine.parts, *machine.capabilities):
        assert finding.about in text and finding.about in page
    assert page.count("<table>") == 2


def test_the_probe_model_is_a_valid_graph_that_doubles() -> None:
    import onnx

    model = onnx.load_from_string(environment._ADD_MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [(node.op_type, list(node.input)) for node in model.graph.node] == [("Add", ["x", "x"])]


def test_a_provider_that_is_listed_but_computes_nothing_is_not_usable() -> None:
    """The CPU wheel lists a cloud provider; a session opened for it even names it."""
    ort = pytest.importorskip("onnxruntime")
    if "AzureExecutionProvider" not in ort.get_available_providers():
        pytest.skip("this build of ONNX Runtime lists no provider that cannot work")
    session = ort.InferenceSession(environment._ADD_MODEL, providers=["AzureExecutionProvider"])
    assert "AzureExecutionProvider" in session.get_providers()
    assert "AzureExecutionProvider" not in usable_providers()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_costs_its_capabilities_and_nothing_else(
    name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    lacking = inspect_machine()
    package = name.replace("_", "-")
    row = part(lacking, package)
    assert not row.ok and f"install {package}==" in row.fix
    lost = {c.about for c in machine.capabilities if c.ok} - {c.about for c in lacking.capabilities if c.ok}
    assert lost == set(NEEDED_BY[name]) & {c.about for c in machine.capabilities if c.ok}
    assert all(package in c.fix for c in lacking.capabilities if c.about in lost)


@pytest.mark.parametrize("name", ["onnxscript", "tensorrt_rtx", "polygraphy"])
def test_a_package_that_breaks_on_import_is_reported_not_raised(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(name), *sys.meta_path])
    row = part(inspect_machine(), name.replace("_", "-"))
    assert not row.ok and "does not import" in row.found and row.fix


def test_nothing_installed_at_all(root: Path) -> None:
    """A real interpreter without site-packages: complete table, no traceback, nothing on stderr."""
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from fstrt_helpers.environment import inspect_machine\n"
        "machine = inspect_machine()\n"
        "assert not any(c.ok for c in machine.capabilities), machine\n"
        "assert machine.providers == ()\n"
        "print(machine)"
    )
    done = subprocess.run([sys.executable, "-S", "-E", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("not installed") >= len(PACKAGES)
    assert "python -m pip install torch==" in done.stdout


def test_looking_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    inspect_machine()
    assert capfd.readouterr() == ("", "")


def test_fixes_carry_the_pins_of_the_requirement_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    pins = "\n".join(file.read_text() for file in root.glob("requirements*.txt"))
    named = re.findall(r"\S+==\S+", " ".join(inspect_machine().fixes))
    assert len(named) >= len(PACKAGES)
    assert all(re.search(rf"^{re.escape(pin)}\b", pins, re.MULTILINE) for pin in named)


def test_where_rtx_does_not_load_the_fix_is_the_data_centre_edition() -> None:
    """A real engine, built here, that this machine's driver cannot load, for a GPU that RTX refuses."""
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX has no wheel for this processor")
    if driver_gpus()[0]:
        pytest.skip("this machine has a GPU: what it can load is seen in the next test")
    hopper = Gpu("NVIDIA H200", (9, 0), 143_771)
    build, run = environment._engine_capabilities("tensorrt-rtx", trt, (hopper,))
    assert build.ok
    assert not run.ok and "8.0, 8.6, 8.9 or 12.x" in run.found and "install tensorrt==" in run.fix


def test_without_a_gpu_no_command_is_promised(machine: Machine) -> None:
    if machine.gpus:
        pytest.skip("this machine has a GPU")
    for capability in ("run tensorrt-rtx engines", "run tensorrt engines", "run PyTorch on cuda"):
        assert not machine.can(capability)
    assert NO_GPU in machine.fixes


@pytest.mark.gpu
def test_with_a_gpu_the_driver_names_it(machine: Machine) -> None:
    if not machine.gpus:
        pytest.skip("needs an NVIDIA GPU: the driver offers none")
    gpu = machine.gpus[0]
    assert gpu.name and gpu.compute_capability >= (5, 0) and gpu.memory_mib > 1000
    assert part(machine, "driver").ok
    if part(machine, "tensorrt-rtx").ok:
        loads = gpu.compute_capability in {(8, 0), (8, 6), (8, 9)} or gpu.compute_capability[0] == 12
        assert machine.can("run tensorrt-rtx engines") == loads
