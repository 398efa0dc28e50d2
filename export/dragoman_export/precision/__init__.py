"""Quantization: bundles whose weights, activations and caches are integers.

`scales` says where each scale comes from.
"""
