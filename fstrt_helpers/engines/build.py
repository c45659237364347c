"""ONNX file and profile in, TensorRT engine out.

    python -m fstrt_helpers.engines.build tiny --precision float16

Always strongly typed: the graph says in which precision each layer computes, and what the parser made of it is read
back before the build. TensorRT 10 needs a flag for that, TensorRT 11 and TensorRT-RTX have nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BuildCancelled, EngineError
from .adapt import adapt
from .flavour import PORTABLE, Flavour
from .listen import Progress, Watch, collect_log, trt_logger
from .profile import Profile
from .readback import LayerShare, check_precision, dropped_inputs, read_precision
from .recipe import Recipe, prepare
from .report import BuildReport, BuiltTensor, PeakMemory
from .store import write_engine
from .timing import attach_timing_cache, save_timing_cache, timing_cache_path

__all__ = ["build_engine", "build_recipe"]

_ONE_BUILD = threading.Lock()  # one builder at a time: the log is one, and so is the memory
_FIXES = (
    ("OutOfMemory", "allow more memory: a larger workspace="),
    ("workspace limit", "allow more memory: a larger workspace="),
    ("not supported by a dedicated kernel", "export with attention='decomposed': there is no float32 attention kernel"),
    ("static sequence length", "give the profile a capacity"),
)
_LOOK = "fstrt_helpers.graphs.lint names known traps and the way out of them"


def build_engine(
    onnx_path: str | os.PathLike[str],
    profile: Profile | None = None,
    *,
    precision: str,
    flavour: str | Flavour | None = None,
    target: str | Sequence[str] | None = None,
    workspace: int | None = None,
    level: int | None = None,
    version_compatible: bool = False,
    timing_cache: Path | None = None,
    islands: Collection[str] = (),
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> BuildReport:
    """Builds one engine and writes it with its sidecar. It appears complete or not at all.

    Args:
        onnx_path: The graph. Weights beside it are found from any working directory.
        profile: Sizes the engine accepts, and the capacity of its KV cache; a sensible one by default.
        precision: ``float32``, ``float16``, ``bfloat16`` or ``int8``: what the graph's products compute in. It is
            checked, not set: precision lives in the graph.
        flavour: ``tensorrt`` or ``tensorrt_rtx``; by default as :func:`fstrt_helpers.engines.flavour.load_trt` picks.
        target: ``portable``, ``current``, or GPUs such as ``SM86``. TensorRT knows the first two only.
        workspace: Most device memory in bytes that one layer may use for scratch; by default what TensorRT takes.
        level: Optimisation level, 0 to 5; TensorRT's default is 3.
        version_compatible: Whether later versions of TensorRT 10 or 11 shall load the engine.
        timing_cache: Where kernel times are kept; by default one file per version and GPU beside the engines. Only
            TensorRT has any.
        islands: Parts of names of products that may compute in another precision.
        progress: Called with phase, steps done and steps in all, in the caller's thread.
        cancel: Asked before each step; true stops the build. Ctrl-C does too.
        folder: Root of the engines; ``outputs/engines`` by default.

    Returns:
        What was built, and where it lies.

    Raises:
        ProfileError: The profile does not fit the graph; the builder was not started.
        BuildCancelled: `cancel` said so. Nothing was written.
        EngineError: TensorRT refuses the graph, with all of its reasons; or the layers are in another precision.
        ParameterError: A setting is out of range.
        GraphError: The graph is missing or damaged.
        EnvironmentMissing: No TensorRT, or none that builds on this machine.
    """
    recipe = prepare(
        onnx_path,
        profile,
        precision=precision,
        flavour=flavour,
        target=target,
        workspace=workspace,
        level=level,
        version_compatible=version_compatible,
        islands=islands,
        folder=folder,
    )
    return build_recipe(recipe, timing_cache=timing_cache, progress=progress, cancel=cancel)


def build_recipe(
    recipe: Recipe,
    *,
    timing_cache: Path | None = None,
    progress: Progress | None = None,
    cancel: Callable[[], bool] | None = None,
) -> BuildReport:
    """Builds and writes what :func:`fstrt_helpers.engines.recipe.prepare` has checked; see :func:`build_engine`."""
    kernel_times = timing_cache_path(recipe.folder, recipe.flavour, timing_cache)
    fields = recipe.fields  # hashed before the build: the files might change while it runs
    memory = PeakMemory()
    watch = Watch(recipe.flavour, progress, cancel, memory.look)
    began = time.perf_counter()
    made = watch.run(lambda: _build(recipe, watch, kernel_times))
    seconds = time.perf_counter() - began
    peak, extra = memory.megabytes()
    source, options = recipe.source, dict(recipe.options)
    if kernel_times:
        options["timing_cache"] = "warm" if made.warm else "cold"
    with memoryview(made.plan) as plan:
        report = BuildReport(
            graph=source.graph,
            checkpoint=source.checkpoint,
            precision=recipe.precision,
            flavour=recipe.flavour.name,
            version=recipe.flavour.version,
            target=",".join(recipe.target),
            capacity=recipe.profile.capacity,
            seconds=round(seconds, 4),
            parse_seconds=round(made.parse_seconds, 4),
            bytes=plan.nbytes,
            graph_bytes=sum(path.stat().st_size for path in (source.path, *source.data.values())),
            peak_host_mb=peak,
            extra_host_mb=extra,
            layers=made.layers,
            tensors=made.tensors,
            options=options,
            warnings=made.warnings,
        )
        return write_engine(recipe.path, plan.cast("B"), fields, report)


@dataclass(frozen=True)
class _Made:
    plan: Any
    layers: tuple[LayerShare, ...]
    tensors: tuple[BuiltTensor, ...]
    warnings: tuple[str, ...]
    parse_seconds: float
    warm: bool


def _build(recipe: Recipe, watch: Watch, kernel_times: Path | None) -> _Made:
    """Parses, checks and builds; runs in the builder's thread."""
    trt, source = recipe.flavour.module, recipe.source
    while not _ONE_BUILD.acquire(timeout=0.1):
        _stop_here(watch)
    try:
        with collect_log(recipe.flavour) as log:
            logger = trt_logger(recipe.flavour)
            builder = trt.Builder(logger)
            # https://docs.nvidia.com/deeplearning/tensorrt/11.0.0/_static/python-api/infer/Core/Builder.html: from
            # TensorRT 11 on the flag is ignored, since every network is strongly typed.
            typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
            network = builder.create_network(0 if typed is None else 1 << int(typed))
            parse_seconds = _parse(recipe, network, log, watch)
            _check_network(recipe, network)
            layers = read_precision(network)
            check_precision(layers, recipe.precision, where=source.path, islands=recipe.islands, widened=recipe.widened)
            config = _configure(recipe, builder, watch)
            warm = bool(kernel_times) and attach_timing_cache(config, kernel_times)
            profile = _add_profile(recipe, builder, config)
            _stop_here(watch)
            plan = builder.build_serialized_network(network, config)
            _stop_here(watch)
            if plan is None:
                raise _failure(recipe, "the builder refuses the graph", _errors(log))
            warnings = list(dict.fromkeys(text for severity, text in log if severity == "WARNING"))
            if kernel_times:
                try:
                    save_timing_cache(config, kernel_times)
                except (OSError, EngineError) as error:  # the engine is worth more than the times of its kernels
                    warnings.append(f"the timing cache was not written: {error}")
            tensors = _tensors(network, profile)
    finally:
        _ONE_BUILD.release()
    return _Made(plan, layers, tensors, tuple(warnings), parse_seconds, warm)


