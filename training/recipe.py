"""The recipe: one typed object that holds every choice of a training run, validated once and saved with the run."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from training.model import ModelConfig


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    train: list[Path]
    dev: list[Path] | None = None
    dev_held_out_sources: int = Field(default=0, ge=0)
    test: list[Path] | None = None


class TokenizerConfig(Section):
    kind: Literal["characters", "symbols", "bpe", "unigram"]
    vocabulary: int = Field(default=8000, ge=4)
    lowercase: bool = False


class TokenizersConfig(Section):
    joint: bool = False
    source: TokenizerConfig
    target: TokenizerConfig | None = None


class TrainingConfig(Section):
    steps: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    accumulate: int = Field(default=1, ge=1)
    learning_rate: float = Field(gt=0)
    schedule: Literal["inverse_square_root", "noam", "cosine"] = "inverse_square_root"
    warmup_steps: int = Field(default=4000, ge=0)
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    clip_norm: float = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    checkpoint_every: int = Field(default=1000, ge=1)
    evaluate_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=5, ge=1)
    average_last: int = Field(default=1, ge=1)


class Recipe(Section):
    seed: int = 1
    data: DataConfig
    tokenizers: TokenizersConfig
    model: ModelConfig
    training: TrainingConfig


def load_recipe(path: Path) -> Recipe:
    document: Any = yaml.safe_load(path.read_text())
    return Recipe.model_validate(document)
