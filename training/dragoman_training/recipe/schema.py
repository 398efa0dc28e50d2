"""The schema of recipes: every choice of a training run, validated once and saved with the run.

The comments of `recipes/g2p-en.yaml` explain each key.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dragoman_training.model import ModelConfig
from dragoman_training.recipe.data import DataConfig
from dragoman_training.recipe.section import Section

Metric = Literal["bleu", "chrf", "ter", "exact_match", "sequence_error_rate", "word_error_rate"]
Part = Literal["embeddings", "encoder", "decoder", "output"]  # of the model
DevMetric = Literal["loss", "bleu", "chrf", "ter", "exact_match", "sequence_error_rate", "word_error_rate"]


class NumberFormat(Section):
    """How each side writes the number 1234.5."""

    source: str = Field(default="1,234.5", pattern=r"^1\D234\D5$")
    target: str = Field(default="1,234.5", pattern=r"^1\D234\D5$")


class AugmentationConfig(Section):
    """Shares of the training pairs that are changed in each epoch."""

    concatenated: float = Field(default=0.0, ge=0, le=1)
    numbers: float = Field(default=0.0, ge=0, le=1)
    number_format: NumberFormat = NumberFormat()
    names: float = Field(default=0.0, ge=0, le=1)
    inserts: float = Field(default=0.0, ge=0, le=1)
    unpunctuated: float = Field(default=0.0, ge=0, le=1)
    uppercase: float = Field(default=0.0, ge=0, le=1)


class TokenizerConfig(Section):
    """One tokenizer; `vocabulary` applies to bpe and unigram.

    Other kinds include everything that occurs, or are given: `imported`.
    """

    kind: Literal["characters", "symbols", "bpe", "unigram", "imported"]
    vocabulary: int = Field(default=8000, ge=400, le=1_000_000)
    lowercase: bool = False
    invisible: Literal["drop", "keep"] = "drop"
    digits: Literal["keep", "split"] = "keep"
    punctuation: Literal["keep", "split"] = "keep"
    bpe_dropout: float = Field(default=0.0, ge=0, lt=1)
    byte_dropout: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _bpe_can_vary(self) -> "TokenizerConfig":
        for key in ("bpe_dropout", "byte_dropout"):
            if getattr(self, key) and self.kind != "bpe":
                raise ValueError(f"{key} needs kind: bpe, not {self.kind}")
        for key in ("digits", "punctuation"):
            if getattr(self, key) == "split" and self.kind not in ("bpe", "unigram"):
                raise ValueError(f"{key}: split needs kind: bpe or unigram, not {self.kind}")
        return self


class TokenizersConfig(Section):
    """The tokenizer of each side; without `target`, it is configured like `source` and trained on the targets."""

    joint: bool = False
    source: TokenizerConfig
    target: TokenizerConfig | None = None
    target_bpe_dropout: float | None = Field(default=None, ge=0, lt=1)

    @property
    def for_targets(self) -> TokenizerConfig:
        """The config that targets are encoded with."""
        config = self.target or self.source
        if self.target_bpe_dropout is None:
            return config
        return config.model_copy(update={"bpe_dropout": self.target_bpe_dropout})

    @model_validator(mode="after")
    def _target_is_given_once(self) -> "TokenizersConfig":
        if self.joint and self.target is not None:
            raise ValueError("joint: true uses one tokenizer for both sides; remove target")
        if self.target_bpe_dropout is not None and self.target is not None:
            raise ValueError("target_bpe_dropout has no effect beside target; set target.bpe_dropout")
        if self.target_bpe_dropout and self.source.kind != "bpe":
            raise ValueError(f"target_bpe_dropout needs kind: bpe, not {self.source.kind}")
        return self


class TrainingConfig(Section):
    """Optimization, checkpoints and evaluations."""

    steps: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    accumulate: int = Field(default=1, ge=1, le=1_000_000)
    sharding: Literal["none", "full"] = "none"
    learning_rate: float = Field(gt=0)
    schedule: Literal["inverse_square_root", "noam", "cosine", "warmup_stable_decay"] = "inverse_square_root"
    warmup_steps: int = Field(default=4000, ge=0)
    decay_steps: int | None = Field(default=None, ge=1)
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(default=0.0, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    r_drop: float = Field(default=0.0, ge=0)
    teachers: list[Path] = Field(default=[], max_length=16)
    teacher_share: float = Field(default=0.9, gt=0, le=1)
    freeze: list[Part] = Field(default=[], max_length=3)
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    log_every: int = Field(default=50, ge=1)
    checkpoint_every: int = Field(default=1000, ge=1)
    evaluate_every: int = Field(default=1000, ge=1)
    keep_checkpoints: int = Field(default=5, ge=1)
    average_last: int = Field(default=1, ge=1)
    average_best: int = Field(default=0, ge=0)
    patience: int | None = Field(default=None, ge=1)

    @property
    def decay_start(self) -> int:
        """The last step of warmup_stable_decay before the learning rate falls."""
        return self.steps - (max(1, self.steps // 5) if self.decay_steps is None else self.decay_steps)

    @model_validator(mode="after")
    def _values_agree(self) -> "TrainingConfig":
        if self.schedule == "cosine" and self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be smaller than steps ({self.steps})")
        if self.schedule == "warmup_stable_decay" and self.warmup_steps > self.decay_start:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) and decay_steps ({self.steps - self.decay_start}) together must "
                f"not be more than steps ({self.steps})"
            )
        if self.decay_steps is not None and self.schedule != "warmup_stable_decay":
            raise ValueError(f"decay_steps has no effect with schedule: {self.schedule}; remove it")
        if self.schedule == "noam" and self.warmup_steps == 0:
            raise ValueError("warmup_steps must be at least 1 with schedule: noam")
        if self.average_best and self.average_last > 1:
            raise ValueError("average_best and average_last are mutually exclusive; set only one")
        if self.average_last > self.keep_checkpoints:
            raise ValueError(
                f"average_last ({self.average_last}) must not be larger than keep_checkpoints ({self.keep_checkpoints})"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas {list(self.betas)} must be in [0, 1)")
        return self


class EvaluationConfig(Section):
    """The search for answers, their metrics on dev and test, and the one that selects checkpoints."""

    beam_size: int = Field(default=1, ge=1, le=100)
    length_penalty: float = Field(default=1.0, ge=-10, le=10)  # as in a server
    early_stopping: bool = False
    metrics: list[Metric] = Field(default=["exact_match", "sequence_error_rate", "word_error_rate"])
    choose_by: DevMetric = "loss"

    @field_validator("metrics", "choose_by", mode="before")
    @classmethod
    def _reject_old_names(cls, value: Any) -> Any:
        if "token_error_rate" in (value if isinstance(value, list) else [value]):
            raise ValueError(
                "token_error_rate was renamed to word_error_rate, and the former word_error_rate, the share of wrong "
                "answers, to sequence_error_rate"
            )
        return value

    @model_validator(mode="after")
    def _choose_by_is_measured(self) -> "EvaluationConfig":
        if self.choose_by != "loss" and self.choose_by not in self.metrics:
            raise ValueError(f"choose_by ({self.choose_by}) must be loss or one of metrics {list(self.metrics)}")
        return self


class Recipe(Section):
    """The complete description of a training run."""

    seed: int = Field(default=1, ge=0, lt=2**32)
    data: DataConfig
    augmentation: AugmentationConfig = AugmentationConfig()
    tokenizers: TokenizersConfig
    model: ModelConfig
    training: TrainingConfig
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _values_agree(self) -> "Recipe":
        shared = self.model.share_embeddings
        if shared in ("inputs", "all") and not self.tokenizers.joint:
            raise ValueError(f"model.share_embeddings: {shared} needs tokenizers.joint: true")
        if self.data.languages and self.augmentation.concatenated:
            raise ValueError("augmentation.concatenated would mix the languages of data; set it to 0")
        if self.tokenizers.source.kind != "imported" and self.data.languages != self.data.target_languages:
            raise ValueError(
                "data: source_language is only for imported models; tokenizers.source.kind is not imported"
            )
        if self.training.r_drop and not self.model.dropout:
            raise ValueError("training.r_drop has no effect without dropout; set model.dropout")
        if not (self.data.dev or self.data.dev_held_out_sources):
            for key in ("patience", "average_best"):
                if getattr(self.training, key):
                    raise ValueError(f"training.{key} needs a dev set; set data.dev or data.dev_held_out_sources")
        return self
