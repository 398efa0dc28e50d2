"""Writes bundles: the traced graphs, their shared weights file, tokenizers and the manifest."""
