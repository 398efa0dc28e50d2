"""Runtimes: ONNX Runtime sessions and a cache pool on one device, and the steps they run."""
