"""Beam search against enumeration of all hypotheses, and against a reference that considers every continuation."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.core.search_options import BeamOptions, Constraints, LengthNormalization, SearchOptions, Stopping
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_plan import BeamPlan
from dragoman_server.decoding.token_rules import TokenRules
from tests.reference.beam import BeamReference, normalized
from tests.reference.step import Margins, Vector, distribution, ranked
from tests.support.scripted_search import Run, run

END = 1
SOURCE = 3  # tokens
CLOSE = 1e-6  # float32 in the server, float64 here

NORMALIZATIONS = [
    (LengthNormalization.NONE, 1.0),
    *((LengthNormalization.LENGTH, penalty) for penalty in (0.0, 0.6, 1.0, 2.0, -1.0)),
    (LengthNormalization.GNMT, 0.6),
    (LengthNormalization.GNMT, 1.0),
]


@dataclass
class RandomModel:
    """Random probabilities and attention for each sequence of tokens.

    Args:
        sharpness: Standard deviation of logits.
        end: Increase of the end token's logit with each token before it.
    """

    seed: int
    vocabulary: int
    sharpness: float = 1.5
    end: float = 1.0

    def logits(self, ids: Sequence[int]) -> Vector:
        logits = self.sharpness * np.random.default_rng([self.seed, *ids]).standard_normal(self.vocabulary)
        logits[END] += self.end * len(ids) - 1
        return logits

    def probabilities(self, ids: tuple[int, ...]) -> Vector:
        return np.exp(self.logits(ids))

    def attention(self, ids: Sequence[int]) -> Vector:
        shares: NDArray[np.float64] = np.random.default_rng([self.seed, 99, *ids]).dirichlet(np.full(SOURCE, 0.3))
        return shares.astype(np.float32).astype(np.float64)

    def forward(self, rows: Sequence[Sequence[int]]) -> tuple[Vector, Vector]:
        return np.stack([self.logits(ids) for ids in rows]), np.stack([self.attention(ids) for ids in rows])

    def search(self, options: SearchOptions, delivered: int = 0) -> Run:
        beam_search = BeamSearch(BeamPlan(options, END, self.vocabulary), TokenRules(options.constraints, END), None)
        return run(beam_search, self.probabilities, attention=self.attention, delivered=delivered)

    def reference(self, options: SearchOptions) -> BeamReference:
        return BeamReference(self.forward, options, END, lambda ids: "", Margins())


def everything(
    model: RandomModel,
    options: SearchOptions,
    ids: tuple[int, ...] = (),
    values: tuple[float, ...] = (),
    covered: float | Vector = 0.0,
) -> Iterator[HypothesisResult]:
    """Yields all hypotheses that can end, by recursion."""
    beam = options.beam
    assert beam is not None
    covered = covered + model.attention(ids)
    following = distribution(model.logits(ids), ids, options.constraints, END)
    for token in ranked(following):
        longer, grown = (*values, float(following[token])), ids if token == END else (*ids, token)
        if token != END and len(grown) < options.max_new_tokens:
            yield from everything(model, options, grown, longer, covered)
            continue
        score = normalized(sum(longer), len(longer), beam)
        score += beam.coverage_penalty * float(np.log(np.minimum(covered, 1.0)).sum())
        reason = FinishReason.EOS if token == END else FinishReason.LENGTH
        yield HypothesisResult(list(grown), list(longer), reason, score)


def assert_same(found: Sequence[HypothesisResult], expected: Sequence[HypothesisResult]) -> None:
    assert [(h.ids, h.reason, h.prefix) for h in found] == [(h.ids, h.reason, h.prefix) for h in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-5, abs=1e-6)
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-5)


@pytest.mark.parametrize(
    ("seed", "vocabulary", "max_new_tokens", "min_new_tokens", "coverage_penalty"),
    [
        *((7, 3, 6, minimum, coverage) for minimum in (0, 3) for coverage in (0.0, 0.2, -0.2)),
        (3, 5, 4, 0, 0.0),
    ],
)
@pytest.mark.parametrize(("normalization", "length_penalty"), NORMALIZATIONS)
def test_full_width_is_exhaustive(
    normalization: LengthNormalization,
    length_penalty: float,
    seed: int,
    vocabulary: int,
    max_new_tokens: int,
    min_new_tokens: int,
    coverage_penalty: float,
) -> None:
    model, width = RandomModel(seed, vocabulary), vocabulary**max_new_tokens
    constraints = Constraints(min_new_tokens=min_new_tokens)
    beam = BeamOptions(width, normalization, length_penalty, coverage_penalty)

    def options(count: int) -> SearchOptions:
        return SearchOptions(max_new_tokens, count, beam, constraints=constraints)

    every = sorted(everything(model, options(1)), key=lambda h: h.score, reverse=True)
    others = vocabulary - 1  # than the end token
    assert len(every) == sum(others**n for n in range(min_new_tokens, max_new_tokens)) + others**max_new_tokens
    scores = [h.score for h in every]
    assert min(better - worse for better, worse in pairwise(scores)) > CLOSE / 10
    for count in (1, 4, width):
        assert_same(model.search(options(count)).hypotheses, every[:count])
    assert_same(model.reference(options(10)).run(10), every[:10])


def random_options(draw: random.Random, vocabulary: int) -> SearchOptions:
    width, groups = draw.choice([(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (4, 2), (3, 3), (6, 3), (6, 2)])
    normalization, length_penalty = draw.choice(NORMALIZATIONS)
    max_new_tokens = draw.randint(1, 9)
    [stopping] = draw.choices(list(Stopping), [4, 4, 2, 2])
    beam = BeamOptions(
        width,
        normalization,
        length_penalty,
        coverage_penalty=draw.choice([0.0, 0.0, 0.3, -0.3]),
        stopping=stopping,
        patience=draw.choice([0.3, 1.0, 1.5, 2.0]),
        groups=groups,
        diversity_penalty=draw.choice([0.3, 1.0, 3.0]),
    )
    usual = [token for token in range(vocabulary) if token != END]
    constraints = Constraints(
        min_new_tokens=draw.choice([0, 0, draw.randint(0, max_new_tokens)]),
        suppressed=draw.choice([(), (0,)]),
        repetition_penalty=draw.choice([1.0, 1.3]),
        no_repeat_ngram_size=draw.choice([0, 0, 1, 2]),
        prefix=tuple(draw.choices(usual, k=draw.choice([0, 0, 3]))),
        prefix_bias=draw.choice([None, 0.2, 0.7]),
        vocabulary=draw.choice([None, None, tuple(range(vocabulary - 1))]),
    )
    return SearchOptions(max_new_tokens, draw.randint(1, width), beam, constraints=constraints)


@pytest.mark.parametrize("seed", range(300))
def test_any_beam_decodes_as_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    model = RandomModel(seed, draw.randint(3, 12), draw.choice([0.5, 1.5, 3.0]), draw.choice([0.0, 0.5, 1.5]))
    options = random_options(draw, model.vocabulary)
    reference = model.reference(options)
    expected = reference.run(options.num_hypotheses)
    played = model.search(options, delivered=draw.choice([0, 0, model.vocabulary]))
    assert min(reference.margins.smallest, reference.step_margins.smallest) > CLOSE, "take another seed"
    assert_same(played.hypotheses, expected)
    prefix = expected[0].prefix
    assert played.steps == prefix + reference.steps, "it ends when nothing can change the answer, not sooner or later"
