"""The quality of the exported graphs on the run's own data."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman_export.checks.offline_decoding import decode_greedily, within_limit
from dragoman_server.bundle.load import Bundle
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, references
from dragoman_training.evaluation.metrics import LOWER_IS_BETTER, METRICS, better
from dragoman_training.recipe import Metric

ROWS = 64
NAMES: dict[Metric, str] = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "exact_match": "exact match (%)",
    "sequence_error_rate": "sequence error rate (%)",
    "word_error_rate": "word error rate (%)",
}


@dataclass(frozen=True)
class DecodedSet:
    """Greedy answers to the sources of a data set.

    Attributes:
        ids: Target ids of each source within the model's limit.
        scores: Percentages by metric. A source beyond the limit counts as an empty answer.
        answers: Text of each answer, normalized as targets are.
        expected: References of each source, normalized likewise.
    """

    ids: dict[str, list[int]]
    scores: dict[Metric, float]
    answers: dict[str, str]
    expected: dict[str, list[str]]

    def chance_scores(self) -> dict[Metric, float]:
        """Returns the best scores of the same answers assigned to other sources, shifted by eighths of the set."""
        answers = [self.answers[source] for source in self.expected]
        best: dict[Metric, float] = {}
        for shift in sorted({len(answers) * eighths // 8 for eighths in range(1, 8)}):
            shifted = dict(zip(self.expected, answers[shift:] + answers[:shift], strict=True))
            for metric in self.scores:
                value = METRICS[metric](shifted, self.expected).value
                best[metric] = value if better(metric, value, best.get(metric, value)) else best.get(metric, value)
        return best


def decode_set(bundle: Bundle, device: Device, pairs: Sequence[Pair], metrics: Sequence[Metric]) -> DecodedSet:
    """Decodes the sources of a data set, in which several pairs may share a source, and scores the answers."""
    runtime = Runtime(Sessions(bundle, device, usable_cpus()), ROWS)
    expected = references(pairs, bundle.source_tokenizer, bundle.target_tokenizer)
    kept = list(within_limit(bundle, list(expected)))
    rows = decode_greedily(runtime, [ids for _, ids in kept])
    texts = [canonical(bundle.target_tokenizer, text) for text in bundle.target_tokenizer.decode_batch(rows)]
    answers = dict.fromkeys(expected, "") | {source: text for (source, _), text in zip(kept, texts, strict=True)}
    scores = {metric: METRICS[metric](answers, expected).value for metric in metrics}
    ids = {source: row for (source, _), row in zip(kept, rows, strict=True)}
    return DecodedSet(ids, scores, answers, expected)


def points_worse(metric: Metric, before: float, after: float) -> float:
    """Returns by how many points a score got worse; negative if it got better."""
    return after - before if metric in LOWER_IS_BETTER else before - after
