"""Metrics of answers, with one or several references per source. All values are percentages."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF, CHRFScore
from sacrebleu.metrics.ter import TER

from dragoman_training.recipe import Metric

LOWER_IS_BETTER = {"loss", "ter", "sequence_error_rate", "word_error_rate"}
SAMPLES = 1000  # of a bootstrap
SEED = 12345  # of our metrics, and of sacrebleu unless SACREBLEU_SEED is set

Answers = Mapping[str, str]
References = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Score:
    """A percentage.

    Attributes:
        signature: Of a metric of sacrebleu, the signature that makes it comparable.
        interval: Bounds within which 95 % of the scores of resampled sources are; None if it was not asked for.
        resample: Returns the score with its interval, given the number of samples.
    """

    value: float
    signature: str | None = None
    interval: tuple[float, float] | None = None
    resample: Callable[[int], "Score"] | None = field(default=None, compare=False, repr=False)

    def with_interval(self, sources: int) -> "Score":
        """Returns the score with its interval by bootstrap resampling of the sources (Koehn 2004), with a fixed seed.

        Of more than 5,000 sources there are fewer samples, since sacrebleu holds all of them at once.
        """
        samples = max(100, min(SAMPLES, 5000 * SAMPLES // sources))
        return self if self.resample is None else self.resample(samples)


def edit_distance(answer: Sequence[str], reference: Sequence[str]) -> int:
    """Counts the insertions, deletions and substitutions between two sequences (Levenshtein 1966)."""
    row = list(range(len(reference) + 1))
    for i, a in enumerate(answer, 1):
        above, row = row, [i]
        for j, r in enumerate(reference, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a != r)))
    return row[-1]


def exact_match(answers: Answers, references: References) -> Score:
    """Returns the share of sources whose answer equals one of the references."""
    return _share([(answers[source] in targets, 1) for source, targets in references.items()])


def sequence_error_rate(answers: Answers, references: References) -> Score:
    """Returns the share of sources whose answer equals no reference.

    The literature on grapheme-to-phoneme conversion calls it word error rate.
    """
    return _share([(answers[source] not in targets, 1) for source, targets in references.items()])


def word_error_rate(answers: Answers, references: References) -> Score:
    """Returns the edits per reference word against the nearest reference; white space separates words.

    If the words are phones, the literature calls it phone error rate.
    """
    counts: list[tuple[int, int]] = []
    for source, targets in references.items():
        answer = answers[source].split()
        counts.append(min((edit_distance(answer, t.split()), len(t.split())) for t in targets))
    return _share(counts)


def bleu(answers: Answers, references: References) -> Score:
    """Computes corpus BLEU (Papineni et al. 2002) with sacrebleu."""
    return _sacrebleu(BLEU, answers, references)


class _Chrf(CHRF):
    """sacrebleu's chrF, with Python's floats.

    It scores samples without a match as 0.0 and others in NumPy's float32, whose mean it cannot take together.
    """

    def _compute_score_from_stats(self, stats: list[int]) -> CHRFScore:
        found: CHRFScore = super()._compute_score_from_stats(stats)
        found.score = float(found.score)
        return found


def chrf(answers: Answers, references: References) -> Score:
    """Computes corpus chrF (Popović 2015) with sacrebleu."""
    return _sacrebleu(_Chrf, answers, references)


def ter(answers: Answers, references: References) -> Score:
    """Computes the translation edit rate (Snover et al. 2006) with sacrebleu."""
    return _sacrebleu(TER, answers, references)


def _share(counts: Sequence[tuple[int, int]]) -> Score:
    """Returns the sum of the first numbers over the sum of the second ones (at least 1), a pair for each source."""
    table = np.array(counts, dtype=np.int64)  # [sources, 2]

    def interval(samples: int) -> Score:
        draw = np.random.default_rng(SEED)
        weights = (draw.multinomial(len(table), [1 / len(table)] * len(table)) for _ in range(samples))
        part, whole = np.array([weight @ table for weight in weights]).T  # [samples] each
        low, high = np.percentile(100 * part / np.maximum(whole, 1), [2.5, 97.5])
        return Score(value, interval=(float(low), float(high)))

    part, whole = table.sum(0).tolist()
    value = 100 * part / max(whole, 1)
    return Score(value, resample=interval)


def _sacrebleu(kind: type[BLEU | CHRF | TER], answers: Answers, references: References) -> Score:
    count = max(map(len, references.values()))
    streams = [[targets[i] if i < len(targets) else None for targets in references.values()] for i in range(count)]
    texts = [answers[source] for source in references]

    def score(samples: int) -> Score:
        metric = kind()
        result = metric.corpus_score(texts, streams, n_bootstrap=samples)  # type: ignore[arg-type]
        signature = str(metric.get_signature())
        if samples == 1:
            return Score(result.score, signature, resample=score)
        # sacrebleu keeps mean and half width of the interval to itself, but for the text that it prints.
        found = json.loads(result.format(width=6, signature=signature, is_json=True))
        middle, half = found.get("confidence_mean", result.score), found.get("confidence_var", 0.0)
        return Score(result.score, signature, interval=(middle - half, middle + half))

    return score(1)


METRICS: dict[Metric, Callable[[Answers, References], Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "exact_match": exact_match,
    "sequence_error_rate": sequence_error_rate,
    "word_error_rate": word_error_rate,
}


def better(metric: str, value: float, than: float) -> bool:
    """Returns whether a value of this metric is better than another."""
    return value < than if metric in LOWER_IS_BETTER else value > than
