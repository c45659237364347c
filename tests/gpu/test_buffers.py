"""Device memory that two libraries see without a copy, page-locked memory, and a stream of our own."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fstrt_helpers.errors import EnvironmentMissing, ParameterError
from fstrt_helpers.runtimes.buffers import DeviceMemory, open_memory

pytestmark = pytest.mark.gpu
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8)


@pytest.fixture(params=["torch", "pycuda"])
def memory(gpu, request) -> DeviceMemory:
    if request.param == "pycuda" and importlib.util.find_spec("pycuda") is None:
        pytest.skip("pycuda is not installed (requirements-gpu.txt)")
    return open_memory(gpu, request.param)


def current_context() -> int:
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value or 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_memory_is_an_ordinary_tensor(memory, gpu, dtype):
    tensor = memory.empty((3, 5, 7), dtype)
    assert tensor.shape == (3, 5, 7) and tensor.dtype == dtype and tensor.device == gpu and tensor.is_contiguous()
    assert tensor.data_ptr() % 256 == 0
    tensor.fill_(1)
    assert tensor.float().sum().item() == 105


def test_torch_sees_the_same_bytes_through_the_array_interface(memory, gpu):
    tensor = memory.empty((64,), torch.uint8)
    interface = {"shape": (64,), "typestr": "|u1", "data": (tensor.data_ptr(), False), "version": 3}
    view = torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device=gpu)
    view.copy_(torch.arange(64, dtype=torch.uint8))
    assert tensor.tolist() == list(range(64))
    tensor.add_(1)
    assert view.tolist() == list(range(1, 65))


def test_pycuda_and_torch_see_the_same_bytes(gpu):
    if importlib.util.find_spec("pycuda") is None:
        pytest.skip("pycuda is not installed (requirements-gpu.txt)")
    memory = open_memory(gpu, "pycuda")
    import pycuda.driver as driver

    tensor = memory.empty((100,), torch.float32)
    given, taken = np.arange(100, dtype=np.float32), np.zeros(100, dtype=np.float32)
    with memory._current():
        driver.memcpy_htod(tensor.data_ptr(), given)
    assert torch.equal(tensor.cpu(), torch.from_numpy(given))
    tensor.mul_(2)
    torch.cuda.synchronize()
    with memory._current():
        driver.memcpy_dtoh(taken, tensor.data_ptr())
    assert np.array_equal(taken, 2 * given)


def test_page_locked_memory_is_copied_beside_the_host(memory, gpu):
    host = memory.page_locked((1000, 9), torch.int64)
    assert host.is_pinned() and host.shape == (1000, 9) and host.dtype == torch.int64
    device = memory.empty((1000, 9), torch.int64)
    with torch.cuda.stream(memory.stream):
        device.copy_(torch.arange(9000, device=gpu).view(1000, 9))
        host.copy_(device, non_blocking=True)
        event = torch.cuda.Event()
        event.record(memory.stream)
    event.synchronize()
    assert host.flatten().tolist() == list(range(9000))


def test_the_stream_is_one_of_its_own_and_keeps_order(memory, gpu):
    assert memory.stream.cuda_stream not in (0, torch.cuda.default_stream(gpu).cuda_stream)
    tensor = memory.empty((1 << 20,), torch.float32)
    with torch.cuda.stream(memory.stream):
        tensor.zero_()
        for _ in range(50):
            tensor.add_(1)
    memory.stream.synchronize()
    assert tensor.min().item() == tensor.max().item() == 50


def test_pycuda_leaves_the_context_as_it_was(gpu):
    if importlib.util.find_spec("pycuda") is None:
        pytest.skip("pycuda is not installed (requirements-gpu.txt)")
    torch.ones(1, device=gpu)
    before = current_context()
    memory = open_memory(gpu, "pycuda")
    memory.empty((10,), torch.float32)
    assert before and current_context() == before
    found: list[float] = []

    def elsewhere() -> None:  # a thread that has no context yet
        found.append(memory.empty((10,), torch.float32).fill_(3).sum().item())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [30.0]


def test_memory_goes_back_with_the_last_tensor(memory, driver_mb, record_property):
    tensor = memory.empty((256 << 20,), torch.uint8)
    view = tensor[: 1 << 20].view(torch.float32)
    held = driver_mb()
    del tensor
    gc.collect()
    assert driver_mb() > held - 200  # the view still needs it
    del view
    freed = held - driver_mb()
    record_property("freed_mb", round(freed, 1))
    assert freed > 200


def test_bytes_are_counted_and_nothing_is_a_tensor_too(memory):
    before = memory.allocated
    memory.empty((10, 10), torch.float16)
    assert memory.allocated - before == 200
    assert memory.empty((0, 4), torch.float32).shape == (0, 4)


def test_what_cannot_be_opened(gpu):
    with pytest.raises(ParameterError, match="no device memory 'cupy'"):
        open_memory(gpu, "cupy")
    with pytest.raises(ParameterError, match="cpu is no GPU"):
        open_memory(torch.device("cpu"))
    if importlib.util.find_spec("pycuda") is None:
        with pytest.raises(EnvironmentMissing, match="pycuda is not installed"):
            open_memory(gpu, "pycuda")
    assert open_memory(gpu).name == ("torch" if importlib.util.find_spec("pycuda") is None else "pycuda")