def _stop_here(watch: Watch) -> None:
    if watch.wants_stop():
        raise BuildCancelled("the build was stopped; nothing was written")


def _parse(recipe: Recipe, network: Any, log: list[tuple[str, str]], watch: Watch) -> float:
    """Parses the graph, adapted in memory, as if it lay at the path of the original.

    The parser is given the bytes of the graph, which hold no weights, and the path that the places of the weights are
    relative to. So no second file is written beside them, and files above 2 GB are no special case.
    https://docs.nvidia.com/deeplearning/tensorrt/archives/tensorrt-1070/api/python_api/parsers/Onnx/pyOnnx.html
    """
    source = recipe.source
    model = adapt(source.model, recipe.profile.capacity, source.path.parent)
    parser = recipe.flavour.module.OnnxParser(network, trt_logger(recipe.flavour))
    watch.note("Parsing", 0, 1)
    began = time.perf_counter()
    parsed = parser.parse(model.SerializeToString(), str(source.path))
    seconds = time.perf_counter() - began
    watch.note("Parsing", 1, 1)
    errors = [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
    if not parsed or errors:
        raise _failure(recipe, "the parser refuses the graph", errors or _errors(log))
    return seconds


def _parser_error(error: Any) -> str:
    node = f"{error.node_name() or '(no name)'} [{error.node_operator()}]" if error.node_operator() else "the graph"
    return f"{node}: {error.desc()} ({error.code().name})"


def _check_network(recipe: Recipe, network: Any) -> None:
    """Refuses a network that does not read what the graph reads."""
    read = {name for node in recipe.source.model.graph.node for name in node.input}
    used = [value.name for value in recipe.source.model.graph.input if value.name in read]
    if dropped := dropped_inputs(network, used):
        raise _failure(
            recipe,
            "the parser left out what the graph reads, so the engine would compute something else",
            [f"input {name!r} is read by no layer" for name in dropped],
        )


def _configure(recipe: Recipe, builder: Any, watch: Watch) -> Any:
    """The builder's configuration.

    https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html (targets), and
    https://docs.nvidia.com/deeplearning/tensorrt/11.1.0/inference-library/engine-compatibility.html (portability).
    """
    trt, flavour, options = recipe.flavour.module, recipe.flavour, recipe.options
    config = builder.create_builder_config()
    config.progress_monitor = watch.monitor()
    if options["workspace"] is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options["workspace"])
    if options["level"] is not None:
        config.builder_optimization_level = options["level"]
    if options["version_compatible"]:
        config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    if options["user_allocation"]:  # what may allocate cannot be captured as a CUDA graph
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    if recipe.precision == "float32":
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default, and only 10 bits of the mantissa
    if flavour.builds_without_gpu and recipe.target != (PORTABLE,):
        config.num_compute_capabilities = len(recipe.target)
        for index, name in enumerate(recipe.target):
            config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    if not flavour.builds_without_gpu and recipe.target == (PORTABLE,):
        config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
    return config


