"""Candidates of the teachers, and which of them the student learns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from dragoman.bulk.errors import BulkError
from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.distill.lines import on_one_line, repeats, unfit
from dragoman_server.offline.scored import NOT_SCORED, Scored

Choice = Literal["score", "bleu", "chrf"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
Closeness = Callable[[str, str], float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An answer of a teacher.

    Attributes:
        text: Its text on one line.
        fault: Why it can't be used; empty if it can.
        found: Its tokens and their score as the search found them.
    """

    text: str
    fault: str
    found: Scored = field(default=NOT_SCORED, compare=False)


def candidate(result: HypothesisResult, text: str, source_ids: Sequence[int], max_new_tokens: int) -> Candidate:
    """Judges an answer.

    Args:
        text: Its text.
        max_new_tokens: The length limit that it had.
    """
    text = on_one_line(text)
    fault = ""
    if result.reason is not FinishReason.EOS or len(result.ids) - result.prefix >= max_new_tokens:
        fault = "the answer is cut off by the length limit"
    elif problem := unfit(text):
        fault = f"the answer {problem}"
    elif repeats(result.ids) and not repeats(source_ids):
        fault = "the answer repeats itself"
    score = sum(result.log_probabilities) / max(len(result.log_probabilities), 1)
    return Candidate(text, fault, Scored(result.ids, score))


def merge(teachers: Iterable[Sequence[Candidate]]) -> list[Candidate]:
    """Returns the candidates of several teachers, each text once: the best of each teacher first."""
    lists = list(teachers)
    ranked = [found[rank] for rank in range(max(map(len, lists), default=0)) for found in lists if rank < len(found)]
    merged: dict[str, Candidate] = {}
    for one in ranked:
        if one.text not in merged or (merged[one.text].fault and not one.fault):
            merged[one.text] = one
    return list(merged.values())


def closeness(choice: Choice) -> Closeness:
    """Returns a function from a candidate and a reference to their sentence BLEU or chrF.

    Raises:
        BulkError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ModuleNotFoundError:
        raise BulkError(f"--choose {choice} needs the package sacrebleu: pip install sacrebleu") from None
    metric = BLEU(effective_order=True) if choice == "bleu" else CHRF()

    def close(text: str, reference: str) -> float:
        return float(metric.sentence_score(text, [reference]).score)

    return close
