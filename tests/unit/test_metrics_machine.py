"""What is told of GPUs, worker processes and memory."""

import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from dragoman_server.machine import free_memory
from dragoman_server.metrics import ServerMetrics
from dragoman_server.metrics.machine import GpuMetrics
from tests.support.metrics_table import documented, told


class DriverError(Exception):
    pass


def driver(**answers: Any) -> Any:
    """A `pynvml` of two GPUs, of which the second, a part of one, can't tell everything."""

    def only_first(value: float) -> Any:
        def tell(gpu: int, *_: Any) -> float:
            if gpu:
                raise DriverError("Not Supported")
            return value

        return tell

    module: Any = ModuleType("pynvml")
    module.NVMLError, module.NVML_TEMPERATURE_GPU = DriverError, 0
    module.nvmlInit = lambda: None
    module.nvmlSystemGetDriverVersion = lambda: "580.1"
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetUUID = lambda gpu: f"GPU-{gpu}"
    module.nvmlDeviceGetName = lambda gpu: b"NVIDIA H100"
    module.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(total=80 << 30, used=(1 + gpu) << 30)
    module.nvmlDeviceGetUtilizationRates = lambda gpu: SimpleNamespace(gpu=only_first(75)(gpu))
    module.nvmlDeviceGetTemperature = only_first(41)
    module.nvmlDeviceGetPowerUsage = only_first(350_500)
    for name, answer in answers.items():
        setattr(module, name, answer)
    return module


def gpus(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> CollectorRegistry:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    registry = CollectorRegistry()
    registry.register(GpuMetrics())
    return registry


def test_gpus_are_told_of_as_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = gpus(monkeypatch, driver())
    table = {name: row for name, row in documented().items() if name.startswith("dragoman_gpu_")}
    assert told(generate_latest(registry).decode()) == table
    named = {"gpu": "1", "uuid": "GPU-1", "name": "NVIDIA H100", "driver": "580.1"}
    assert registry.get_sample_value("dragoman_gpu_info", named) == 1
    names = ("memory_bytes", "memory_used_bytes", "utilization_ratio", "temperature_celsius", "power_watts")
    values = [[registry.get_sample_value(f"dragoman_gpu_{name}", {"gpu": gpu}) for name in names] for gpu in "01"]
    assert values == [[80 << 30, 1 << 30, 0.75, 41, 350.5], [80 << 30, 2 << 30, None, None, None]]


def refuse() -> None:
    raise DriverError("Driver Not Loaded")


@pytest.mark.parametrize(
    "module", [None, driver(nvmlInit=refuse), driver(nvmlDeviceGetCount=refuse)], ids=["library", "driver", "answer"]
)
def test_without_gpus_nothing_is_told_of_them(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    registry = gpus(monkeypatch, module)
    assert told(generate_latest(registry).decode()) == {}


def test_workers_are_told_of_as_documented() -> None:
    metrics = ServerMetrics()
    with subprocess.Popen(["sleep", "60"]) as process:
        metrics.worker_up("0", True, process.pid)
        metrics.worker_up("1", True, os.getpid())
        page = generate_latest(metrics.registry).decode()
        process.kill()
    table = {name: row for name, row in documented().items() if name.startswith("dragoman_worker_")}
    assert {name: row for name, row in told(page).items() if name.startswith("dragoman_worker_")} == table

    def of(name: str, worker: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"worker": worker})

    resident, cpu = "dragoman_worker_resident_memory_bytes", "dragoman_worker_cpu_seconds_total"
    assert (of(resident, "1") or 0) > 20 << 20
    assert (of(cpu, "1") or 0) > 0.1
    assert (of("dragoman_worker_up", "0"), of(resident, "0"), of(cpu, "0")) == (1, None, None), "it has ended"
    metrics.worker_up("1", False)
    assert (of("dragoman_worker_up", "1"), of(resident, "1")) == (0, None)


def test_memory_that_is_left_is_told() -> None:
    value = ServerMetrics().registry.get_sample_value("dragoman_memory_available_bytes")
    assert value == pytest.approx(free_memory()[0], rel=0.2)