def _add_profile(recipe: Recipe, builder: Any, config: Any) -> Any:
    profile = builder.create_optimization_profile()
    for name, shapes in recipe.profile.inputs.items():
        profile.set_shape(name, *shapes)
    if config.add_optimization_profile(profile) < 0:
        raise _failure(recipe, "the builder refuses the profile", [repr(recipe.profile)])
    return profile


def _tensors(network: Any, profile: Any) -> tuple[BuiltTensor, ...]:
    """Inputs with their ranges read back from the profile, and outputs."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    return tuple(
        [
            BuiltTensor(t.name, "input", t.dtype.name, tuple(t.shape), *map(tuple, profile.get_shape(t.name)))
            for t in inputs
        ]
        + [BuiltTensor(t.name, "output", t.dtype.name, tuple(t.shape)) for t in outputs]
    )


def _errors(log: Sequence[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(text.strip() for severity, text in log if severity in ("ERROR", "INTERNAL_ERROR")))


def _failure(recipe: Recipe, what: str, reasons: Sequence[str]) -> EngineError:
    """One error with every reason given, and a fix where the reason is a known one."""
    text = "\n".join(f"  - {reason}" for reason in reasons or ["no reason was given"])
    fix = next((fix for sign, fix in _FIXES if sign in text), _LOOK)
    return EngineError(f"{what}:\n{text}", where=recipe.source.path, fix=fix)


if __name__ == "__main__":
    from .command import main

    main()
