"""The Triton kernels draw what the PyTorch module draws: in Triton's interpreter, on a CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fstrt_helpers.errors import EnvironmentMissing, ParameterError
from fstrt_helpers.runtimes.fused import MOST_ROWS, FusedFrame, fused_missing

from .conftest import new_state

TRITON = importlib.util.find_spec("triton") is not None


@pytest.mark.slow
@pytest.mark.skipif(not TRITON, reason="Triton is not installed; PyTorch's CUDA builds for Linux bring it")
def test_kernels_draw_what_the_module_draws(root: Path, tmp_path: Path):
    environment = os.environ | {"TRITON_INTERPRET": "1", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "tests.runtimes.fused_on_cpu", str(tmp_path / "random")]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["case"] for case in cases] == ["mid-speech", "three rows"]
    for case in cases:
        assert case["fused"] == case["plain"]
        assert case["cache_error"] <= 1e-5 < case["cache_change"]
        assert case["doubt"] == 0


def test_says_what_it_cannot_do(random_model):
    width = random_model.config.head_dim
    assert width == 8
    missing = fused_missing(random_model.config)
    assert missing == (f"heads are {width} wide, not a power of two from 16 on" if TRITON else missing) and missing
    with pytest.raises(EnvironmentMissing, match="no fused frame: "):
        FusedFrame(random_model.runtimes["frame"].module, new_state(random_model))


@pytest.mark.skipif(not TRITON, reason="Triton is not installed; PyTorch's CUDA builds for Linux bring it")
def test_takes_no_more_rows_than_it_has_kernels_for(tiny_model):
    with torch.inference_mode(), pytest.raises(ParameterError, match=f"at most {MOST_ROWS}"):
        FusedFrame(tiny_model.runtimes["frame"].module, new_state(tiny_model, 64, batch=MOST_ROWS + 1))
