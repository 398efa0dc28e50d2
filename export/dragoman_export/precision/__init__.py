"""Quantization: bundles whose weights, activations and caches are integers.

`scales` computes every scale, `calibration` measures on data what it needs, `int8`, `blockwise` and `caches` rewrite
graphs, and `quantization_search` finds how much of a model can be integers.
"""
