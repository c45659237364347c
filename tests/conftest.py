"""Settings for every test, the notebooks' kernels included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Inherited by the notebooks' kernels: two threads sum in the same order on every machine; no progress bars, no colours.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")

NOTEBOOK_OUTPUT_TIMEOUT = 120  # seconds; nbval waits 5 for each piece of output, which a busy machine exceeds


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if hasattr(item, "output_timeout"):  # a notebook cell
            item.output_timeout = NOTEBOOK_OUTPUT_TIMEOUT
