"""The recipe: one typed object that holds every choice of a training run, validated once and saved with the run.

The keys are explained where a reader meets them: in the comments of `training/dragoman_training/recipes/g2p-en.yaml`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from dragoman_training.errors import RecipeError
from dragoman_training.files import write_text
from dragoman_training.model import ModelConfig
from dragoman_training.recipe_errors import sentence

SHIPPED = Path(__file__).parent / "recipes"

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


class _Loader(yaml.SafeLoader):
    """YAML as a reader expects it: 1e-3 is a number (YAML 1.1 says a string), and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; a key that stands twice is an error."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                line = node.value[i][0].start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key} stands twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what `_Loader` would take for a number: a file may be called 1e3."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RecipeError(f"{where} is not valid YAML: {place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


def _override(document: dict[str, Any], assignment: str) -> None:
    """Puts one `key.with.dots=value` into the document; the value is read as YAML."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise RecipeError(f"--set {assignment}: expected key=value, for example training.steps=1000")
    *parents, last = key.split(".")
    place = document
    for parent in parents:
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise RecipeError(f"--set {assignment}: {parent} holds a value, not keys")
    place[last] = _parse(value, f"--set {assignment}")


def find_recipe(name: Path) -> Path:
    """A recipe's file: the path as given, or else the recipe of that name that ships in the package.

    Raises:
        RecipeError: there is neither.
    """
    for path in (name, SHIPPED / name.name, SHIPPED / f"{name.name}.yaml"):
        if path.is_file():
            return path
    shipped = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.yaml")))
    raise RecipeError(f"{name}: no such recipe; give a YAML file or one of the shipped ones ({shipped})")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and validates a recipe.

    Relative data paths are looked for from the current directory and then from the recipe's own; a path found in
    neither stays as it is (a run can be loaded and exported without its data).

    Args:
        path: the YAML file.
        overrides: `key.with.dots=value`, in order.

    Raises:
        RecipeError: one sentence naming the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from None
    document = _parse(text, str(path))
    if not isinstance(document, dict):
        raise RecipeError(f"{path}: expected a mapping with the keys {', '.join(Recipe.model_fields)}")
    for assignment in overrides:
        _override(document, assignment)
    try:
        # By way of JSON because there strict means what a reader of YAML expects: "3" is no number and true is no 1,
        # while a list may become a tuple and a text a path.
        recipe = Recipe.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise RecipeError(f"{path}: {sentence(error, Recipe)}") from None
    return _located(recipe, path.parent)


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Writes the recipe, defaults and overrides included, as YAML that `load_recipe` reads back."""
    write_text(path, yaml.dump(recipe.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _located(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with each data path that exists only beside the recipe file made to point there."""

    def locate(path: Path) -> Path:
        return folder / path if not path.exists() and (folder / path).exists() else path

    def locate_all(entries: list[DataFile] | None) -> list[DataFile] | None:
        return entries and [
            locate(entry)
            if isinstance(entry, Path)
            else ParallelFiles(source=locate(entry.source), target=locate(entry.target))
            for entry in entries
        ]

    data = recipe.data
    found = {"train": locate_all(data.train), "dev": locate_all(data.dev), "test": locate_all(data.test)}
    return recipe.model_copy(update={"data": data.model_copy(update=found)})
