"""The metrics page: calls, engines, GPUs, worker processes and memory."""

import os
import re
import subprocess
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import EngineUnavailableError
from dragoman_server.core.requests import FinishReason
from dragoman_server.machine import free_memory
from dragoman_server.metrics import (
    REQUEST_SECONDS,
    STEP_SECONDS,
    Histogram,
    ModelLoad,
    ModelMetrics,
    ServerMetrics,
    geometric,
)
from dragoman_server.metrics.machine import GpuMetrics
from tests.support.fake_engines import FakeEngines, serve_fake
from tests.support.metrics_page import documented, exposed
from tests.support.waiting import until_async


def value(metrics: ServerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model": "m", "version": "1", **labels})


def test_buckets_suit_steps_and_requests() -> None:
    assert geometric(1, 8, 4) == [1, 2, 4, 8]
    assert (STEP_SECONDS[0], STEP_SECONDS[-1], len(STEP_SECONDS)) == (0.0002, 2, 16)
    assert (REQUEST_SECONDS[0], REQUEST_SECONDS[-1], len(REQUEST_SECONDS)) == (0.001, 60, 20)


def test_a_histogram_counts_equal_values_at_once_and_includes_its_bounds() -> None:
    histogram = Histogram([1.0, 2.0])
    histogram.observe(1.0, 3)
    histogram.observe(1.5)
    histogram.observe(9.0, 2)
    assert (histogram.counts, histogram.sum) == ([3, 1, 2], 22.5)


def test_engine_reports_are_exposed() -> None:
    metrics = ServerMetrics()
    engine: EngineMetrics = metrics.model("m")
    engine.encoded(0.001, rows=2, source_tokens=9, padding_tokens=3)
    engine.stepped(0.0003, rows=2, gap_seconds=None)
    engine.stepped(0.0003, rows=2, gap_seconds=0.001)
    engine.admitted(0.002)
    engine.first_token(0.003)
    engine.finished(FinishReason.EOS, 5, 7, 0.01)
    engine.finished(FinishReason.LENGTH, 4, 8, 0.02)
    engine.dropped("expired", "waiting")
    engine.device_error("out_of_memory")
    metrics.model("m").scored(0.001, rows=3, target_tokens=21)
    engine.state(0, running=2, max_rows=32)
    engine.state(1, running=1, max_rows=32)
    engine.queue(lambda: (5, 31))
    engine.cache(0, 1024)
    metrics.loaded("m", "1", ModelLoad(1.5, "cuda:0", "fp16", fallback=False))
    assert value(metrics, "dragoman_encode_seconds_count") == 1
    assert value(metrics, "dragoman_source_tokens_total") == 9
    assert value(metrics, "dragoman_padding_tokens_total") == 3
    assert value(metrics, "dragoman_target_tokens_total") == 15
    assert value(metrics, "dragoman_step_seconds_bucket", le="0.00037") == 2
    assert value(metrics, "dragoman_step_rows_sum") == 4
    assert value(metrics, "dragoman_inter_token_seconds_count") == 2
    assert value(metrics, "dragoman_queue_seconds_sum") == 0.002
    assert value(metrics, "dragoman_first_token_seconds_count") == 1
    assert value(metrics, "dragoman_generation_seconds_count") == 2
    assert value(metrics, "dragoman_target_length_tokens_bucket", le="8.0") == 2
    assert value(metrics, "dragoman_finishes_total", reason="length") == 1
    assert value(metrics, "dragoman_finishes_total", reason="time_limit") == 0
    assert value(metrics, "dragoman_drops_total", reason="expired", phase="waiting") == 1
    assert value(metrics, "dragoman_device_errors_total", kind="out_of_memory") == 1
    assert value(metrics, "dragoman_device_errors_total", kind="other") == 0
    assert value(metrics, "dragoman_requests_waiting") == 5
    assert value(metrics, "dragoman_queue_tokens") == 31
    assert value(metrics, "dragoman_score_seconds_count") == 1
    assert value(metrics, "dragoman_score_rows_sum") == 3
    assert value(metrics, "dragoman_scored_tokens_total") == 21
    assert value(metrics, "dragoman_rows_running", engine="0") == 2
    assert value(metrics, "dragoman_rows", engine="1") == 32
    assert value(metrics, "dragoman_cache_bytes", engine="0") == 1024
    assert value(metrics, "dragoman_model_load_seconds") == 1.5
    assert value(metrics, "dragoman_device_info", device="cuda:0", precision="fp16") == 1
    assert value(metrics, "dragoman_device_fallback") == 0


def test_metrics_of_a_version_disappear_with_it() -> None:
    metrics = ServerMetrics()
    first, second = ModelMetrics(), ModelMetrics()
    for version, reports in (("1", first), ("2", second)):
        metrics.show("m", version, reports)
        metrics.loaded("m", version, ModelLoad(1.5, "cpu", "fp32", fallback=False))
        reports.dropped("failed", "waiting")
    metrics.load_failed("m")
    labels = {"model": "m", "reason": "failed", "phase": "waiting"}
    for version in ("1", "2"):
        assert metrics.registry.get_sample_value("dragoman_drops_total", {**labels, "version": version}) == 1
    metrics.unloaded("m", "1", first)
    page = generate_latest(metrics.registry).decode()
    assert 'version="1"' not in page
    assert 'dragoman_device_info{device="cpu",model="m",precision="fp32",version="2"} 1.0' in page

    reloaded = ModelMetrics()
    metrics.show("m", "2", reloaded)
    metrics.unloaded("m", "2", second)  # while the reloaded version serves
    assert 'version="2"' in generate_latest(metrics.registry).decode()
    metrics.unloaded("m", "2", reloaded)
    metrics.forget("m")
    assert 'model="m"' not in generate_latest(metrics.registry).decode()


def test_worker_restarts_start_at_zero_for_every_reason() -> None:
    metrics = ServerMetrics()

    def of(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"worker": "0", **labels})

    metrics.worker_up("0", True)
    assert (of("dragoman_worker_up"), of("dragoman_worker_restarts_total", reason="hung")) == (1, 0)
    metrics.worker_up("0", False)
    metrics.worker_restarted("0", "died")
    assert of("dragoman_worker_up") == 0
    assert [of("dragoman_worker_restarts_total", reason=reason) for reason in ("died", "hung", "errors")] == [1, 0, 0]


