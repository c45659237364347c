"""What can be said of device memory without a device: the errors. The rest is in tests/gpu."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from fstrt_helpers.errors import EnvironmentMissing, ParameterError
from fstrt_helpers.runtimes.buffers import open_memory


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ParameterError, match="auto, pycuda or torch"):
        open_memory(torch.device("cuda", 0), "managed")


def test_a_cpu_is_no_gpu():
    with pytest.raises(ParameterError, match="no GPU"):
        open_memory(torch.device("cpu"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("kind", ["auto", "torch", "pycuda"])
def test_without_a_gpu_it_says_so(kind):
    with pytest.raises(EnvironmentMissing, match="no CUDA device"):
        open_memory(torch.device("cuda", 0), kind)


def test_importing_it_imports_neither_pycuda_nor_triton():
    program = (
        "import sys; from fstrt_helpers.runtimes import buffers, captured_codec, fused, pool, tensorrt;"
        "print([m for m in ('pycuda', 'triton', 'tensorrt', 'tensorrt_rtx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
