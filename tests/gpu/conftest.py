"""Tests that need a GPU, and the record of a run: ``python -m pytest -m gpu``.

What a machine cannot do is skipped with its reason. The record, ``outputs/benchmarks/gpu-tests.json``, has a row per
test: what came out, how long it took, why it was not run, and the figures it noted. Graphs are taken from
``outputs/graphs``, or from the folder that ``FSTRT_TEST_GRAPHS`` names, and exported where they are missing.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fstrt_helpers.checkpoint import Checkpoint, find_checkpoint
from fstrt_helpers.errors import GraphError
from fstrt_helpers.graphs.manifest import graph_path, read_manifest
from fstrt_helpers.graphs.spec import GRAPHS
from fstrt_helpers.model.frame import legal_rows
from fstrt_helpers.runtimes.torch import torch_runtimes
from fstrt_helpers.text.prompt import build_prompt

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "outputs" / "benchmarks" / "gpu-tests.json"
_rows: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what came of each test here."""
    name = report.nodeid.replace("\\", "/").rpartition("tests/gpu/")
    if not name[1]:
        return
    row = _rows.setdefault(name[2], {"test": name[2], "outcome": "passed", "seconds": 0.0, "not_run": None})
    row["seconds"] = round(row["seconds"] + report.duration, 3)
    row |= dict(report.user_properties)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        row |= {"outcome": "skipped", "not_run": reason.removeprefix("Skipped: ")}
    elif report.failed:
        row |= {"outcome": "failed", "error": str(report.longrepr)[-2000:]}


def pytest_sessionfinish() -> None:
    """Writes the record, if anything ran: a machine without a GPU has nothing to tell."""
    if not any(row["outcome"] != "skipped" for row in _rows.values()):
        return
    from fstrt_helpers.measure.provenance import describe_machine, describe_versions, git_commit

    record = {
        "schema": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "what": "python -m pytest -m gpu",
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commit": git_commit(),
        "rows": list(_rows.values()),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    draft = RECORD.with_name(f".{RECORD.name}.{os.getpid()}")
    draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, RECORD)


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The GPU that PyTorch runs on."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def tiny(gpu: torch.device) -> Checkpoint:
    return find_checkpoint("tiny")


@pytest.fixture(scope="session")
def torch_models(gpu: torch.device, tiny: Checkpoint) -> Callable[[torch.dtype], SimpleNamespace]:
    """`tiny` on the GPU in a type: runtimes, and a prompt [1, 9, S]."""
    kept: dict[torch.dtype, SimpleNamespace] = {}

    def load(dtype: torch.dtype) -> SimpleNamespace:
        if dtype not in kept:
            tokenizer, dual_ar = tiny.tokenizer(), tiny.load_dual_ar()
            rows = legal_rows(dual_ar, tokenizer.im_end_id)
            runtimes = torch_runtimes(dual_ar.to(gpu, dtype), tiny.load_codec().to(gpu, dtype), rows)
            prompt = build_prompt(tokenizer, "The boat sails at noon.", [], tiny.config.num_codebooks)
            kept[dtype] = SimpleNamespace(
                checkpoint=tiny,
                config=tiny.config,
                runtimes=runtimes,
                spec=runtimes["frame"].spec,
                end=tokenizer.im_end_id,
                semantic_begin_id=tokenizer.semantic_begin_id,
                prompt=torch.from_numpy(prompt)[None],
            )
        return kept[dtype]

    return load


@pytest.fixture(scope="session")
def graphs(tiny: Checkpoint) -> Callable[[str], Path]:
    """Root of the exported graphs of `tiny`, after those with a label such as ``float16-logits`` were made sure of."""
    root = Path(os.environ.get("FSTRT_TEST_GRAPHS", ROOT / "outputs" / "graphs"))

    def make_sure(label: str, wanted: tuple[str, ...] = GRAPHS) -> Path:
        try:
            for graph in wanted:
                read_manifest(graph_path(root, tiny.name, label, graph), fingerprint=tiny.fingerprint)
        except GraphError:
            if missing := [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]:
                pytest.skip(f"the graphs {label} are not there, and exporting them needs {', '.join(missing)}")
            _export(tiny, label, wanted, root)
        return root

    return make_sure


def _export(checkpoint: Checkpoint, label: str, wanted: tuple[str, ...], root: Path) -> None:
    from fstrt_helpers.graphs.export import export_graphs

    precision, *rest = label.split("-")
    if precision == "int8":
        from fstrt_helpers.graphs.precision import quantise_graphs

        quantise_graphs(checkpoint, precision=precision, graphs=wanted, logits="logits" in rest, folder=root)
    else:
        attention = "decomposed" if "decomposed" in rest else "fused"
        logits = "logits" in rest
        export_graphs(checkpoint, precision=precision, graphs=wanted, attention=attention, logits=logits, folder=root)


@pytest.fixture(scope="session")
def driver_mb(gpu: torch.device) -> Callable[[], float]:
    """Memory in use on the GPU as the driver counts it, in MB, when all work is done and PyTorch's cache is empty."""
    from fstrt_helpers.measure.memory import driver_used

    read = driver_used()
    if read is None:
        pytest.skip("the driver does not tell how much memory is in use")

    def now() -> float:
        import gc

        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return read()

    return now


@pytest.fixture(scope="session")
def trt(gpu: torch.device) -> Any:
    """A TensorRT that runs engines on this GPU."""
    from fstrt_helpers.engines.flavour import load_trt
    from fstrt_helpers.errors import EnvironmentMissing

    try:
        flavour = load_trt()
    except EnvironmentMissing as error:
        pytest.skip(f"{error.what}: {error.where}")
    if not flavour.runs_here:
        pytest.skip(f"{flavour.name} {flavour.version} runs no engines here: {flavour.why_not_here}")
    return flavour
