"""One decode step: what may follow and how probable it is, over the whole vocabulary in float64; where text stops."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import TokenChoice
from dragoman_server.core.search_options import Constraints

Vector = NDArray[np.float64]
Decode = Callable[[list[int]], str]


class Margins:
    """How close decisions were: where two numbers are nearly equal, rounding decides, and programs may differ.

    Attributes:
        smallest: Smallest difference that decided anything, of log-probabilities, scores or shares of probability.
    """

    def __init__(self) -> None:
        self.smallest = inf

    def note(self, difference: float) -> None:
        """Notes a decision that a difference of the other sign would have turned."""
        if difference == difference:  # otherwise both numbers are infinite: what is impossible competes with nothing
            self.smallest = min(self.smallest, abs(difference))

    def cut(self, descending: Sequence[float], kept: int) -> None:
        """Notes that the first `kept` were taken and the others left."""
        if 0 < kept < len(descending):
            self.note(descending[kept - 1] - descending[kept])


def distribution(
    logits: Vector, ids: Sequence[int], constraints: Constraints, end: int, temperature: float = 1.0
) -> Vector:
    """Returns the log-probabilities of what follows a hypothesis, [vocabulary]; -inf for what must not.

    Args:
        logits: Logits of the model, [vocabulary].
        ids: Ids of the hypothesis, those of a forced prefix included.
        temperature: Divisor of the logits after the constraints have changed them.
    """
    log_probabilities = log_softmax(constrained(logits, ids, constraints, end) / temperature)
    preferred = preferred_token(ids, constraints)
    if preferred is None or log_probabilities[preferred] == -np.inf:  # what is forbidden is not preferred
        return log_probabilities
    assert constraints.prefix_bias is not None
    probabilities = (1 - constraints.prefix_bias) * np.exp(log_probabilities)
    probabilities[preferred] += constraints.prefix_bias
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def constrained(logits: Vector, ids: Sequence[int], constraints: Constraints, end: int) -> Vector:
    """Returns the logits after every constraint but the soft prefix."""
    x = logits.astype(np.float64)
    penalty, size = constraints.repetition_penalty, constraints.no_repeat_ngram_size
    for token in set(ids):
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    forbidden = set(constraints.suppressed)
    forbidden |= {last for *start, last in constraints.suppressed_sequences if ends_with(ids, start)}
    if size:
        forbidden |= {
            ids[i + size - 1] for i in range(len(ids) - size + 1) if ends_with(ids, list(ids[i : i + size - 1]))
        }
    if len(ids) - len(forced(constraints)) < constraints.min_new_tokens:
        forbidden.add(end)
    if constraints.vocabulary is not None:
        forbidden |= set(range(len(x))) - set(constraints.vocabulary)
    x[sorted(forbidden)] = -np.inf
    return x


def forced(constraints: Constraints) -> list[int]:
    """Returns the ids that every hypothesis starts with."""
    return list(constraints.prefix) if constraints.prefix_bias is None else []


def preferred_token(ids: Sequence[int], constraints: Constraints) -> int | None:
    """Returns the next token of a soft prefix; None where there is none, or the ids have left it."""
    position = len(ids)
    if constraints.prefix_bias is None or position >= len(constraints.prefix):
        return None
    return constraints.prefix[position] if tuple(ids) == constraints.prefix[:position] else None


def ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    return len(ids) >= len(end) and list(ids[len(ids) - len(end) :]) == list(end)


def log_softmax(x: Vector) -> Vector:
    """Returns -inf everywhere if nothing is possible."""
    highest = x.max()
    if highest == -np.inf:
        return x
    shifted: Vector = x - highest
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def ranked(log_probabilities: Vector) -> list[int]:
    """Returns the possible tokens, the most probable first, then by id."""
    order = np.argsort(-log_probabilities, kind="stable")
    return [int(token) for token in order if log_probabilities[token] > -np.inf]


def choices(log_probabilities: Vector, count: int) -> list[TokenChoice]:
    """Returns the `count` most probable tokens of a position."""
    if not count:
        return []
    return [TokenChoice(token, float(log_probabilities[token])) for token in ranked(log_probabilities)[:count]]


def completed(ids: Sequence[int], constraints: Constraints, decode: Decode) -> int | None:
    """Returns the characters to keep if the last token completes a stop sequence, else None.

    Of several that it completes the one that starts first counts, and of those the longest.

    NOTE: only for tokenizers whose text so far is not changed by what follows.
    """
    before, text = decode(list(ids[:-1])), decode(list(ids))
    matches = [
        (start, -len(stop))
        for stop in constraints.stop_sequences
        for start in range(len(text) - len(stop) + 1)
        if text.startswith(stop, start) and start + len(stop) > len(before)
    ]
    if not matches:
        return None
    start, minus_length = min(matches)
    return start - minus_length if constraints.include_stop_sequence else start
