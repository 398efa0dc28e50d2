"""The recipe: the YAML file that describes a training run."""

from dragoman_training.recipe.load import SHIPPED_RECIPES, find_recipe, load_recipe, save_recipe
from dragoman_training.recipe.schema import (
    AugmentationConfig,
    DataConfig,
    DevMetric,
    EvaluationConfig,
    Metric,
    NumberFormat,
    ParallelFiles,
    Part,
    Recipe,
    TokenizerConfig,
    TokenizersConfig,
    TrainingConfig,
)

__all__ = [
    "SHIPPED_RECIPES",
    "AugmentationConfig",
    "DataConfig",
    "DevMetric",
    "EvaluationConfig",
    "Metric",
    "NumberFormat",
    "ParallelFiles",
    "Part",
    "Recipe",
    "TokenizerConfig",
    "TokenizersConfig",
    "TrainingConfig",
    "find_recipe",
    "load_recipe",
    "save_recipe",
]
