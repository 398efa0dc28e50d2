"""How good the exported model is on the run's own data, decoded by the exported graphs."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman_export.checks.offline_decoding import greedy, within_limit
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
class Decoded:
    """Greedy answers to the sources of some pairs.

    Attributes:
        ids: target ids of each source that is within the model's limit.
        scores: percentages by metric. A source beyond the limit counts as answered with nothing.
        answers: as text, to every source, normalised as targets are.
        expected: the references to each source, normalised likewise.
    """

    ids: dict[str, list[int]]
    scores: dict[Metric, float]
    answers: dict[str, str]
    expected: dict[str, list[str]]

    def by_chance(self) -> dict[Metric, float]:
        """The best that the metrics make of the same answers given to other sources, by turns of an eighth of them."""
        written = [self.answers[source] for source in self.expected]
        best: dict[Metric, float] = {}
        for turn in sorted({len(written) * eighths // 8 for eighths in range(1, 8)}):
            moved = dict(zip(self.expected, written[turn:] + written[:turn], strict=True))
            for metric in self.scores:
                value = METRICS[metric](moved, self.expected).value
                best[metric] = value if better(metric, value, best.get(metric, value)) else best.get(metric, value)
        return best


def decode(bundle: Bundle, device: Device, pairs: Sequence[Pair], metrics: Sequence[Metric]) -> Decoded:
    """Answers the sources of some pairs, of which several may have the same, and measures how well."""
    runtime = Runtime(Sessions(bundle, device, usable_cpus()), ROWS)
    expected = references(pairs, bundle.source_tokenizer, bundle.target_tokenizer)
    kept = list(within_limit(bundle.source_tokenizer, list(expected), bundle.manifest.limits.max_source_tokens))
    rows = greedy(runtime, [ids for _, ids in kept])
    texts = [canonical(bundle.target_tokenizer, text) for text in bundle.target_tokenizer.decode_batch(rows)]
    answers = dict.fromkeys(expected, "") | {source: text for (source, _), text in zip(kept, texts, strict=True)}
    scores = {metric: METRICS[metric](answers, expected).value for metric in metrics}
    ids = {source: row for (source, _), row in zip(kept, rows, strict=True)}
    return Decoded(ids, scores, answers, expected)


def lost(metric: Metric, before: float, after: float) -> float:
    """Points by which a measurement got worse; less than 0 where it got better."""
    return after - before if metric in LOWER_IS_BETTER else before - after
