"""What can be known of engines without running one: which file serves what, what is refused and why, and the calls.

The engines are real ones, of small graphs, built by TensorRT-RTX on the CPU. Running them is `tests/gpu`.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
import torch

from fstrt_helpers.checkpoint import find_checkpoint
from fstrt_helpers.driver import driver_gpus
from fstrt_helpers.engines.cache import cached_engine
from fstrt_helpers.engines.flavour import Flavour, load_trt
from fstrt_helpers.engines.profile import default_profile
from fstrt_helpers.errors import (
    EngineRefused,
    EnvironmentMissing,
    GraphError,
    ParameterError,
    ProfileError,
    RuntimeInputError,
)
from fstrt_helpers.graphs.inputs import seeded_inputs
from fstrt_helpers.graphs.manifest import graph_path
from fstrt_helpers.graphs.spec import GRAPHS
from fstrt_helpers.runtimes import tensorrt_buckets
from fstrt_helpers.runtimes.tensorrt import TrtRuntime
from fstrt_helpers.runtimes.tensorrt_buckets import TrtBuckets, ready_engines, tensorrt_runtimes
from fstrt_helpers.runtimes.tensorrt_engine import LoadedEngine, output_allocator
from fstrt_helpers.runtimes.tensorrt_files import EngineFile, find_engines, read_engine, serving
from fstrt_helpers.speech.backends import open_backend

from .trt_graphs import CONFIG, FINGERPRINT, write_small_graphs

pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed: no engines are built here")
no_gpu = pytest.mark.skipif(bool(driver_gpus()[0]), reason="there is a GPU: see tests/gpu")


@pytest.fixture(scope="module")
def rtx() -> Flavour:
    return load_trt("tensorrt_rtx")


@pytest.fixture(scope="module")
def root(rtx: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds ``graphs`` and ``engines``: all four graphs, those with a KV cache in 64 and 128 columns."""
    root = tmp_path_factory.mktemp("small")
    graphs = write_small_graphs(root / "graphs")
    ready_engines("small", "float16", CONFIG, rtx, graphs=graphs, folder=root / "engines", missing=True)
    for graph in ("prefill", "frame"):
        path = graph_path(graphs, "small", "float16", graph)
        profile = default_profile(path, name=graph, capacity=64, sizes={"S": (1, 8, 16)} if graph == "prefill" else {})
        cached_engine(path, profile, precision="float16", flavour=rtx, folder=root / "engines")
    return root


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy to be spoilt."""
    return Path(shutil.copytree(root, tmp_path / "copy"))


def find(root: Path, graph: str, **changes) -> dict[int | None, EngineFile]:
    return find_engines(root / "engines", "small", "float16", graph, CONFIG, **{"fingerprint": FINGERPRINT, **changes})


def test_engines_are_found_by_capacity(root):
    assert list(find(root, "prefill")) == list(find(root, "frame")) == [64, 128]
    assert list(find(root, "codec_decode")) == list(find(root, "codec_encode")) == [None]
    frame = find(root, "frame")[64]
    assert frame.path.name == "frame-64.engine" and frame.capacity == 64
    assert frame.dtype("k_0") == torch.float16 and frame.dtype("next") == torch.int64
    kinds = {t.name: t.dtype for t in frame.spec.inputs}
    assert kinds["k_0"] == torch.float16 and kinds["noise"] == torch.float32
    assert frame.spec.outputs == ("next", "k_0", "v_0")


def test_engines_of_another_checkpoint_or_shape_are_refused(root):
    with pytest.raises(EngineRefused, match=r"built from another checkpoint \(small\)"):
        find(root, "frame", fingerprint="f" * 64)
    path = root / "engines" / "small" / "float16" / "frame-64.engine"
    deeper = type(CONFIG).from_dict({**{k: v for k, v in vars(CONFIG).items() if k != "extra"}, "n_layer": 2})
    with pytest.raises(EngineRefused, match="differ in the inputs k_1, v_1"):
        read_engine(path, deeper)


def test_missing_engines_are_named_with_the_command(root, copy):
    with pytest.raises(EngineRefused, match="there is no engine of frame in int8"):
        find_engines(root / "engines", "small", "int8", "frame", CONFIG)
    (copy / "engines" / "small" / "float16" / "codec_encode.engine").unlink()
    with pytest.raises(EngineRefused) as caught:
        tensorrt_runtimes(copy / "engines", "small", "float16", CONFIG, fingerprint=FINGERPRINT)
    assert "codec_encode.engine" in str(caught.value) and "fstrt_helpers.engines.build" in caught.value.fix


@pytest.mark.parametrize("graph", GRAPHS)
def test_every_size_of_the_profile_is_taken_and_the_next_one_is_not(root, graph):
    for file in find(root, graph).values():
        ranges = {"B": (1, 8), "S": (1, min(file.capacity or 0, 16 if file.capacity == 64 else 1024)), "T": (1, 256)}
        if graph in ("prefill", "codec_encode"):
            ranges["B"] = (1, 1)
        if graph == "codec_decode":
            ranges["B"] = (1, 4)
        if graph == "codec_encode":
            ranges["T"] = (1, 646)
        free = {d for t in file.spec.inputs for d in t.shape if isinstance(d, str)} | (
            {"T"} if "codec" in graph else set()
        )
        least = {d: ranges[d][0] for d in free - {"C", "M"}}
        most = {d: ranges[d][1] for d in free - {"C", "M"}}
        fixed = {} if file.capacity is None else {"C": file.capacity}
        for sizes in (least, most, {d: (least[d] + most[d]) // 2 for d in least}):
            found = file.check(seeded_inputs(file.spec, sizes | fixed))
            assert {d: found[d] for d in sizes if d in found} == {d: v for d, v in sizes.items() if d in found}
        for d in least:
            with pytest.raises(ProfileError, match=rf"the profile of {file.path.name} takes \S+ to \S+") as caught:
                file.check(seeded_inputs(file.spec, most | fixed | {d: most[d] + 1}))
            assert caught.value.fix


def test_other_capacities_and_types_are_refused(root):
    file = find(root, "frame")[64]
    with pytest.raises(
        ProfileError, match=r"input 'mask' is 1x1x1x65; the profile of frame-64\.engine takes 1x1x1x64 to"
    ):
        file.check(seeded_inputs(file.spec, {"C": 65}))
    inputs = seeded_inputs(file.spec, {"C": 64})
    with pytest.raises(RuntimeInputError, match="'k_0' is float32"):
        file.check(inputs | {"k_0": inputs["k_0"].float()})


def test_which_capacity_serves():
    assert [serving((128, 512, 2048), columns) for columns in (1, 128, 129, 512, 513)] == [128, 128, 512, 512, 2048]
    with pytest.raises(ProfileError, match="2049 columns of KV cache are wanted; the largest engine there is has 2048"):
        serving((128, 2048), 2049)
    with pytest.raises(ProfileError, match="has 0"):
        serving((), 1)


def test_buckets_know_their_capacities(root):
    buckets = TrtBuckets(find(root, "frame"))
    assert buckets.capacities == [64, 128] and buckets.serving(65) == 128
    assert buckets.describe() == {
        "backend": "tensorrt_rtx",
        "device": "cuda:0",
        "precision": "float16",
        "capacity": [64, 128],
    }
    with pytest.raises(RuntimeInputError, match="no engine has a KV cache of 96 columns"):
        buckets.run(seeded_inputs(buckets.spec, {"C": 96}))
    with pytest.raises(RuntimeInputError, match="not open"):
        buckets.run({})
    buckets.close()


def test_an_engine_that_is_not_open_runs_nothing(root):
    runtime = TrtRuntime(find(root, "codec_decode")[None])
    with pytest.raises(RuntimeInputError, match="not open"):
        runtime.run({"codes": torch.zeros(1, 8, 3, dtype=torch.int64)})
    runtime.close()
    runtime.close()


@no_gpu
def test_without_a_gpu_opening_says_so(root):
    for runtime in tensorrt_runtimes(root / "engines", "small", "float16", CONFIG).values():
        with pytest.raises(EnvironmentMissing, match="tensorrt_rtx runs no engines here: the driver offers no GPU"):
            runtime.open()


@no_gpu
def test_what_tensorrt_does_not_load_is_refused_with_the_reason(root, rtx):
    path = find(root, "codec_decode")[None].path
    with pytest.raises(
        EngineRefused, match="tensorrt_rtx does not load the engine: the driver offers no GPU"
    ) as caught:
        LoadedEngine(rtx, path.read_bytes(), path)
    assert caught.value.fix
    with pytest.raises(EngineRefused, match="malformed engine"):
        LoadedEngine(rtx, b"no engine at all" * 1000, path)


def test_without_the_library_opening_says_so(root):
    try:
        load_trt("tensorrt")
    except EnvironmentMissing:
        with pytest.raises(EnvironmentMissing, match="tensorrt does not import"):
            TrtRuntime(find(root, "frame")[64], flavour="tensorrt").open()
    else:
        pytest.skip("tensorrt is installed")


@no_gpu
def test_asking_for_the_back_end_without_a_gpu():
    with pytest.raises(EnvironmentMissing, match="no CUDA device"):
        open_backend(find_checkpoint("tiny"), "tensorrt", "auto")
    with pytest.raises(EnvironmentMissing, match="there are no engines in int4"):
        open_backend(find_checkpoint("tiny"), "tensorrt", "int4")
    with pytest.raises(ParameterError):
        open_backend(find_checkpoint("tiny"), "tensorrt", "int3")


def ready(folder: Path, rtx: Flavour, missing: bool = False) -> None:
    ready_engines("small", "float16", CONFIG, rtx, graphs=folder / "graphs", folder=folder / "engines", missing=missing)


def test_engines_are_kept_renewed_or_built(copy, rtx):
    folder = copy / "engines" / "small" / "float16"
    decode, encode = folder / "codec_decode.engine", folder / "codec_encode.engine"
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("*.engine")}
    ready(copy, rtx)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.engine")} == kept
    decode.write_bytes(decode.read_bytes()[:-10])
    encode.unlink()
    ready(copy, rtx)
    assert read_engine(decode, CONFIG) and decode.stat().st_size == find(copy, "codec_decode")[None].report.bytes
    assert not encode.exists()  # it was not asked for
    ready(copy, rtx, missing=True)
    assert encode.is_file()


def test_engines_whose_graphs_are_gone_stay(copy, rtx):
    folder = copy / "engines" / "small" / "float16"
    shutil.rmtree(copy / "graphs")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.engine")}
    ready(copy, rtx, missing=True)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.engine")} == before
    (folder / "codec_encode.engine").unlink()
    ready(copy, rtx)
    with pytest.raises(GraphError, match="codec_encode was not exported as float16"):
        ready(copy, rtx, missing=True)


def test_no_more_columns_are_built_than_the_model_takes(root):
    assert max(tensorrt_buckets.BUILT_CAPACITIES) > CONFIG.max_seq_len == 128
    assert max(find(root, "frame")) == 128


def test_output_allocator_grows_and_tells_the_shape(rtx):
    allocator = output_allocator(rtx, torch.device("cpu"), torch.int64)
    first = allocator.reallocate_output_async("codes", 0, 48, 256, 0)
    allocator.buffer.view(torch.int64).copy_(torch.arange(6))
    assert allocator.reallocate_output_async("codes", first, 16, 256, 0) == first  # there is room already
    allocator.notify_shape("codes", rtx.module.Dims((2, 3)))
    assert torch.equal(allocator.tensor(), torch.arange(6).view(2, 3))
    assert allocator.reallocate_output_async("codes", first, 4800, 256, 0) == allocator.buffer.data_ptr()
    assert allocator.buffer.numel() == 4800


OWNERS = {
    "context": "IExecutionContext",
    "_engine": "ICudaEngine",
    "_runtime": "Runtime",
    "settings": "IRuntimeConfig",
}


def test_every_call_exists_in_the_installed_tensorrt(rtx):
    """The calls cannot be made here, but they can be looked up."""
    import fstrt_helpers.runtimes.tensorrt as caller
    import fstrt_helpers.runtimes.tensorrt_engine as engine

    found: dict[str, set[str]] = {owner: set() for owner in OWNERS.values()}
    for module in (caller, engine):
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=called) if name in OWNERS:
                    if not (name == "_engine" and module is caller) and not (name == "_runtime" and module is caller):
                        found[OWNERS[name]].add(called)
                case ast.Call(
                    func=ast.Name(id="getattr"), args=[ast.Attribute(attr=name), ast.Constant(value=str(called)), *_]
                ):
                    if name in OWNERS:
                        found[OWNERS[name]].add(called)
    for owner, names in found.items():
        assert names, owner
        missing = [name for name in names if not hasattr(getattr(rtx.module, owner), name)]
        assert missing == [], owner
    assert {"set_input_shape", "infer_shapes", "set_tensor_address", "execute_async_v3", "set_device_memory",
            "is_stream_capturable", "set_output_allocator"} <= found["IExecutionContext"]  # fmt: skip
    assert {"create_execution_context", "get_aliased_input_tensor", "device_memory_size_v2"} <= found["ICudaEngine"]
    trt = rtx.module
    assert trt.ExecutionContextAllocationStrategy.USER_MANAGED and trt.DynamicShapesKernelSpecializationStrategy.EAGER
