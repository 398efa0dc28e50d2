"""What is asked of the servers: texts, each with the most tokens its answer may have."""

import random
from dataclasses import dataclass

from server.bundle.load import Bundle
from tests.benchmark.servers.lengths import SENTENCES
from tests.benchmark.workload import SEED, Workload, encoded, random_text, real_words


@dataclass(frozen=True)
class Inputs:
    """Inputs for one model.

    Attributes:
        workload: the texts.
        limits: most tokens of each text's answer.
        ends: whether the model ends its answers by itself, so that an end token counts among those decoded; else all
            answers are as long as they may be.
    """

    workload: Workload
    limits: list[int]
    ends: bool


def word_inputs(bundle: Bundle, count: int) -> Inputs:
    """Words for a model that ends its answers."""
    workload = real_words(bundle, count)
    return Inputs(workload, [workload.max_new_tokens] * len(workload.texts), ends=True)


def sentence_inputs(bundle: Bundle) -> Inputs:
    """Random symbols for a model that never ends an answer, with the lengths of real sentences and translations."""
    draw = random.Random(SEED)
    texts = [random_text(bundle, source, draw) for source, _ in SENTENCES]
    title = f"random symbols with the lengths of {len(SENTENCES)} German sentences and their English translations"
    limits = [target for _, target in SENTENCES]
    return Inputs(encoded(bundle, title, texts, max(limits)), limits, ends=False)
