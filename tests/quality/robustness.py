"""Sentences with numbers and with foreign text, and how many of their translations are right."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman_training.data.number_sentences import number_sentences

TEMPLATES = Path(__file__).with_name("numbers.tsv")  # none of them is among those of the training data
EMOJI = ["😀", "❤️", "👍🏽", "🎉", "🚀", "🇩🇪", "☕", "👨‍👩‍👧", "🐍", "⚠️"]
FOREIGN_WORDS = ["Привет", "東京", "שלום", "Αθήνα", "مرحبا", "नमस्ते", "서울", "ประเทศ", "さくら", "Łódź"]
LINE_BREAKS = ["\n"]

Translate = Callable[[Sequence[str]], list[str]]
"""Translates texts, in order."""


@dataclass
class Outcome:
    """How many texts were translated right.

    Attributes:
        total: Number of texts.
        lost: Number of inserts that are not in the answer.
        wrong: What was translated wrong: source, what was expected, and the answer.
    """

    total: int = 0
    lost: int = 0
    wrong: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def right(self) -> int:
        """Number of right translations."""
        return self.total - len(self.wrong)


def check_numbers(translate: Translate, count: int, seed: int = 2) -> Outcome:
    """Translates made sentences with prices, dates and account numbers.

    A translation is right if each run of digits, with the marks inside it, is in the answer as English writes it, and
    there are no other digits.
    """
    pairs = number_sentences(count, seed, TEMPLATES)
    outcome = Outcome(count)
    for (german, english), answer in zip(pairs, translate([german for german, _ in pairs]), strict=True):
        if sorted(_numbers(answer)) != sorted(_numbers(english)):
            outcome.wrong.append((german, english, answer))
    return outcome


def check_inserts(translate: Translate, sentences: Sequence[str], inserts: Sequence[str], seed: int = 2) -> Outcome:
    """Translates each sentence with an insert between two of its words.

    A translation is right if it has the insert (a line break may become a space) and is the one of the plain sentence
    otherwise, in all but white space.
    """
    rng = random.Random(seed)
    changed: list[tuple[str, str]] = []
    for i, sentence in enumerate(sentences):
        words, insert = sentence.split(" "), inserts[i % len(inserts)]
        place = rng.randint(1, max(1, len(words) - 1))
        joined = insert if insert.isspace() else f" {insert} "
        changed.append((" ".join(words[:place]) + joined + " ".join(words[place:]), insert))
    plain = translate(sentences)
    answers = translate([text for text, _ in changed])
    outcome = Outcome(len(sentences))
    for (text, insert), expected, answer in zip(changed, plain, answers, strict=True):
        kept = insert.isspace() or insert in answer
        outcome.lost += not kept
        if not kept or _without_space(answer.replace(insert, "")) != _without_space(expected):
            outcome.wrong.append((text, expected, answer))
    return outcome


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,:-]\d+)*", text)


def _without_space(text: str) -> str:
    return re.sub(r"\s", "", text)
