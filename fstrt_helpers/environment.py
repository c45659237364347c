"""What this machine can export, build and run, and the command that brings what is missing.

Nothing is taken from a list that a library keeps about itself. A provider counts as usable after it has computed a
sum, a TensorRT builder after it has built an engine, a GPU after the driver has named it. Every probe is caught: a
machine that lacks a library gets a row that says so, never a traceback. ``python -m fstrt_helpers.environment`` prints
the table, and needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .driver import NO_GPU, Gpu, driver_fix, driver_gpus, driver_text
from .tables import html_table, text_table

__all__ = ["Finding", "Machine", "inspect_machine", "usable_providers"]

_ROOT = Path(__file__).resolve().parent.parent
# y = x + x on two float32 values, as a serialised ONNX model (opset 13), so that probing needs no `onnx`.
_ADD_MODEL = (
    b'\x08\x08:9\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x05probeZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\r"
)
_IMPORTED = ("torch", "onnx", "onnxscript", "onnxruntime", "polygraphy", "tensorrt-rtx", "tensorrt")
_RTX_RUNS_ON = "compute capability 8.0, 8.6, 8.9 or 12.x"


@dataclass(frozen=True)
class Finding:
    """One row of the table.

    Attributes:
        about: Which part of the machine or which capability.
        ok: Whether it was found and works.
        found: The version, the name, or the reason it is missing.
        fix: The command that brings it; empty where nothing is missing.
    """

    about: str
    ok: bool
    found: str
    fix: str = ""


@dataclass(frozen=True, repr=False)
class Machine:
    """Everything found out about this machine; prints as text and shows as HTML tables.

    Attributes:
        parts: What is installed and plugged in.
        capabilities: What can be done with it, keyed ``export …``, ``build …`` and ``run …``.
        gpus: The GPUs that the driver offers to this process.
        providers: ONNX Runtime providers that computed something.
        checkpoints: Names of the checkpoints found, in the order they were looked for.
    """

    parts: tuple[Finding, ...]
    capabilities: tuple[Finding, ...]
    gpus: tuple[Gpu, ...]
    providers: tuple[str, ...]
    checkpoints: tuple[str, ...]

    def can(self, capability: str) -> bool:
        """Whether the capability of that name works here; ``KeyError`` for a name that is not in the table."""
        return {c.about: c.ok for c in self.capabilities}[capability]

    @property
    def fixes(self) -> tuple[str, ...]:
        """Each different command or advice of the table, once."""
        return tuple(dict.fromkeys(f.fix for f in (*self.parts, *self.capabilities) if f.fix))

    def _rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        parts = [{"part": f.about, "found": f.found, "fix": f.fix} for f in self.parts]
        able = [{"capability": f.about, "here": f.ok, "why": f.found, "fix": f.fix} for f in self.capabilities]
        return parts, able

    def __str__(self) -> str:
        return "\n\n".join(text_table(rows) for rows in self._rows())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(html_table(rows) for rows in self._rows())


def inspect_machine() -> Machine:
    """Looks at this machine. Takes a few seconds, most of them spent importing torch; needs no network.

    Returns:
        A :class:`Machine`; never raises because of what is missing.
    """
    gpus, cuda = driver_gpus()
    providers = usable_providers()
    checkpoints, checkpoint_part = _checkpoints()
    modules = {package: _load(package.replace("-", "_")) for package in _IMPORTED}
    parts = (
        Finding("Python", sys.version_info >= (3, 11), f"{platform.python_version()} on {_system()}"),
        *(_part(p, module is not None, wanted=p != "tensorrt" or bool(gpus)) for p, module in modules.items()),
        Finding("ORT providers", bool(providers), ", ".join(providers) or "none that computes a sum"),
        _part("pycuda", _version("pycuda") is not None, wanted=bool(gpus)),
        _part("fish-speech", _version("fish-speech") is not None),
        Finding("driver", cuda is not None, driver_text(cuda), "" if cuda else driver_fix()),
        Finding("GPU", bool(gpus), "; ".join(map(str, gpus)) or "none that the driver offers"),
        checkpoint_part,
    )
    missing = [package for package in ("torch", "onnx", "onnxscript") if modules[package] is None]
    why_not = f"needs {', '.join(missing)}"
    capabilities = (
        _able("export to ONNX", not missing, "torch.onnx.export", why_not, _pip(*missing)),
        *_engine_capabilities("tensorrt-rtx", modules["tensorrt-rtx"], gpus),
        *_engine_capabilities("tensorrt", modules["tensorrt"], gpus),
        *_run_capabilities(modules["torch"], providers, gpus),
    )
    return Machine(parts, capabilities, gpus, providers, checkpoints)


def usable_providers() -> tuple[str, ...]:
    """ONNX Runtime providers that really computed ``x + x`` here.

    ``get_available_providers`` lists what was compiled in, and an opened session still names a provider that runs
    none of its nodes. So each provider gets a session of its own that may not fall back to the CPU.
    """
    ort = _load("onnxruntime")
    if ort is None:
        return ()
    import numpy as np

    usable = []
    for name in ort.get_available_providers():
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if name != "CPUExecutionProvider":
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        with contextlib.suppress(Exception), _quiet():
            session = ort.InferenceSession(_ADD_MODEL, options, providers=[name])
            (doubled,) = session.run(None, {"x": np.array([1.0, 2.0], np.float32)})
            if doubled.tolist() == [2.0, 4.0]:
                usable.append(name)
    return tuple(usable)


def _engine_capabilities(package: str, trt: Any, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Builds a one-layer engine with this flavour of TensorRT and, where there is a GPU, loads it."""
    install = _pip(package) if gpus or package == "tensorrt-rtx" else NO_GPU
    log: list[str] = []
    plan = loaded = None
    if trt is None:
        log.append("does not import")
    else:
        with _quiet():
            try:
                logger = _collecting_logger(trt, log)
                plan = _one_layer_plan(trt, logger)
                if plan is not None and gpus:
                    loaded = trt.Runtime(logger).deserialize_cuda_engine(plan)
            except Exception as error:
                log.append(str(error))
    reason = re.sub(r"\s+", " ", log[0])[:100] if log else "returned nothing, without a reason"
    built = f"built one layer, {plan.nbytes:,} bytes" if plan is not None else ""
    yield _able(f"build {package} engines", plan is not None, built, reason, install)
    if plan is None or not gpus:
        why, fix = ("no GPU" if not gpus else reason), (install if gpus else NO_GPU)
    elif package == "tensorrt-rtx":
        why, fix = f"loads only on {_RTX_RUNS_ON}", _pip("tensorrt")
    else:
        why, fix = reason, install
    yield _able(f"run {package} engines", loaded is not None, "loaded the engine it built", why, fix)


