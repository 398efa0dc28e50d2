"""Checks of a bundle: parity of its graphs with the PyTorch model, and the quality of its answers."""
