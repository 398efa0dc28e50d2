"""What is told of a real GPU."""

import pytest
from prometheus_client import CollectorRegistry

from dragoman_server.metrics.machine import GpuMetrics

pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, of the extra `server-gpu`")


@pytest.mark.gpu
def test_a_gpu_tells_its_memory() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    registry = CollectorRegistry()
    registry.register(GpuMetrics())
    total = registry.get_sample_value("dragoman_gpu_memory_bytes", {"gpu": "0"})
    used = registry.get_sample_value("dragoman_gpu_memory_used_bytes", {"gpu": "0"})
    assert total is not None
    assert used is not None
    assert 0 < used < total
    assert total == pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
