"""Random segmentation in training: BPE-dropout, and characters that fall back to bytes.

A function of the seed alone, unlike the dropout of `tokenizers`, so that a resumed run repeats the draw.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from dragoman_training.data.tokenizers import END_ID, UNKNOWN_ID

VARIANTS = 8  # segmentations drawn for each word; its occurrences choose among them
COMMON_SHARE = 0.999  # share of the text that consists of common characters; all others are rare


class RandomSegmentation:
    """Encodes texts with a bpe tokenizer, each occurrence of a word in a segmentation of its own.

    Every word has a fixed number of variants, drawn when it is first seen from a seed made of the word, so that it
    does not matter which words came before.

    Args:
        tokenizer: A bpe tokenizer of `train_tokenizer`.
        bpe_dropout: Probability that a merge is skipped (Provilkov et al. 2020).
        byte_dropout: Probability that a rare character is encoded as its bytes.
        rare: Rare characters, see `rare_characters`.
        seed: Seed of the draw.
    """

    def __init__(
        self, tokenizer: Tokenizer, bpe_dropout: float, byte_dropout: float, rare: Iterable[str], seed: int
    ) -> None:
        document = json.loads(tokenizer.to_str())
        model = document["model"]
        # Tokens of `train_tokenizer` that are recognized in a text; they only start one.
        self.starts: dict[str, int] = {
            token["content"]: token["id"] for token in document["added_tokens"] if not token["special"]
        }
        self.tokenizer = tokenizer
        self.vocabulary: dict[str, int] = model["vocab"]
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(model["merges"])}
        self.bpe_dropout, self.byte_dropout = bpe_dropout, byte_dropout
        self.rare = frozenset(rare)
        self.seed = seed
        self._word_ids: dict[str, int] = {}
        self._words: list[str] = []
        self._variants: list[list[int] | None] = []

    def forget(self, most: int) -> None:
        """Forgets all words and their variants if they are more than `most`; numbers of words become void."""
        if len(self._words) > most:
            self._word_ids.clear()
            self._words.clear()
            self._variants.clear()

    def words(self, text: str) -> list[int]:
        """Splits a text into words, each a number that `encode` takes."""
        for token in self.starts:
            if text.startswith(token):
                return [self._number(token), *self.words(text[len(token) :].lstrip())]
        if self.tokenizer.normalizer is not None:
            text = self.tokenizer.normalizer.normalize_str(text)
        return [self._number(word) for word, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(text)]

    def encode(self, words: Sequence[int], variants: Sequence[int]) -> list[int]:
        """Returns the token ids of words in the given variants, 0 to VARIANTS - 1, and the end token."""
        ids: list[int] = []
        for word, variant in zip(words, variants, strict=True):
            place = word * VARIANTS + variant
            pieces = self._variants[place]
            if pieces is None:
                pieces = self._variants[place] = self.segment(self._words[word], variant)
            ids += pieces
        ids.append(END_ID)
        return ids

    def segment(self, word: str, variant: int) -> list[int]:
        """Returns one of the segmentations of a word as token ids."""
        if word in self.starts:
            return [self.starts[word]]
        rng = np.random.default_rng([self.seed, variant, zlib.crc32(word.encode())])
        ids: list[int] = []
        run: list[str] = []  # characters that may merge
        for character in word:
            dropped = character in self.rare and rng.random() < self.byte_dropout
            if dropped or character not in self.vocabulary:
                ids += self._merge(run, rng)
                ids += [self.vocabulary.get(f"<0x{byte:02X}>", UNKNOWN_ID) for byte in character.encode()]
                run = []
            else:
                run.append(character)
        return ids + self._merge(run, rng)

    def _number(self, word: str) -> int:
        number = self._word_ids.get(word)
        if number is None:
            number = self._word_ids[word] = len(self._words)
            self._words.append(word)
            self._variants += [None] * VARIANTS
        return number

    def _merge(self, pieces: list[str], rng: np.random.Generator) -> list[int]:
        """Merges pieces by rank, skipping each possible merge with the probability `bpe_dropout` in every round."""
        pieces = list(pieces)
        while len(pieces) > 1:
            found = [(rank, i) for i, pair in enumerate(pairwise(pieces)) if (rank := self.ranks.get(pair)) is not None]
            if self.bpe_dropout:
                kept = rng.random(len(found)) >= self.bpe_dropout
                found = [merge for merge, keep in zip(found, kept, strict=True) if keep]
            if not found:
                break
            _, i = min(found)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
        return [self.vocabulary[piece] for piece in pieces]


def rare_characters(counts: Counter[str]) -> str:
    """Returns the characters outside the most common ones that make up COMMON_SHARE of a text, sorted.

    Args:
        counts: How often each character occurs in the normalized training texts.
    """
    covered, total = 0, counts.total()
    rare: list[str] = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= COMMON_SHARE * total:
            rare.append(character)
        covered += count
    return "".join(sorted(rare))
