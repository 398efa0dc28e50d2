"""How good the exported model is on the run's own data, decoded by the exported graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

from export.generate import greedy, within_limit
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from server.runtime.device import Device
from server.runtime.model import Runtime, Sessions
from training.data.corpus import Pair, references
from training.evaluation.metrics import LOWER_IS_BETTER, METRICS
from training.recipe import Metric

ROWS = 64
NAMES: dict[Metric, str] = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match (%)",
    "sequence_error_rate": "sequence error rate (%)",
    "word_error_rate": "word error rate (%)",
}


@dataclass(frozen=True)
class Decoded:
    """Greedy answers to the sources of some pairs.

    Attributes:
        ids: target ids of each source that is within the model's limit.
        scores: percentages by metric. A source beyond the limit counts as answered with nothing.
    """

    ids: dict[str, list[int]]
    scores: dict[Metric, float]


def decode(bundle: Bundle, device: Device, pairs: Sequence[Pair], metrics: Sequence[Metric]) -> Decoded:
    """Answers the sources of some pairs, of which several may have the same, and measures how well."""
    runtime = Runtime(Sessions(bundle, device, usable_cpus()), ROWS)
    expected = references(pairs)
    kept = list(within_limit(bundle.source_tokenizer, list(expected), bundle.manifest.limits.max_source_tokens))
    rows = greedy(runtime, [ids for _, ids in kept])
    texts = bundle.target_tokenizer.decode_batch(rows)
    answers = dict.fromkeys(expected, "") | {source: text for (source, _), text in zip(kept, texts, strict=True)}
    scores = {metric: METRICS[metric](answers, expected).value for metric in metrics}
    return Decoded({source: ids for (source, _), ids in zip(kept, rows, strict=True)}, scores)


def lost(metric: Metric, before: float, after: float) -> float:
    """Points by which a measurement got worse; less than 0 where it got better."""
    return after - before if metric in LOWER_IS_BETTER else before - after
