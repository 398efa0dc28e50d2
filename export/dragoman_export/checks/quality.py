"""The quality of exported graphs: on the pairs of a run, or against an imported model's own answers in fp32."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman_export.checks.affordable import reserved_rows
from dragoman_export.checks.offline_decoding import decode_greedily, encode_targets, within_limit
from dragoman_export.run_data import spread
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU, Device
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, references
from dragoman_training.evaluation.metrics import LOWER_IS_BETTER, METRICS, better
from dragoman_training.recipe import Metric

ROWS = 64
EXAMPLES = 512  # examples of a set
NAMES: dict[Metric, str] = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "ter": "TER",
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


class ComparisonSet(Protocol):
    """Data on which bundles of the same model are compared.

    Attributes:
        name: Name for reports.
    """

    name: str

    def decode(self, bundle: Bundle, device: Device, shortlist: Shortlist | None = None) -> DecodedSet:
        """Decodes the sources, with or without a shortlist, and scores the answers."""

    def examples(self, bundle: Bundle) -> list[tuple[list[int], list[int]]]:
        """Returns ids of sources and of targets without begin and end token, some of them, all within the limits."""


@dataclass
class PairSet:
    """Pairs, of which several may share a source.

    Attributes:
        name: Name for reports.
        pairs: The pairs.
        metrics: Metrics of the answers.
    """

    name: str
    pairs: Sequence[Pair]
    metrics: Sequence[Metric] = ()

    def decode(self, bundle: Bundle, device: Device, shortlist: Shortlist | None = None) -> DecodedSet:
        expected = references(self.pairs, bundle.source_tokenizer, bundle.target_tokenizer)
        rows = _decode(bundle, device, list(expected), shortlist)
        texts = bundle.target_tokenizer.decode_batch(list(rows.values()))
        texts = [canonical(bundle.target_tokenizer, text) for text in texts]
        answers = dict.fromkeys(expected, "") | dict(zip(rows, texts, strict=True))
        return _scored(rows, answers, expected, self.metrics)

    def examples(self, bundle: Bundle) -> list[tuple[list[int], list[int]]]:
        limits, tokens = bundle.manifest.limits, bundle.manifest.tokens
        targets = {pair.source: pair.target for pair in self.pairs}
        kept = list(within_limit(bundle, spread(list(targets), EXAMPLES)))
        encoded = encode_targets(bundle, [targets[source] for source, _ in kept])
        ids = [[i for i in row if i not in (tokens.begin, tokens.end)] for row in encoded]
        return [
            (source, target)
            for (_, source), target in zip(kept, ids, strict=True)
            if len(target) < limits.max_target_tokens
        ]


class AnswerSet:
    """Texts of which only the model's own answers in fp32 are known: what an imported model brings.

    The metric is chrF against those answers, so it is 100 for the bundle that gave them.

    Args:
        exact: The bundle in fp32.
        texts: The sources.
    """

    name = "sample texts"

    def __init__(self, exact: Bundle, texts: Sequence[str]) -> None:
        self._answers = _decode(exact, CPU, texts)
        self._sources = dict(within_limit(exact, texts))

    def decode(self, bundle: Bundle, device: Device, shortlist: Shortlist | None = None) -> DecodedSet:
        decode = bundle.target_tokenizer.decode_batch
        rows = _decode(bundle, device, list(self._answers), shortlist)
        answers = dict(zip(rows, decode(list(rows.values())), strict=True))
        texts = decode([self._answers[source] for source in rows])
        expected = {source: [text] for source, text in zip(rows, texts, strict=True)}
        return _scored(rows, answers, expected, ["chrf"])

    def examples(self, bundle: Bundle) -> list[tuple[list[int], list[int]]]:
        longest = bundle.manifest.limits.max_target_tokens - 1
        return [(self._sources[text], self._answers[text][:longest]) for text in spread(list(self._answers), EXAMPLES)]


def _decode(
    bundle: Bundle, device: Device, texts: Sequence[str], shortlist: Shortlist | None = None
) -> dict[str, list[int]]:
    """Returns the answers to the texts within the model's limit."""
    runtime = Runtime(Sessions(bundle, device, usable_cpus()), reserved_rows(bundle.manifest, ROWS))
    kept = dict(within_limit(bundle, texts))
    return dict(zip(kept, decode_greedily(runtime, list(kept.values()), shortlist), strict=True))


def _scored(
    ids: dict[str, list[int]], answers: dict[str, str], expected: dict[str, list[str]], metrics: Sequence[Metric]
) -> DecodedSet:
    scores = {metric: METRICS[metric](answers, expected).value for metric in metrics}
    return DecodedSet(ids, scores, answers, expected)


def points_worse(metric: Metric, before: float, after: float) -> float:
    """Returns by how many points a score got worse; negative if it got better."""
    return after - before if metric in LOWER_IS_BETTER else before - after
