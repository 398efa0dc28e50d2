"""The Transformer, one concern a module."""

from training.model.transformer import ModelConfig, Transformer

__all__ = ["ModelConfig", "Transformer"]
