"""The Open Inference Protocol: a second face of the same service, for clients of KServe and Triton."""
