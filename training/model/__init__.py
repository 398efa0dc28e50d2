"""The Transformer, one concern a module."""

from training.model.config import ModelConfig
from training.model.transformer import Transformer

__all__ = ["ModelConfig", "Transformer"]
