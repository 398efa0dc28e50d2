"""ONNX Runtime: devices, sessions, and the cache that a decode step works on."""
