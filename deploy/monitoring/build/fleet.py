"""The Fleet dashboard: servers, their pods, GPUs and autoscaler.

Metrics dragoman_ and process_ come from the servers, kube_ from kube-state-metrics, and DCGM_ from NVIDIA's
dcgm-exporter. A row whose exporter is not installed stays empty.
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.monitoring.build.panels import (
    HALF,
    Panel,
    Query,
    assemble,
    bars,
    chosen,
    figure,
    graph,
    labels,
    servers,
)
from deploy.monitoring.build.promql import SERVER, WORK, busy, cores, rate, total

DEPLOYMENT = 'deployment=~"$deployment"'
SCALER = 'horizontalpodautoscaler=~".*$deployment"'  # KEDA prepends "keda-hpa-"
PODS = 'pod=~"$deployment-.+"'
DAY = 24 * 60 * 60


def fleet() -> Dashboard:
    deployments = 'label_values(kube_deployment_spec_replicas{deployment=~".*dragoman.*"}, deployment)'
    return assemble(
        "Dragoman / Fleet",
        "dragoman-fleet",
        "Servers, pods, GPUs, restarts and autoscaling of Dragoman.",
        [*servers(), chosen("deployment", "Deployment", deployments, all_value=".*dragoman.*")],
        {
            "At a glance": _glance(),
            "Servers": _servers(),
            "Workers": _workers(),
            "Pods (kube-state-metrics)": _pods(),
            "Autoscaling (kube-state-metrics)": _autoscaling(),
            "GPUs, as the servers see them": _gpus(),
            "GPUs (dcgm-exporter)": _dcgm(),
            "Access": _access(),
        },
    )


def _glance() -> list[Panel]:
    return [
        figure("Servers up", "Servers that Prometheus reaches.", "short", f"sum(up{{{SERVER}}})"),
        figure(
            "Servers down",
            "Servers that Prometheus cannot reach.",
            "short",
            f"count(up{{{SERVER}}}) - sum(up{{{SERVER}}})",
            red=1,
        ),
        figure(
            "Restarts",
            "Restarts of server processes within the last hour.",
            "short",
            f"sum(changes(process_start_time_seconds{{{SERVER}}}[1h]))",
            amber=1,
            red=3,
        ),
        figure(
            "Calls",
            "Calls per second of all servers.",
            "reqps",
            rate("dragoman_requests_total", "", f"{SERVER}, {WORK}"),
        ),
        figure(
            "Waiting per server",
            "Mean waiting requests per server, which the autoscaler compares with its target.",
            "short",
            f"sum(dragoman_requests_waiting{{{SERVER}}}) / sum(up{{{SERVER}}})",
            amber=4,
            red=32,
        ),
        figure(
            "On the CPU by mistake",
            "Models that run on the CPU because the GPU that was found does not work.",
            "short",
            f"sum(dragoman_device_fallback{{{SERVER}}})",
            red=1,
        ),
    ]


def _servers() -> list[Panel]:
    return [
        graph(
            "Calls by server",
            "If one server has far fewer than the others, clients keep old connections and do not find new servers.",
            "reqps",
            Query(rate("dragoman_requests_total", "instance", f"{SERVER}, {WORK}"), "{{instance}}"),
        ),
        graph(
            "Waiting by server",
            "Requests in the queue, by server.",
            "short",
            Query(f"sum by (instance) (dragoman_requests_waiting{{{SERVER}}})", "{{instance}}"),
        ),
        graph(
            "Engines at work",
            "Share of time in which engines compute.",
            "percentunit",
            Query(busy("instance", SERVER), "{{instance}}"),
        ),
        graph(
            "CPU",
            "Cores used by the server and its workers.",
            "short",
            Query(cores("instance"), "{{instance}}"),
        ),
        graph(
            "Memory",
            "Resident memory of the server's own process, and the memory left in its container or machine.",
            "bytes",
            Query(f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}} in use"),
            Query(f"dragoman_memory_available_bytes{{{SERVER}}}", "{{instance}} left"),
        ),
        graph(
            "Open files",
            "Share of the limit of open files; each connection takes one.",
            "percentunit",
            Query(f"process_open_fds{{{SERVER}}} / process_max_fds{{{SERVER}}}", "{{instance}}"),
        ),
        graph(
            "Time since start",
            "Uptime; falls to zero at a restart.",
            "s",
            Query(f"time() - process_start_time_seconds{{{SERVER}}}", "{{instance}}"),
        ),
        labels(
            "Versions",
            "Versions of each server. During a rollout there are two.",
            f"dragoman_build_info{{{SERVER}}}",
            ["instance", "version", "onnxruntime", "python"],
            span=8,
        ),
        graph(
            "Log lines lost",
            "Log lines per second that were dropped because the reader of the log is too slow.",
            "short",
            Query(rate("dragoman_log_lines_dropped_total", "instance", SERVER), "{{instance}}"),
        ),
    ]


def _workers() -> list[Panel]:
    return [
        graph(
            "Workers up",
            "Running worker processes, by server.",
            "short",
            Query(total("dragoman_worker_up", "instance", SERVER), "{{instance}}"),
        ),
        graph(
            "Worker restarts",
            "Restarts within the last ten minutes, by reason.",
            "short",
            Query(
                f"sum by (instance, reason) (increase(dragoman_worker_restarts_total{{{SERVER}}}[10m]))",
                "{{instance}} {{reason}}",
            ),
        ),
        graph(
            "Memory of workers",
            "Resident memory of workers, including mapped files such as the weights, which all of them share.",
            "bytes",
            Query(
                total("dragoman_worker_resident_memory_bytes", "instance, worker", SERVER), "{{instance}} {{worker}}"
            ),
        ),
    ]


def _pods() -> list[Panel]:
    return [
        graph(
            "Pods",
            "Desired pods, and available ones (ready for minReadySeconds).",
            "short",
            Query(f"sum by (deployment) (kube_deployment_spec_replicas{{{DEPLOYMENT}}})", "{{deployment}} desired"),
            Query(
                f"sum by (deployment) (kube_deployment_status_replicas_available{{{DEPLOYMENT}}})",
                "{{deployment}} available",
            ),
        ),
        graph(
            "Restarts of containers",
            "Container restarts within the last hour.",
            "short",
            Query(f"sum by (pod) (increase(kube_pod_container_status_restarts_total{{{PODS}}}[1h]))", "{{pod}}"),
        ),
        bars(
            "Why containers wait",
            "CrashLoopBackOff: it exits soon after its start; see its log. ImagePullBackOff: see the pod's events.",
            "short",
            Query(f"sum by (reason) (kube_pod_container_status_waiting_reason{{{PODS}}})", "{{reason}}"),
        ),
    ]


def _autoscaling() -> list[Panel]:
    def scaled(kind: str) -> str:
        metric = f"kube_horizontalpodautoscaler_{kind}_target_metric{{{SCALER}}}"
        return f"sum by (horizontalpodautoscaler, metric_name) ({metric})"

    return [
        graph(
            "Replicas",
            "Current and desired replicas, and the autoscaler's limits.",
            "short",
            *(
                Query(f"sum by (horizontalpodautoscaler) (kube_horizontalpodautoscaler_{metric}{{{SCALER}}})", legend)
                for metric, legend in (
                    ("status_current_replicas", "{{horizontalpodautoscaler}} current"),
                    ("status_desired_replicas", "{{horizontalpodautoscaler}} desired"),
                    ("spec_min_replicas", "{{horizontalpodautoscaler}} minimum"),
                    ("spec_max_replicas", "{{horizontalpodautoscaler}} maximum"),
                )
            ),
            span=HALF,
        ),
        graph(
            "What it scales on",
            "The metric that the autoscaler reads, and its target.",
            "short",
            Query(
                scaled("status"),
                "{{horizontalpodautoscaler}} {{metric_name}}",
            ),
            Query(
                scaled("spec"),
                "{{horizontalpodautoscaler}} {{metric_name}}, target",
            ),
            span=HALF,
        ),
    ]


def _gpus() -> list[Panel]:
    return [
        graph(
            "Utilization",
            "Share of the driver's last sampling period in which the GPU was busy.",
            "percentunit",
            Query(f"dragoman_gpu_utilization_ratio{{{SERVER}}}", "{{instance}} #{{gpu}}"),
            span=HALF,
        ),
        graph(
            "Memory in use",
            "Share of GPU memory used by all processes.",
            "percentunit",
            Query(
                f"dragoman_gpu_memory_used_bytes{{{SERVER}}} / dragoman_gpu_memory_bytes{{{SERVER}}}",
                "{{instance}} #{{gpu}}",
            ),
            span=HALF,
        ),
    ]


def _dcgm() -> list[Panel]:
    def gpu(metric: str) -> str:
        # If Prometheus attaches the labels of the exporter's own pod, those of the pod with the GPU are renamed.
        return f'{metric}{{exported_pod=~"$deployment-.+"}} or {metric}{{pod=~"$deployment-.+", exported_pod=""}}'

    name = "{{Hostname}} #{{gpu}}"
    return [
        graph(
            "Compute",
            "Share of time in which any of the GPU's engines is busy.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), name),
        ),
        graph(
            "Tensor cores",
            "Share of cycles in which tensor cores compute; small batches leave them idle.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), name),
        ),
        graph(
            "Memory interface",
            "Share of cycles in which the memory interface transfers data, the usual bottleneck of decoding.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_DRAM_ACTIVE"), name),
        ),
        graph("Memory in use", "Memory of the GPU in use.", "mbytes", Query(gpu("DCGM_FI_DEV_FB_USED"), name)),
        graph("Power", "Power draw of the GPU.", "watt", Query(gpu("DCGM_FI_DEV_POWER_USAGE"), name)),
        graph("Temperature", "Temperature of the GPU.", "celsius", Query(gpu("DCGM_FI_DEV_GPU_TEMP"), name)),
        graph(
            "Last error (Xid)",
            "The last error that the driver reported, as its number in NVIDIA's Xid catalogue; 0 for none.",
            "short",
            Query(gpu("DCGM_FI_DEV_XID_ERRORS"), name),
            span=HALF,
        ),
    ]


def _access() -> list[Panel]:
    return [
        graph(
            "Certificate",
            "Days until the server's certificate expires.",
            "d",
            Query(
                f"(dragoman_certificate_end_timestamp_seconds{{{SERVER}}} - time()) / {DAY}",
                "{{instance}}",
            ),
        ),
        graph(
            "Calls by key",
            "Admitted calls, by the name of their API key.",
            "reqps",
            Query(rate("dragoman_key_calls_total", "key", SERVER), "{{key}}"),
        ),
        graph(
            "Over their limit",
            "Calls refused because their key exceeded its limit.",
            "reqps",
            Query(rate("dragoman_key_refusals_total", "key", SERVER), "{{key}}"),
        ),
        graph(
            "Files that can't be used",
            "1 if changed certificates or keys cannot be used and the previous ones stay in use.",
            "short",
            Query(f"dragoman_files_unusable{{{SERVER}}}", "{{files}} {{instance}}"),
        ),
    ]
