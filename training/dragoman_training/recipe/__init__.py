"""The recipe: the YAML file that describes a training run."""

from dragoman_training.recipe.data import (
    Columns,
    DataConfig,
    DataFile,
    PairsFile,
    ParallelFiles,
    file_paths,
    source_language,
    target_language,
    weight,
)
from dragoman_training.recipe.load import SHIPPED_RECIPES, find_recipe, load_recipe, save_recipe
from dragoman_training.recipe.schema import (
    AugmentationConfig,
    DevMetric,
    EvaluationConfig,
    Metric,
    NumberFormat,
    Part,
    Recipe,
    TokenizerConfig,
    TokenizersConfig,
    TrainingConfig,
)
from dragoman_training.recipe.section import flatten

__all__ = [
    "SHIPPED_RECIPES",
    "AugmentationConfig",
    "Columns",
    "DataConfig",
    "DataFile",
    "DevMetric",
    "EvaluationConfig",
    "Metric",
    "NumberFormat",
    "PairsFile",
    "ParallelFiles",
    "Part",
    "Recipe",
    "TokenizerConfig",
    "TokenizersConfig",
    "TrainingConfig",
    "file_paths",
    "find_recipe",
    "flatten",
    "load_recipe",
    "save_recipe",
    "source_language",
    "target_language",
    "weight",
]
