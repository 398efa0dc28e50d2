"""Rows that choose in every way a step knows, each compared with what the trained model's logits say."""

import numpy as np
from numpy.typing import NDArray

from dragoman_export.checks.references import TorchReference, largest_difference
from dragoman_export.checks.serving_simulation import draw_sources
from dragoman_server.core.search import LogitEdits, StepRequest, StepResult
from dragoman_server.runtime.runtime import Runtime

EDITS = (0, 1, 3)
TEMPERATURES = (1.0, 0.5, 1.6)
ROWS = 12


def check_head_inputs(runtime: Runtime, reference: TorchReference) -> tuple[dict[str, float], dict[str, float]]:
    """The largest differences between the graphs and the model in double precision, in nats and in shares of attention.

    And those that rounding to single precision makes on the same inputs.

    Rows of different age differ in edits, temperature, vocabulary, and whether they look at the source; in a first
    step some do, in a second none do, in a third all do.
    """
    rng = np.random.default_rng(3)
    rows = min(ROWS, runtime.max_rows)
    sources = draw_sources(runtime, rows, runtime.source_capacity, rng)
    vocabulary = runtime.manifest.shape.target_vocabulary
    steps = min(4, runtime.target_capacity)
    targets = rng.integers(0, vocabulary, (rows, steps))
    logits, attention = reference.choices(reference.precise, sources, targets)
    rounding = {"log_probabilities": 0.0, "attention": 0.0}
    for model in reference.singles:
        rounded, looks = reference.choices(model, sources, targets)
        for name, one, other in (
            ("log_probabilities", _log_softmax(rounded), _log_softmax(logits)),
            ("attention", looks, attention),
        ):
            rounding[name] = max(rounding[name], largest_difference(one, other))
    runtime.encode(sources, 0)
    found = {"log_probabilities": 0.0, "attention": 0.0}
    for step in range(steps):
        share = (0.5, 0.0, 1.0, 0.5)[step]
        step_requests = [_draw(rng, vocabulary, share) for _ in range(rows)]
        scores = runtime.step(step_requests)
        for row, step_request in enumerate(step_requests):
            difference = _difference(scores, row, step_request, logits[row, step])
            found["log_probabilities"] = max(found["log_probabilities"], difference)
            if step_request.attention:
                looked = np.abs(scores.attention(row) - attention[row, step, : len(sources[row])]).max()
                found["attention"] = max(found["attention"], float(looked))
        runtime.tokens[:rows, 0] = targets[:, step]
        runtime.positions[:rows] += 1
    return found, rounding


def _draw(rng: np.random.Generator, vocabulary: int, share: float) -> StepRequest:
    """A step_request of which each part is there with a probability of `share`."""
    edits = None
    if rng.random() < share:
        ids = rng.choice(vocabulary, min(vocabulary - 1, int(rng.choice(EDITS))), replace=False)
        offsets = np.where(rng.random(len(ids)) < 0.5, -np.inf, 0.0)
        edits = LogitEdits(ids.tolist(), rng.uniform(0.5, 2, len(ids)).tolist(), offsets.tolist())
    listed = None
    if rng.random() < share:
        listed = tuple(sorted(rng.choice(vocabulary, max(1, vocabulary // 2), replace=False).tolist()))
    return StepRequest(
        candidates=int(rng.integers(1, vocabulary + 1)),
        edits=edits,
        temperature=float(rng.choice(TEMPERATURES)) if rng.random() < share else 1.0,
        untempered=bool(rng.random() < share),
        vocabulary=listed,
        attention=bool(rng.random() < share),
    )


def _difference(scores: StepResult, row: int, step_request: StepRequest, logits: NDArray[np.float64]) -> float:
    """The largest difference of a row's log-probabilities to those that its logits [vocabulary] give."""
    plain = _expected(step_request, logits, 1.0)
    expected = _expected(step_request, logits, step_request.temperature)
    ids, log_probabilities = scores.top(row)
    possible = [place for place, value in enumerate(log_probabilities) if value > -np.inf]  # others are any token
    chosen = [ids[place] for place in possible]
    pairs = [([log_probabilities[place] for place in possible], expected[chosen])]
    if step_request.untempered:
        values = scores.untempered(row)
        pairs.append(([values[place] for place in possible], plain[chosen]))
    if step_request.edits:
        pairs.append((scores.edited(row), expected[list(step_request.edits.ids)]))
    largest = 0.0
    for actual, wanted in pairs:
        a, b = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
        if (np.isfinite(a) != np.isfinite(b)).any():
            return float("inf")
        largest = max(largest, _largest_of_possible(a, b))
    best = np.sort(expected)[::-1][: len(ids)]
    return max(largest, _largest_of_possible(np.asarray(log_probabilities), best))


def _largest_of_possible(actual: NDArray[np.float64], wanted: NDArray[np.float64]) -> float:
    """The largest difference where what is wanted is not -inf."""
    possible = np.isfinite(wanted)
    return float(np.abs(actual[possible] - wanted[possible]).max(initial=0.0))


def _expected(step_request: StepRequest, logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Log-probabilities [vocabulary], as StepRequest defines them."""
    logits = logits.copy()
    if step_request.edits:
        ids = list(step_request.edits.ids)
        penalties, chosen = np.array(step_request.edits.penalties), logits[ids]
        logits[ids] = np.where(chosen > 0, chosen / penalties, chosen * penalties) + np.array(
            step_request.edits.offsets
        )
    if step_request.vocabulary is not None:
        kept = logits[list(step_request.vocabulary)]
        logits[:] = -np.inf
        logits[list(step_request.vocabulary)] = kept
    return _log_softmax(logits / temperature)


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last dimension; -inf everywhere where all logits are."""
    largest = logits.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        result = logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
    return np.where(np.isfinite(largest), result, -np.inf)