def _run_capabilities(torch: Any, providers: tuple[str, ...], gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """The two back ends that need no engine, on the CPU and on the GPU."""
    for device in ("cpu", "cuda"):
        result = None
        if torch is not None and (device == "cpu" or gpus):
            with contextlib.suppress(Exception), _quiet():
                result = torch.ones(2, device=device).sum().item()
        fix = _pip("torch") if device == "cpu" or gpus else NO_GPU
        yield _able(f"run PyTorch on {device}", result == 2.0, "added two numbers", "could not add two numbers", fix)
    swap = f"python -m pip uninstall -y onnxruntime && {_pip('onnxruntime-gpu')}"
    for device, name, fix in (
        ("cpu", "CPUExecutionProvider", _pip("onnxruntime")),
        ("cuda", "CUDAExecutionProvider", swap if gpus else NO_GPU),
    ):
        about = f"run ONNX Runtime on {device}"
        yield _able(about, name in providers, f"{name} computed a sum", f"{name} computed nothing", fix)


def _checkpoints() -> tuple[tuple[str, ...], Finding]:
    """Asks the loader for each checkpoint by name, and says how to get the official one."""
    try:
        from .checkpoint import find_checkpoint
    except Exception as error:
        return (), Finding("checkpoints", False, f"cannot be looked for: {error}", _pip("torch"))
    found, fix = [], ""
    for name in ("tiny", "fish-speech-1.5"):
        try:
            find_checkpoint(name)
            found.append(name)
        except Exception as error:  # a damaged folder must not stop the look either
            fix = (getattr(error, "fix", None) or str(error)).partition("\n")[0]
    return tuple(found), Finding("checkpoints", bool(found), ", ".join(found) or "none", fix)


def _collecting_logger(trt: Any, lines: list[str]) -> Any:
    """A TensorRT logger that keeps errors in a list and prints nothing."""

    class Collector(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.ERROR:
                lines.append(message)

    return Collector()


def _one_layer_plan(trt: Any, logger: Any) -> Any:
    """Builds y = relu(x) for four float32 values."""
    builder = trt.Builder(logger)
    network = builder.create_network()
    layer = network.add_activation(network.add_input("x", trt.float32, (4,)), trt.ActivationType.RELU)
    network.mark_output(layer.get_output(0))
    return builder.build_serialized_network(network, builder.create_builder_config())


def _system() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} logical cores"


def _load(name: str) -> Any:
    """Imports a module quietly; None where that fails for any reason."""
    try:
        with _quiet():
            return importlib.import_module(name)
    except Exception:
        return None


def _version(package: str) -> str | None:
    """Version of an installed distribution, or None. Imports nothing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _part(package: str, works: bool, *, wanted: bool = True) -> Finding:
    """A row for a package; ``wanted=False`` leaves out the fix where the package would be of no use."""
    version = _version(package)
    if works:
        return Finding(package, True, version or "version unknown")
    found = "not installed" if version is None else f"{version} is installed but does not import"
    return Finding(package, False, found, _pip(package) if wanted else "")


def _able(about: str, ok: bool, why: str, why_not: str, fix: str) -> Finding:
    return Finding(about, ok, why) if ok else Finding(about, False, why_not, fix)


def _pip(*packages: str) -> str:
    """The command that installs these packages at the versions this repository was tested with."""
    pins: dict[str, str] = {}
    for file in sorted(_ROOT.glob("requirements*.txt")):
        for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^;\s]+)", file.read_text(), re.MULTILINE):
            pins[name] = f"{name}=={version}"
    bare = "--no-deps " if "fish-speech" in packages else ""
    return f"python -m pip install {bare}" + " ".join(pins.get(p, p) for p in packages)


if __name__ == "__main__":
    print(inspect_machine())
