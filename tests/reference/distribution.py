"""What may come next, and how probable it is: the whole vocabulary at once, in float64."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search_options import Constraints

Vector = NDArray[np.float64]


def distribution(
    logits: Vector, ids: Sequence[int], constraints: Constraints, end: int, temperature: float = 1.0
) -> Vector:
    """Natural log-probabilities of what follows a hypothesis, [vocabulary]; -inf for what must not.

    Args:
        logits: of the model, [vocabulary].
        ids: of the hypothesis, those of a forced prefix included.
        temperature: divides the logits after the constraints have changed them.
    """
    log_probabilities = log_softmax(constrained(logits, ids, constraints, end) / temperature)
    wanted = preferred(ids, constraints)
    if wanted is None or log_probabilities[wanted] == -np.inf:  # what is forbidden is not preferred
        return log_probabilities
    assert constraints.prefix_bias is not None
    probabilities = (1 - constraints.prefix_bias) * np.exp(log_probabilities)
    probabilities[wanted] += constraints.prefix_bias
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


def constrained(logits: Vector, ids: Sequence[int], constraints: Constraints, end: int) -> Vector:
    """The logits after every constraint but the soft prefix."""
    x = logits.astype(np.float64)
    for token in set(ids):
        x[token] = (
            x[token] / constraints.repetition_penalty if x[token] > 0 else x[token] * constraints.repetition_penalty
        )
    forbidden = set(constraints.suppressed)
    forbidden |= {last for *start, last in constraints.suppressed_sequences if ends_with(ids, start)}
    if size := constraints.no_repeat_ngram_size:
        recent = list(ids[len(ids) - size + 1 :])
        for i in range(len(ids) - size + 1):
            if list(ids[i : i + size - 1]) == recent:
                forbidden.add(ids[i + size - 1])
    if len(ids) - len(forced(constraints)) < constraints.min_new_tokens:
        forbidden.add(end)
    if constraints.vocabulary is not None:
        forbidden |= set(range(len(x))) - set(constraints.vocabulary)
    x[sorted(forbidden)] = -np.inf
    return x


def forced(constraints: Constraints) -> list[int]:
    """The ids that every hypothesis starts with."""
    return list(constraints.prefix) if constraints.prefix_bias is None else []


def preferred(ids: Sequence[int], constraints: Constraints) -> int | None:
    """The token that a soft prefix prefers after these ids; None where there is none, or they have left it."""
    place = len(ids)
    if constraints.prefix_bias is None or place >= len(constraints.prefix):
        return None
    return constraints.prefix[place] if tuple(ids) == constraints.prefix[:place] else None


def ends_with(ids: Sequence[int], end: Sequence[int]) -> bool:
    return len(ids) >= len(end) and list(ids[len(ids) - len(end) :]) == list(end)


def log_softmax(x: Vector) -> Vector:
    """-inf everywhere where nothing is possible."""
    highest = x.max()
    if highest == -np.inf:
        return x
    shifted: Vector = x - highest
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def ranked(log_probabilities: Vector) -> list[int]:
    """Possible tokens, the most probable first, then by id."""
    order = np.argsort(-log_probabilities, kind="stable")
    return [int(token) for token in order if log_probabilities[token] > -np.inf]
