"""Metrics of answers, with one or several references per source. All values are percentages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman_training.recipe import Metric

LOWER_IS_BETTER = {"loss", "sequence_error_rate", "word_error_rate"}

Answers = Mapping[str, str]
References = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Score:
    """A percentage; for BLEU and chrF with the sacrebleu signature that makes it comparable."""

    value: float
    signature: str | None = None


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
    right = sum(answers[source] in targets for source, targets in references.items())
    return Score(100 * right / len(references))


def sequence_error_rate(answers: Answers, references: References) -> Score:
    """Returns the share of sources whose answer equals no reference.

    The literature on grapheme-to-phoneme conversion calls it word error rate.
    """
    wrong = sum(answers[source] not in targets for source, targets in references.items())
    return Score(100 * wrong / len(references))


def word_error_rate(answers: Answers, references: References) -> Score:
    """Returns the edits per reference word against the nearest reference; white space separates words.

    If the words are phones, the literature calls it phone error rate.
    """
    edits = words = 0
    for source, targets in references.items():
        answer = answers[source].split()
        distance, length = min((edit_distance(answer, t.split()), len(t.split())) for t in targets)
        edits += distance
        words += length
    return Score(100 * edits / words)


def bleu(answers: Answers, references: References) -> Score:
    """Computes corpus BLEU (Papineni et al. 2002) with sacrebleu."""
    return _sacrebleu(BLEU(), answers, references)


def chrf(answers: Answers, references: References) -> Score:
    """Computes corpus chrF (Popović 2015) with sacrebleu."""
    return _sacrebleu(CHRF(), answers, references)


def _sacrebleu(metric: BLEU | CHRF, answers: Answers, references: References) -> Score:
    count = max(map(len, references.values()))
    streams = [[targets[i] if i < len(targets) else None for targets in references.values()] for i in range(count)]
    score = metric.corpus_score([answers[source] for source in references], streams)  # type: ignore[arg-type]
    return Score(score.score, str(metric.get_signature()))


METRICS: dict[Metric, Callable[[Answers, References], Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "exact_match": exact_match,
    "sequence_error_rate": sequence_error_rate,
    "word_error_rate": word_error_rate,
}


def better(metric: str, value: float, than: float) -> bool:
    """Returns whether a value of this metric is better than another."""
    return value < than if metric in LOWER_IS_BETTER else value > than
