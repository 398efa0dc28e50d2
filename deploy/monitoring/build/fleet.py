"""The servers, their pods, GPUs and autoscaler: what an operator of many looks at.

What begins with dragoman_ or process_ comes from the servers, kube_ from kube-state-metrics, and DCGM_ from NVIDIA's
dcgm-exporter. A row whose exporter is not there stays empty.
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
SCALER = 'horizontalpodautoscaler=~".*$deployment"'  # KEDA puts "keda-hpa-" in front
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
            "Servers that Prometheus does not reach.",
            "short",
            f"count(up{{{SERVER}}}) - sum(up{{{SERVER}}})",
            red=1,
        ),
        figure(
            "Restarts",
            "Starts of server processes within the last hour, but for the first that was seen.",
            "short",
            f"sum(changes(process_start_time_seconds{{{SERVER}}}[1h]))",
            amber=1,
            red=3,
        ),
        figure(
            "Calls",
            "Calls of all servers, a second.",
            "reqps",
            rate("dragoman_requests_total", "", f"{SERVER}, {WORK}"),
        ),
        figure(
            "Waiting per server",
            "Mean number of waiting requests: what the autoscaler compares with its target.",
            "short",
            f"sum(dragoman_requests_waiting{{{SERVER}}}) / sum(up{{{SERVER}}})",
            amber=4,
            red=32,
        ),
        figure(
            "On the CPU by mistake",
            "Models on the CPU though a GPU was found, as it does not work.",
            "short",
            f"sum(dragoman_device_fallback{{{SERVER}}})",
            red=1,
        ),
    ]


def _servers() -> list[Panel]:
    return [
        graph(
            "Calls by server",
            "One that has much less than the others: old connections, whose clients do not look for new servers.",
            "reqps",
            Query(rate("dragoman_requests_total", "instance", f"{SERVER}, {WORK}"), "{{instance}}"),
        ),
        graph(
            "Waiting by server",
            "Requests in the queue.",
            "short",
            Query(f"sum by (instance) (dragoman_requests_waiting{{{SERVER}}})", "{{instance}}"),
        ),
        graph(
            "Engines at work",
            "Share of the time in which engines compute.",
            "percentunit",
            Query(busy("instance", SERVER), "{{instance}}"),
        ),
        graph(
            "CPU",
            "Cores in use, by the server and its workers.",
            "short",
            Query(cores("instance"), "{{instance}}"),
        ),
        graph(
            "Memory",
            "Resident memory of the server's own process, and what its container or machine has left.",
            "bytes",
            Query(f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}} in use"),
            Query(f"dragoman_memory_available_bytes{{{SERVER}}}", "{{instance}} left"),
        ),
        graph(
            "Open files",
            "Share of the limit; each connection is one.",
            "percentunit",
            Query(f"process_open_fds{{{SERVER}}} / process_max_fds{{{SERVER}}}", "{{instance}}"),
        ),
        graph(
            "Time since start",
            "Falls to zero at a restart.",
            "s",
            Query(f"time() - process_start_time_seconds{{{SERVER}}}", "{{instance}}"),
        ),
        labels(
            "Versions",
            "What each server runs. During a roll-out there are two.",
            f"dragoman_build_info{{{SERVER}}}",
            ["instance", "version", "onnxruntime", "python"],
            span=8,
        ),
        graph(
            "Log lines lost",
            "Lines a second that were not written since whatever reads the log is too slow.",
            "short",
            Query(rate("dragoman_log_lines_dropped_total", "instance", SERVER), "{{instance}}"),
        ),
    ]


def _workers() -> list[Panel]:
    return [
        graph(
            "Workers up",
            "Processes that compute, of servers that have some.",
            "short",
            Query(total("dragoman_worker_up", "instance", SERVER), "{{instance}}"),
        ),
        graph(
            "Workers started anew",
            "Within the last ten minutes, by reason.",
            "short",
            Query(
                f"sum by (instance, reason) (increase(dragoman_worker_restarts_total{{{SERVER}}}[10m]))",
                "{{instance}} {{reason}}",
            ),
        ),
        graph(
            "Memory of workers",
            "Files that they map included, such as the weights, which all of them share.",
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
            "Wanted, and available: ready for a while.",
            "short",
            Query(f"sum by (deployment) (kube_deployment_spec_replicas{{{DEPLOYMENT}}})", "{{deployment}} wanted"),
            Query(
                f"sum by (deployment) (kube_deployment_status_replicas_available{{{DEPLOYMENT}}})",
                "{{deployment}} available",
            ),
        ),
        graph(
            "Restarts of containers",
            "Within the last hour.",
            "short",
            Query(f"sum by (pod) (increase(kube_pod_container_status_restarts_total{{{PODS}}}[1h]))", "{{pod}}"),
        ),
        bars(
            "Why containers wait",
            "CrashLoopBackOff: it ends soon after its start; see its log. ImagePullBackOff: see the pod's events.",
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
            "What there is, what the autoscaler wants, and its bounds.",
            "short",
            *(
                Query(f"sum by (horizontalpodautoscaler) (kube_horizontalpodautoscaler_{metric}{{{SCALER}}})", legend)
                for metric, legend in (
                    ("status_current_replicas", "{{horizontalpodautoscaler}} current"),
                    ("status_desired_replicas", "{{horizontalpodautoscaler}} wanted"),
                    ("spec_min_replicas", "{{horizontalpodautoscaler}} least"),
                    ("spec_max_replicas", "{{horizontalpodautoscaler}} most"),
                )
            ),
            span=HALF,
        ),
        graph(
            "What it scales on",
            "The metric as the autoscaler reads it, and its target.",
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
            "Utilisation",
            "Share of the driver's last sample in which the GPU computed anything.",
            "percentunit",
            Query(f"dragoman_gpu_utilization_ratio{{{SERVER}}}", "{{instance}} #{{gpu}}"),
            span=HALF,
        ),
        graph(
            "Memory in use",
            "By whichever process.",
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
        # Where Prometheus attaches labels of the exporter's own pod, those of the pod that has the GPU are renamed.
        return f'{metric}{{exported_pod=~"$deployment-.+"}} or {metric}{{pod=~"$deployment-.+", exported_pod=""}}'

    name = "{{Hostname}} #{{gpu}}"
    return [
        graph(
            "Compute",
            "Share of the time in which any of the GPU's engines is busy.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_GR_ENGINE_ACTIVE"), name),
        ),
        graph(
            "Tensor cores",
            "Share of the cycles in which they compute: small batches leave them idle.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), name),
        ),
        graph(
            "Memory interface",
            "Share of the cycles in which it moves data: decoding is mostly bound by it.",
            "percentunit",
            Query(gpu("DCGM_FI_PROF_DRAM_ACTIVE"), name),
        ),
        graph("Memory in use", "Of the GPU.", "mbytes", Query(gpu("DCGM_FI_DEV_FB_USED"), name)),
        graph("Power", "What the GPU draws.", "watt", Query(gpu("DCGM_FI_DEV_POWER_USAGE"), name)),
        graph("Temperature", "Of the GPU.", "celsius", Query(gpu("DCGM_FI_DEV_GPU_TEMP"), name)),
        graph(
            "Last error (Xid)",
            "The last error that the driver reported, by its number in NVIDIA's Xid catalogue; 0 for none.",
            "short",
            Query(gpu("DCGM_FI_DEV_XID_ERRORS"), name),
            span=HALF,
        ),
    ]


def _access() -> list[Panel]:
    return [
        graph(
            "Certificate",
            "Days until the server's certificate ends.",
            "d",
            Query(
                f"(dragoman_certificate_end_timestamp_seconds{{{SERVER}}} - time()) / {DAY}",
                "{{instance}}",
            ),
        ),
        graph(
            "Calls by key",
            "Calls that were let in, by the name of their API key.",
            "reqps",
            Query(rate("dragoman_key_calls_total", "key", SERVER), "{{key}}"),
        ),
        graph(
            "Over their limit",
            "Calls that were refused as their key had had its share.",
            "reqps",
            Query(rate("dragoman_key_refusals_total", "key", SERVER), "{{key}}"),
        ),
        graph(
            "Files that can't be used",
            "1 where changed certificates or keys can't be used, and those from before are still in force.",
            "short",
            Query(f"dragoman_files_unusable{{{SERVER}}}", "{{files}} {{instance}}"),
        ),
    ]
