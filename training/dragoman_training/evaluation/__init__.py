"""Greedy decoding with the PyTorch model, and metrics of its answers."""
