"""Corpus -> tokenizer -> batches -> model -> trainer -> checkpoint."""
