"""Compares steps with all kinds of head inputs with the trained model: edits, temperatures, shortlists, attention."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman_export.checks.affordable import longest_source, longest_target
from dragoman_export.checks.references import TorchReference
from dragoman_export.checks.serving_simulation import draw_sources
from dragoman_export.checks.tolerance import largest_difference
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.core.search import LogitEdits, StepRequest, StepResult
from dragoman_server.runtime.runtime import Runtime

EDITS = (0, 1, 3)
MOST_LISTED = 4096  # tokens of a shortlist, whose weights are gathered
TEMPERATURES = (1.0, 0.5, 1.6)
ROWS = 12
OPTION_RATES = (0.5, 0.0, 1.0, 0.5)  # by step: the share of rows with edits, with a shortlist, ...


@dataclass(frozen=True)
class ExpectedHead:
    """Random rows, and what the trained model computes for them.

    Attributes:
        sources: Token ids of each row with the end token.
        targets: Token ids [rows, steps].
        logits: [rows, steps, vocabulary].
        attention: Attention to the source, averaged over the heads of the last layer [rows, steps, source].
        rounding: Distance of the model in single precision from the exact result: in nats for log-probabilities,
            absolute for attention weights. A key is an output.
    """

    sources: list[list[int]]
    targets: NDArray[np.int64]
    logits: NDArray[np.float64]
    attention: NDArray[np.float64]
    rounding: dict[str, float]


def expect_head(manifest: Manifest, reference: TorchReference, rows: int = ROWS) -> ExpectedHead:
    """Draws sources and targets for a few steps, and runs the model on them."""
    rng = np.random.default_rng(3)
    sources = draw_sources(manifest, rows, longest_source(manifest, rows, manifest.limits.max_source_tokens), rng)
    steps = min(len(OPTION_RATES), longest_target(manifest, rows))
    targets = rng.integers(0, manifest.shape.target_vocabulary, (rows, steps))
    logits, attention = reference.step_outputs(reference.precise, sources, targets)
    rounding = {"log_probabilities": 0.0, "attention": 0.0}
    for model in reference.single_precision_models:
        single_logits, single_attention = reference.step_outputs(model, sources, targets)
        for name, single, exact in (
            ("log_probabilities", _log_softmax(single_logits), _log_softmax(logits)),
            ("attention", single_attention, attention),
        ):
            rounding[name] = max(rounding[name], largest_difference(single, exact))
    return ExpectedHead(sources, targets, logits, attention, rounding)


def check_head_inputs(runtime: Runtime, expected: ExpectedHead) -> dict[str, float]:
    """Runs a few steps of rows that differ in edits, temperature, shortlist and attention.

    Returns:
        The largest differences, as in `ExpectedHead.rounding`.
    """
    sources, targets, logits, attention = expected.sources, expected.targets, expected.logits, expected.attention
    rng = np.random.default_rng(5)
    rows, steps = targets.shape
    vocabulary = runtime.manifest.shape.target_vocabulary
    runtime.encode(sources, 0)
    found = {"log_probabilities": 0.0, "attention": 0.0}
    for step in range(steps):
        requests = [_draw_request(rng, vocabulary, OPTION_RATES[step]) for _ in range(rows)]
        scores = runtime.step(requests)
        for row, request in enumerate(requests):
            difference = _row_difference(scores, row, request, logits[row, step])
            found["log_probabilities"] = max(found["log_probabilities"], difference)
            if request.attention:
                weights = attention[row, step, : len(sources[row])]
                found["attention"] = max(found["attention"], float(np.abs(scores.attention(row) - weights).max()))
        runtime.tokens[:rows, 0] = targets[:, step]
        runtime.positions[:rows] += 1
    return found


def _draw_request(rng: np.random.Generator, vocabulary: int, rate: float) -> StepRequest:
    """Returns a step request that has each option with a probability of `rate`."""
    edits = None
    if rng.random() < rate:
        ids = rng.choice(vocabulary, min(vocabulary - 1, int(rng.choice(EDITS))), replace=False)
        offsets = np.where(rng.random(len(ids)) < 0.5, -np.inf, 0.0)
        edits = LogitEdits(ids.tolist(), rng.uniform(0.5, 2, len(ids)).tolist(), offsets.tolist())
    shortlist = None
    if rng.random() < rate:
        listed = min(MOST_LISTED, max(1, vocabulary // 2))
        shortlist = tuple(sorted(rng.choice(vocabulary, listed, replace=False).tolist()))
    return StepRequest(
        candidates=int(rng.integers(1, vocabulary + 1)),
        edits=edits,
        temperature=float(rng.choice(TEMPERATURES)) if rng.random() < rate else 1.0,
        untempered=bool(rng.random() < rate),
        vocabulary=shortlist,
        attention=bool(rng.random() < rate),
    )


def _row_difference(scores: StepResult, row: int, request: StepRequest, logits: NDArray[np.float64]) -> float:
    """Returns the largest difference between a row's log-probabilities and those computed from its logits [vocabulary].

    Infinite where only one of them is forbidden.
    """
    expected = _expected(request, logits, request.temperature)
    ids, log_probabilities = scores.top(row)
    possible = [place for place, value in enumerate(log_probabilities) if value > -np.inf]  # the ids of others are void
    chosen = [ids[place] for place in possible]
    pairs = [([log_probabilities[place] for place in possible], expected[chosen])]
    if request.untempered:
        values = scores.untempered(row)
        pairs.append(([values[place] for place in possible], _expected(request, logits, 1.0)[chosen]))
    if request.edits:
        pairs.append((scores.edited(row), expected[list(request.edits.ids)]))
    largest = 0.0
    for actual, reference in pairs:
        a, b = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
        if (np.isfinite(a) != np.isfinite(b)).any():
            return float("inf")
        largest = max(largest, _largest_of_possible(a, b))
    best = np.sort(expected)[::-1][: len(ids)]
    return max(largest, _largest_of_possible(np.asarray(log_probabilities), best))


def _largest_of_possible(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """Returns the largest difference where the expected value is not -inf."""
    possible = np.isfinite(expected)
    return float(np.abs(actual[possible] - expected[possible]).max(initial=0.0))


def _expected(request: StepRequest, logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Returns log-probabilities [vocabulary] as `dragoman_server.core.search` defines them."""
    logits = logits.copy()
    if request.edits:
        ids = list(request.edits.ids)
        penalties, before = np.array(request.edits.penalties), logits[ids]
        logits[ids] = np.where(before > 0, before / penalties, before * penalties) + np.array(request.edits.offsets)
    if request.vocabulary is not None:
        kept = logits[list(request.vocabulary)]
        logits[:] = -np.inf
        logits[list(request.vocabulary)] = kept
    return _log_softmax(logits / temperature)


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the log-softmax over the last dimension; -inf everywhere if all logits are -inf."""
    largest = logits.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        result = logits - largest - np.log(np.exp(logits - largest).sum(-1, keepdims=True))
    return np.where(np.isfinite(largest), result, -np.inf)
