"""From a training run to a bundle: ONNX graphs, tokenizers and manifest, checked against the model they come from."""

import os

# NOTE: before anything imports ONNX Runtime; see server/dragoman_server/__init__.py.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
