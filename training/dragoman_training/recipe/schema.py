"""The recipe: one typed object that holds every choice of a training run, validated once and saved with the run.

The keys are explained where a reader meets them: in the comments of `training/dragoman_training/recipes/g2p-en.yaml`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from dragoman_training.model import ModelConfig

Metric = Literal["bleu", "chrf", "exact_match", "sequence_error_rate", "word_error_rate"]
DevMetric = Literal["loss", "bleu", "chrf", "exact_match", "sequence_error_rate", "word_error_rate"]


class Section(BaseModel):
    """A part of the recipe: unknown keys are refused, nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ParallelFiles(Section):
    """Two files whose lines belong together, the first line of one to the first line of the other."""

    source: Path
    target: Path


# The tags only keep pydantic's complaints apart; in brackets, since no key of a recipe has them.
DataFile = Annotated[
    Annotated[Path, Tag("(file)")] | Annotated[ParallelFiles, Tag("(pair)")],
    Discriminator(lambda value: "(file)" if isinstance(value, str | Path | int | float | bool | None) else "(pair)"),
]


class DataConfig(Section):
    """Where the pairs come from; a plain path is a file of tab-separated pairs, and `.gz` is unpacked."""

    train: list[DataFile] = Field(min_length=1)
    dev: list[DataFile] | None = None
    dev_held_out_sources: int = Field(default=0, ge=0)
    test: list[DataFile] | None = None
    overlap: Literal["drop", "keep"] = "drop"
    on_bad_line: Literal["skip", "refuse"] = "refuse"

    @model_validator(mode="after")
    def _one_dev_set(self) -> "DataConfig":
        if self.dev and self.dev_held_out_sources:
            raise ValueError("dev and dev_held_out_sources exclude each other; give one of them")
        return self


class TokenizerConfig(Section):
    """One tokenizer; `vocabulary` counts for bpe and unigram, the other kinds take whatever occurs."""

    kind: Literal["characters", "symbols", "bpe", "unigram"]
    vocabulary: int = Field(default=8000, ge=400, le=1_000_000)
    lowercase: bool = False
    invisible: Literal["drop", "keep"] = "drop"


class TokenizersConfig(Section):
    """The tokenizer of each side; `target` left out is made like `source`, from its own side of the data."""

    joint: bool = False
    source: TokenizerConfig
    target: TokenizerConfig | None = None

    @model_validator(mode="after")
    def _joint_is_one(self) -> "TokenizersConfig":
        if self.joint and self.target is not None:
            raise ValueError("joint: true takes one tokenizer for both sides; leave target out")
        return self


class TrainingConfig(Section):
    """How the weights are found."""

    steps: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    accumulate: int = Field(default=1, ge=1)
    learning_rate: float = Field(gt=0)
    schedule: Literal["inverse_square_root", "noam", "cosine"] = "inverse_square_root"
    warmup_steps: int = Field(default=4000, ge=0)
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    log_every: int = Field(default=50, ge=1)
    checkpoint_every: int = Field(default=1000, ge=1)
    evaluate_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=5, ge=1)
    average_last: int = Field(default=1, ge=1)
    average_best: int = Field(default=0, ge=0)
    patience: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _holds_together(self) -> "TrainingConfig":
        if self.schedule == "cosine" and self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be smaller than steps ({self.steps})")
        if self.schedule == "noam" and self.warmup_steps == 0:
            raise ValueError("warmup_steps must be at least 1 with schedule: noam")
        if self.average_best and self.average_last > 1:
            raise ValueError("average_best and average_last exclude each other; give one of them")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last ({self.average_last}) needs as many checkpoints kept, "
                f"but keep_checkpoints is {self.keep_checkpoints}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {list(self.betas)} must lie in [0, 1)")
        return self


class EvaluationConfig(Section):
    """What is measured on the dev and test sets, and which of it chooses between checkpoints."""

    metrics: list[Metric] = ["exact_match", "sequence_error_rate", "word_error_rate"]
    choose_by: DevMetric = "loss"

    @field_validator("metrics", "choose_by", mode="before")
    @classmethod
    def _has_todays_names(cls, value: Any) -> Any:
        if "token_error_rate" in (value if isinstance(value, list) else [value]):
            raise ValueError(
                "token_error_rate is called word_error_rate now, and the share of wrong answers, which word_error_rate "
                "named before, is sequence_error_rate"
            )
        return value

    @model_validator(mode="after")
    def _chooses_by_what_is_measured(self) -> "EvaluationConfig":
        if self.choose_by != "loss" and self.choose_by not in self.metrics:
            raise ValueError(f"choose_by ({self.choose_by}) must be loss or one of metrics {list(self.metrics)}")
        return self


class Recipe(Section):
    """Everything that determines a training run."""

    seed: int = Field(default=1, ge=0, lt=2**32)
    data: DataConfig
    tokenizers: TokenizersConfig
    model: ModelConfig
    training: TrainingConfig
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _holds_together(self) -> "Recipe":
        share = self.model.share_embeddings
        if share in ("inputs", "all") and not self.tokenizers.joint:
            raise ValueError(f"model.share_embeddings: {share} needs tokenizers.joint: true")
        if not (self.data.dev or self.data.dev_held_out_sources):
            for key in ("patience", "average_best"):
                if getattr(self.training, key):
                    raise ValueError(f"training.{key} needs a dev set: give data.dev or data.dev_held_out_sources")
        return self
