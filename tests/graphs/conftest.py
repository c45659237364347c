"""The four graphs of a small random checkpoint, exported once."""

from __future__ import annotations

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
