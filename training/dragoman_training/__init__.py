"""Trains encoder-decoder Transformers: recipe, data, tokenizers, model, optimizer steps, checkpoints, report."""