def test_concurrent_reports_of_engines_are_all_counted() -> None:
    metrics = ServerMetrics()
    engine = metrics.model("m")

    def report() -> None:
        for _ in range(20_000):
            engine.stepped(0.001, 3, 0.002)

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        generate_latest(metrics.registry)
    assert value(metrics, "dragoman_step_seconds_count") == 80_000
    assert value(metrics, "dragoman_inter_token_seconds_count") == 240_000


async def test_calls_are_counted_by_method_and_code() -> None:
    async with serve_fake() as server:
        await server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="a")))
        for method in ("Guess", "Guess", "Hope"):
            with pytest.raises(Exception, match="Method not found"):
                await server.send_bytes(method, b"")
        await server.health_stub.Check(health_pb2.HealthCheckRequest())
        generate = "dragoman.v1.GenerationService/Generate"
        assert server.metric("dragoman_requests_total", method=generate, code="OK") == 1
        assert server.metric("dragoman_request_seconds_count", method=generate) == 1
        assert server.metric("dragoman_requests_total", method="unknown", code="UNIMPLEMENTED") == 3
        assert server.metric("dragoman_requests_total", method="grpc.health.v1.Health/Check", code="OK") == 1


async def test_error_counters_start_at_zero() -> None:
    generate = "dragoman.v1.GenerationService/Generate"
    async with serve_fake(FakeEngines(automatic=False)) as server:
        call = server.stub.Generate(pb.GenerateRequest(input=pb.Input(text="a")))
        await server.engines.until(1)
        codes = ("OK", "UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
        counts = [
            server.metrics.registry.get_sample_value("dragoman_requests_total", {"method": generate, "code": code})
            for code in codes
        ]
        assert counts == [0] * len(codes)
        server.engines.running[0].finish(EngineUnavailableError("gone"))
        with pytest.raises(Exception, match="gone"):
            await call
        # The client gets the status a moment before the call is counted.
        await until_async(lambda: server.metric("dragoman_requests_total", method=generate, code="UNAVAILABLE") == 1)


async def test_the_page_parses_and_follows_the_naming_rules() -> None:
    async with serve_fake() as server:
        server.metrics.model("m").state(0, 0, 1)
        request = pb.GenerateRequest(model="no such model", input=pb.Input(text="a"))
        with pytest.raises(Exception, match="not served here"):
            await server.stub.Generate(request)
        page = generate_latest(server.metrics.registry).decode()
    families = list(text_string_to_metric_families(page))
    ours = [family for family in families if family.name.startswith("dragoman_")]
    assert len(ours) > 20
    assert {family.name.split("_")[0] for family in families} <= {"dragoman", "process", "python"}
    assert "no such model" not in page
    allowed = {"model", "version", "method", "code", "reason", "phase", "engine", "device", "precision", "le"}
    allowed |= {"kind", "worker", "gpu"}
    for family in ours:
        assert family.documentation
        assert family.type != "unknown", family.name
        if not family.name.endswith("_info"):
            assert {label for sample in family.samples for label in sample.labels} <= allowed, family.name
        if family.type == "histogram":
            assert re.search(r"_(seconds|rows|tokens)$", family.name), family.name


class DriverError(Exception):
    pass


def driver(**answers: Any) -> Any:
    """Returns a `pynvml` with two GPUs; the second, a MIG slice, does not support all queries."""

    def only_first(value: float) -> Any:
        def query(gpu: int, *_: Any) -> float:
            if gpu:
                raise DriverError("Not Supported")
            return value

        return query

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


def test_gpus_have_the_documented_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = gpus(monkeypatch, driver())
    table = {name: row for name, row in documented().items() if name.startswith("dragoman_gpu_")}
    assert exposed(generate_latest(registry).decode()) == table
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
def test_without_gpus_there_are_no_gpu_metrics(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    registry = gpus(monkeypatch, module)
    assert exposed(generate_latest(registry).decode()) == {}


def test_workers_have_the_documented_metrics() -> None:
    metrics = ServerMetrics()
    with subprocess.Popen(["sleep", "60"]) as process:
        metrics.worker_up("0", True, process.pid)
        metrics.worker_up("1", True, os.getpid())
        page = generate_latest(metrics.registry).decode()
        process.kill()
    table = {name: row for name, row in documented().items() if name.startswith("dragoman_worker_")}
    assert {name: row for name, row in exposed(page).items() if name.startswith("dragoman_worker_")} == table

    def of(name: str, worker: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"worker": worker})

    resident, cpu = "dragoman_worker_resident_memory_bytes", "dragoman_worker_cpu_seconds_total"
    assert (of(resident, "1") or 0) > 20 << 20
    assert (of(cpu, "1") or 0) > 0.1
    assert (of("dragoman_worker_up", "0"), of(resident, "0"), of(cpu, "0")) == (1, None, None), "it has ended"
    metrics.worker_up("1", False)
    assert (of("dragoman_worker_up", "1"), of(resident, "1")) == (0, None)


def test_available_memory_is_exposed() -> None:
    value = ServerMetrics().registry.get_sample_value("dragoman_memory_available_bytes")
    assert value == pytest.approx(free_memory()[0], rel=0.2)
