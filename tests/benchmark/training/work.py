"""What all trainers are given: a shape, an optimizer's settings, and pairs of tokens as long as those of a corpus.

How long a step takes depends on lengths and shapes, not on which tokens there are; so both are drawn at random, lengths
around the corpus's means, tokens the more often the smaller their number (as Zipf's law has it).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.tokenizers import END_ID, PAD_ID, SPECIAL_TOKENS
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.recipe import SHIPPED_RECIPES, Recipe, TrainingConfig, load_recipe
from tests.benchmark.random_bundle import BASE, VOCABULARY

PAIRS = 20_000
SEED = 1

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Work:
    """One comparison.

    Attributes:
        vocabularies: Vocabulary sizes of source and target.
        steps: Steps of one sample.
    """

    name: str
    model: ModelConfig
    vocabularies: tuple[int, int]
    training: TrainingConfig
    pairs: list[EncodedPair]
    steps: int

    def parameters(self) -> int:
        """Returns the number of parameters of the model."""
        with torch.device("meta"):
            return sum(p.numel() for p in Transformer(self.model, *self.vocabularies, PAD_ID).parameters())

    def recipe(self) -> Recipe:
        """A recipe that says the same; its data are not read."""
        return Recipe.model_validate(
            {
                "data": {"train": ["none.tsv"]},
                "tokenizers": {"source": {"kind": "symbols"}},
                "model": self.model.model_dump(),
                "training": self.training.model_dump(),
            }
        )


def small_work(precision: Precision) -> Work:
    """The shape and the settings of the model that ships; lengths as in the CMU dictionary.

    With the norm after each sub-layer, as the only place that all trainers know; that costs the same.
    """
    recipe = load_recipe(SHIPPED_RECIPES / "g2p-en.yaml")
    vocabularies = 31, 43
    training = recipe.training.model_copy(update={"precision": precision})
    model = recipe.model.model_copy(update={"norm": "post"})
    pairs = pairs_of(drawn_lengths(8.5, 7.3, 2.4, 64), *vocabularies)
    return Work("small", model, vocabularies, training, pairs, steps=4)


def base_work(precision: Precision) -> Work:
    """The base shape of "Attention Is All You Need"; lengths as in Multi30k, English and German."""
    training = TrainingConfig(steps=100_000, batch_tokens=3072, learning_rate=3e-4, precision=precision)
    model = BASE.model_copy(update={"norm": "post"})
    pairs = pairs_of(drawn_lengths(14.1, 13.6, 4.1, 46), VOCABULARY, VOCABULARY)
    return Work("base", model, (VOCABULARY, VOCABULARY), training, pairs, steps=1)


def drawn_lengths(source: float, target: float, deviation: float, longest: int) -> np.ndarray:
    """Lengths [pairs, 2] of sources and targets that go together, around their means."""
    rng = np.random.default_rng(SEED)
    sources = rng.normal(source, deviation, PAIRS)
    targets = target / source * sources + rng.normal(0, deviation / 2, PAIRS)
    return np.clip(np.stack([sources, targets], 1).round().astype(np.int64), 2, longest)


def pairs_of(lengths: np.ndarray, source_vocabulary: int, target_vocabulary: int) -> list[EncodedPair]:
    """Returns pairs of random tokens with these lengths, which include the end token."""
    rng = np.random.default_rng(SEED)
    draws = (_symbols(rng, lengths[:, 0], source_vocabulary), _symbols(rng, lengths[:, 1], target_vocabulary))
    return [EncodedPair(source, target) for source, target in zip(*draws, strict=True)]


def _symbols(rng: np.random.Generator, lengths: np.ndarray, vocabulary: int) -> Iterator[list[int]]:
    """Rows of tokens with a probability of about one over their rank, each row with its end token."""
    ranks = np.exp(rng.random(int(lengths.sum())) * np.log(vocabulary - len(SPECIAL_TOKENS))).astype(np.int64) - 1
    tokens = (len(SPECIAL_TOKENS) + ranks).tolist()
    start = 0
    for length in lengths.tolist():
        yield [*tokens[start : start + length - 1], END_ID]
        start += length
