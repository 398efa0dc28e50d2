"""What all trainers are given: a shape, an optimiser's settings, and pairs of tokens as long as those of a corpus.

How long a step takes depends on lengths and shapes, not on which tokens there are; so tokens are drawn at random, the
more often the smaller their number (as Zipf's law has it), and nothing of the corpus but its lengths is used.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tests.benchmark.base_model import BASE, VOCABULARY
from training.data.batches import EncodedPair
from training.data.tokenizers import END_ID, PAD_ID, SPECIAL_TOKENS
from training.model import ModelConfig, Transformer
from training.recipe import SHIPPED, Recipe, TrainingConfig, load_recipe

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
WORDS = DATA / "g2p-cmudict" / "g014b2b.train"
SENTENCES = DATA / "multi30k"
PAIRS = 20_000
SEED = 1

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Work:
    """One comparison.

    Attributes:
        lengths: where they come from, in words.
        vocabularies: tokens of source and target.
        steps: of one sample.
    """

    name: str
    lengths: str
    model: ModelConfig
    vocabularies: tuple[int, int]
    training: TrainingConfig
    pairs: list[EncodedPair]
    steps: int

    def parameters(self) -> int:
        """Of the model."""
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
    """The shape and the settings of the model that ships; words and their phones.

    With the norm after each sub-layer, as the only place that all trainers know; that costs the same.
    """
    recipe = load_recipe(SHIPPED / "g2p-en.yaml")
    if WORDS.exists():
        lines = [line.split(maxsplit=1) for line in WORDS.read_text(encoding="utf-8").splitlines() if line.strip()]
        lengths = np.array([(len(word) + 1, len(phones.split()) + 1) for word, phones in lines])
        origin = "words of the CMU dictionary and their phones"
    else:
        lengths, origin = drawn_lengths(8.5, 7.3, 2.4, 64), "drawn as in the CMU dictionary"
    vocabularies = 31, 43
    training = recipe.training.model_copy(update={"precision": precision})
    model = recipe.model.model_copy(update={"norm": "post"})
    return Work("small", origin, model, vocabularies, training, pairs_of(lengths, *vocabularies), steps=4)


def base_work(precision: Precision) -> Work:
    """The base shape of "Attention Is All You Need"; sentences and their translations."""
    files = [SENTENCES / f"train.{language}" for language in ("en", "de")]
    if all(file.exists() for file in files):
        texts = (file.read_text(encoding="utf-8").splitlines() for file in files)
        lengths = np.array([[len(re.findall(r"\w+|[^\w\s]", line)) + 1 for line in side] for side in texts]).T
        origin = "words of Multi30k's sentences, English and German"
    else:
        lengths, origin = drawn_lengths(14.1, 13.6, 4.1, 46), "drawn as in Multi30k"
    training = TrainingConfig(steps=100_000, batch_tokens=3072, learning_rate=3e-4, precision=precision)
    model = BASE.model_copy(update={"norm": "post"})
    pairs = pairs_of(lengths, VOCABULARY, VOCABULARY)
    return Work("base", origin, model, (VOCABULARY, VOCABULARY), training, pairs, steps=1)


def drawn_lengths(source: float, target: float, deviation: float, longest: int) -> np.ndarray:
    """Lengths [pairs, 2] of sources and targets that go together, around their means."""
    rng = np.random.default_rng(SEED)
    sources = rng.normal(source, deviation, PAIRS)
    targets = target / source * sources + rng.normal(0, deviation / 2, PAIRS)
    return np.clip(np.stack([sources, targets], 1).round().astype(np.int64), 2, longest)


def pairs_of(lengths: np.ndarray, source_vocabulary: int, target_vocabulary: int) -> list[EncodedPair]:
    """Pairs of random tokens with so many tokens each, the end token included; at most PAIRS of them."""
    rng = np.random.default_rng(SEED)
    if len(lengths) > PAIRS:
        lengths = rng.permutation(lengths)[:PAIRS]
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
