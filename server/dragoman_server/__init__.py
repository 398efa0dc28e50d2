"""Bundle -> gRPC service: scheduler, engine, runtime, metrics. Never imports torch."""

import os

# NOTE: before anything imports ONNX Runtime. Its packages for Linux else write an id of the machine to the disk, and
# send that, and what graphs they run, to their maker.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
