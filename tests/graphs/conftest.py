"""The four graphs of a small random checkpoint, exported once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fstrt_helpers.checkpoint import find_checkpoint
from fstrt_helpers.graphs.export import export_graphs
from fstrt_helpers.graphs.spec import GRAPHS
from fstrt_helpers.speech.backends import open_backend

from ..checkpoints import write_random_checkpoint


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Checkpoint, paths, and both back ends over the same weights."""
    checkpoint = find_checkpoint(write_random_checkpoint(tmp_path_factory.mktemp("export") / "random"))
    root = tmp_path_factory.mktemp("graphs")
    seen: list[str] = []
    paths = export_graphs(checkpoint, folder=root, progress=lambda graph, done, total: seen.append(f"{done}/{total}"))
    assert seen == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    assert tuple(paths) == GRAPHS
    return SimpleNamespace(
        checkpoint=checkpoint,
        root=root,
        paths=paths,
        torch=open_backend(checkpoint, "torch", "float32").runtimes,
        ort=open_backend(checkpoint, "onnxruntime", "float32", root).runtimes,
    )


def cache(config, rows: int, capacity: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """An empty KV cache."""
    shape = (rows, config.n_local_heads, capacity, config.head_dim)
    return {f"{kind}_{i}": torch.zeros(shape, dtype=dtype) for i in range(config.n_layer) for kind in "kv"}


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """All four graphs in float16 on ONNX Runtime, and the same checkpoint in PyTorch in float32.

    The checkpoint is `tiny`, the trained one. Where it is missing, one with random weights stands in: enough for
    mechanics, not for what a real distribution does. Heads are 32 wide in both: TensorRT has no kernel below 16.
    """
    trained = (Path(__file__).resolve().parents[2] / "data" / "tiny" / "model.pth").is_file()
    folder = tmp_path_factory.mktemp("half")
    checkpoint = find_checkpoint("tiny" if trained else write_random_checkpoint(folder / "random", dim=128))
    paths = export_graphs(checkpoint, precision="float16", folder=folder / "graphs")
    return SimpleNamespace(
        checkpoint=checkpoint,
        trained=trained,
        paths=paths,
        torch=open_backend(checkpoint, "torch", "float32").runtimes,
        ort=open_backend(checkpoint, "onnxruntime", "float16", folder / "graphs").runtimes,
    )
