"""The inputs for the servers: texts, each with a limit of tokens for its answer."""

import random
from dataclasses import dataclass

from dragoman_server.bundle.load import Bundle
from tests.benchmark.workload import SEED, Workload, encoded, random_text, real_words

WORDS = 1024
_DRAWN = """
14:16 10:10 19:19 15:17 11:11 12:12 14:11 11:11 15:12 13:15 8:10 14:14 9:11 11:10 13:13 8:7 11:11 19:19 17:18
8:9 10:12 10:12 13:13 17:15 13:14 17:18 12:13 13:13 14:12 7:8 9:10 8:10 7:9 19:18 7:10 15:17 20:21 12:13 11:12
7:7 21:19 8:9 13:14 8:9 11:9 8:8 10:15 10:11 11:11 20:28 6:10 12:12 14:15 10:10 11:12 9:10 9:10 9:14 11:13
22:22 10:10 9:12 8:9 6:8 12:12 7:7 10:14 10:12 15:17 16:20 13:13 16:12 18:15 15:17 11:13 11:10 19:14 5:7 21:23
19:18 11:11 8:9 11:12 9:11 16:24 16:15 16:16 12:14 8:10 16:16 14:15 7:9 9:8 12:13 12:9 19:22 27:33 19:21 8:7
12:12 16:15 14:12 12:15 18:15 11:10 11:11 15:14 18:15 7:8 10:10 8:7 15:17 15:15 10:12 12:13 25:22 8:8 8:10
9:15 12:10 14:16 10:11 21:21 11:14 16:14 11:11 8:10 10:11
"""
SENTENCES = [(int(source), int(target)) for source, target in (pair.split(":") for pair in _DRAWN.split())]
"""Lengths of 128 sentences of Multi30k's test set of 2016, German and English, in words and punctuation marks."""


@dataclass(frozen=True)
class Inputs:
    """Inputs for one model.

    Attributes:
        workload: The texts.
        limits: The most tokens of each text's answer.
        ends: Whether the model ends its answers itself, so that the end token counts as decoded; otherwise all answers
            are as long as their limits.
    """

    workload: Workload
    limits: list[int]
    ends: bool


def word_inputs(bundle: Bundle) -> Inputs:
    """Words for a model that ends its answers."""
    workload = real_words(bundle, WORDS)
    return Inputs(workload, [workload.max_new_tokens] * len(workload.texts), ends=True)


def sentence_inputs(bundle: Bundle) -> Inputs:
    """Random symbols for a model that never ends an answer, with the lengths of real sentences and translations."""
    draw = random.Random(SEED)
    texts = [random_text(bundle, source, draw) for source, _ in SENTENCES]
    title = f"random symbols with the lengths of {len(SENTENCES)} German sentences and their English translations"
    limits = [target for _, target in SENTENCES]
    return Inputs(encoded(bundle, title, texts, max(limits)), limits, ends=False)
