"""Metrics that a machine without Kubernetes and GPUs lacks, as their exporters would report them.

Names and labels are those that the exporters document: kube-state-metrics in docs/metrics/workload, dcgm-exporter in
its METRICS.md. The third part is what our own server reports about GPUs.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dragoman.local import LOOPBACK

_DEPLOYMENT = 'namespace="speech",deployment="dragoman"'
_POD = 'namespace="speech",pod="dragoman-6f7c9d-abcde",container="dragoman",uid="1"'
_SCALER = 'namespace="speech",horizontalpodautoscaler="dragoman"'
_TARGET = f'{_SCALER},metric_name="dragoman_requests_waiting",metric_target_type="average"'
KUBERNETES = f"""\
kube_deployment_spec_replicas{{{_DEPLOYMENT}}} 3
kube_deployment_status_replicas_available{{{_DEPLOYMENT}}} 2
kube_deployment_status_replicas_ready{{{_DEPLOYMENT}}} 2
kube_pod_container_status_restarts_total{{{_POD}}} 1
kube_pod_container_status_waiting_reason{{{_POD},reason="CrashLoopBackOff"}} 1
kube_horizontalpodautoscaler_spec_min_replicas{{{_SCALER}}} 1
kube_horizontalpodautoscaler_spec_max_replicas{{{_SCALER}}} 3
kube_horizontalpodautoscaler_status_current_replicas{{{_SCALER}}} 2
kube_horizontalpodautoscaler_status_desired_replicas{{{_SCALER}}} 3
kube_horizontalpodautoscaler_spec_target_metric{{{_TARGET}}} 8
kube_horizontalpodautoscaler_status_target_metric{{{_TARGET}}} 11
"""

_GPU = (
    'gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",'
    'namespace="speech",pod="dragoman-6f7c9d-abcde",container="dragoman"'
)
DCGM = f"""\
DCGM_FI_DEV_GPU_TEMP{{{_GPU}}} 61
DCGM_FI_DEV_POWER_USAGE{{{_GPU}}} 412.5
DCGM_FI_DEV_FB_USED{{{_GPU}}} 10240
DCGM_FI_DEV_XID_ERRORS{{{_GPU}}} 0
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{_GPU}}} 0.75
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{_GPU}}} 0.125
DCGM_FI_PROF_DRAM_ACTIVE{{{_GPU}}} 0.5
"""
# Of another node.
DCGM_OPERATED = DCGM.replace("node-1", "node-2")

OURS_ELSEWHERE = """\
dragoman_gpu_utilization_ratio{gpu="0"} 0.5
dragoman_gpu_memory_bytes{gpu="0"} 85899345920
dragoman_gpu_memory_used_bytes{gpu="0"} 10737418240
"""

ALL = (KUBERNETES, DCGM, DCGM_OPERATED, OURS_ELSEWHERE)


@contextmanager
def exporter(text: str) -> Iterator[str]:
    """Serves a text at any path; gives HOST:PORT."""
    body = text.encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"{LOOPBACK}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
