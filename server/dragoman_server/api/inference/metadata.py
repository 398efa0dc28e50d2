"""Descriptions of the server and its models in the Open Inference Protocol."""

from importlib.metadata import version

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.outputs import DEFAULT_OUTPUTS, OUTPUTS
from dragoman_server.api.inference.tensors import INPUT
from dragoman_server.metrics import Histogram, ModelMetrics

PLATFORM = "dragoman"
EXTENSIONS = ["model_repository", "model_configuration", "statistics"]
DATA_TYPES = {"BYTES": oip.TYPE_STRING, "FP32": oip.TYPE_FP32, "UINT64": oip.TYPE_UINT64}
STATES = {
    pb.MODEL_STATE_READY: "READY",
    pb.MODEL_STATE_LOADING: "LOADING",
    pb.MODEL_STATE_FAILED: "UNAVAILABLE",
    pb.MODEL_STATE_RETIRING: "UNLOADING",
    pb.MODEL_STATE_UNLOADED: "UNAVAILABLE",
}


def server_metadata() -> oip.ServerMetadataResponse:
    """Describes the server."""
    return oip.ServerMetadataResponse(name=PLATFORM, version=version("dragoman"), extensions=EXTENSIONS)


def model_metadata(model: pb.Model, versions: list[str]) -> oip.ModelMetadataResponse:
    """Describes the inputs and outputs of a model.

    Args:
        versions: The versions of the model that are served.
    """
    tensor = oip.ModelMetadataResponse.TensorMetadata
    return oip.ModelMetadataResponse(
        name=model.name,
        versions=versions,
        platform=PLATFORM,
        inputs=[tensor(name=INPUT, datatype="BYTES", shape=[-1, 1])],
        outputs=[tensor(name=name, datatype=OUTPUTS[name].datatype, shape=[-1, -1]) for name in DEFAULT_OUTPUTS],
    )


def model_config(model: pb.Model) -> oip.ModelConfig:
    """Describes the configuration of a model, with its limits as parameters.

    NOTE: not decoupled, although a stream has many responses per request: clients do not call ModelInfer for a
    decoupled model, because Triton does not support it.
    """
    limits = {"max_source_tokens": model.max_source_tokens, "max_target_tokens": model.max_target_tokens}
    limits |= {f"max_{field.name}": limit for field, limit in model.limits.ListFields()}
    return oip.ModelConfig(
        name=model.name,
        platform=PLATFORM,
        backend=PLATFORM,
        max_batch_size=model.limits.batch_items,
        input=[oip.ModelInput(name=INPUT, data_type=oip.TYPE_STRING, dims=[1])],
        output=[
            oip.ModelOutput(name=name, data_type=DATA_TYPES[OUTPUTS[name].datatype], dims=[-1])
            for name in DEFAULT_OUTPUTS
        ],
        parameters={name: oip.ModelParameter(string_value=str(value)) for name, value in limits.items()},
        model_transaction_policy=oip.ModelTransactionPolicy(decoupled=False),
    )


def model_statistics(model: pb.Model, metrics: ModelMetrics) -> oip.ModelStatistics:
    """Returns what the engines of a model have counted, by whichever API the requests arrived.

    Every input of a batch counts as a request. Preparing inputs and outputs overlaps with the steps of other requests
    and has no timing of its own: it is part of compute_infer.

    NOTE: perf_analyzer stops if the three counts of compute_* differ.
    """
    with metrics.lock:
        answered, waited = _duration(metrics.generation_seconds), _duration(metrics.queue_seconds)
        computed = max(0, answered.ns - waited.ns)
        failed = sum(metrics.drops.values())
        encoder_runs = sum(metrics.encode_seconds.counts)
        cache_bytes = sum(metrics.cache_bytes.values())
    device, _, index = model.device.partition(":")
    return oip.ModelStatistics(
        name=model.name,
        version=model.version,
        inference_count=answered.count,
        execution_count=encoder_runs,
        inference_stats=oip.InferStatistics(
            success=answered,
            fail=oip.StatisticDuration(count=failed),
            queue=waited,
            compute_input=oip.StatisticDuration(count=answered.count),
            compute_infer=oip.StatisticDuration(count=answered.count, ns=computed),
            compute_output=oip.StatisticDuration(count=answered.count),
        ),
        memory_usage=[
            oip.MemoryUsage(type="CPU" if device == "cpu" else "GPU", id=int(index or 0), byte_size=cache_bytes)
        ],
    )


def index_entry(name: str, model: pb.Model | admin_pb2.VersionStatus) -> oip.RepositoryIndexResponse.ModelIndex:
    """Describes one version of a model, whether it is served or not."""
    reason = model.problem or ("unloaded" if model.state == pb.MODEL_STATE_UNLOADED else "")
    state = STATES.get(model.state, "UNKNOWN")
    return oip.RepositoryIndexResponse.ModelIndex(name=name, version=model.version, state=state, reason=reason)


def _duration(histogram: Histogram) -> oip.StatisticDuration:
    return oip.StatisticDuration(count=sum(histogram.counts), ns=round(histogram.sum * 1e9))
