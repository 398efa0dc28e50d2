"""A beam as wide as there are hypotheses finds what enumeration finds; a narrow one what a plain beam search finds."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.core.search import StepRequest
from dragoman_server.core.search_options import BeamOptions, Constraints, LengthNormalization, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.token_rules import TokenRules
from tests.support.scripted_scores import ScriptedRow, run

END = 1
SOURCE = 3  # tokens
Attention = NDArray[np.float64]  # [SOURCE]

NORMALIZATIONS = [
    (LengthNormalization.NONE, 1.0),
    *((LengthNormalization.LENGTH, penalty) for penalty in (0.0, 0.6, 1.0, 2.0, -1.0)),
    (LengthNormalization.GNMT, 0.6),
    (LengthNormalization.GNMT, 1.0),
]


@dataclass
class RandomModel:
    """Probabilities and attention drawn anew for each sequence of tokens.

    Args:
        sharpness: 0 where all tokens are equally probable.
        end: how much more probable the end token becomes with each token before it.
    """

    seed: int
    vocabulary: int
    sharpness: float = 1.5
    end: float = 1.0

    def probabilities(self, ids: tuple[int, ...]) -> NDArray[np.float64]:
        logits = self.sharpness * np.random.default_rng([self.seed, *ids]).standard_normal(self.vocabulary)
        logits[END] += self.end * len(ids) - 1
        return np.exp(logits)

    def attention(self, ids: tuple[int, ...]) -> Attention:
        shares: Attention = np.random.default_rng([self.seed, 99, *ids]).dirichlet(np.full(SOURCE, 0.3))
        return shares.astype(np.float32).astype(np.float64)

    def log_probabilities(self, ids: tuple[int, ...], constraints: Constraints) -> list[float]:
        step_request = StepRequest(
            self.vocabulary, TokenRules(constraints, END).edits(ids), vocabulary=constraints.vocabulary
        )
        values: list[float] = ScriptedRow(self.probabilities(ids), step_request).plain.tolist()
        bias, prefix = constraints.prefix_bias, constraints.prefix
        if (
            bias is None
            or len(ids) >= len(prefix)
            or ids != prefix[: len(ids)]
            or values[prefix[len(ids)]] == -math.inf
        ):
            return values
        shares = [(1 - bias) * math.exp(value) for value in values]
        shares[prefix[len(ids)]] += bias
        return [math.log(share) if share else -math.inf for share in shares]


@dataclass
class Plain:
    """A hypothesis as lists; `steps` are what it looked at."""

    ids: tuple[int, ...] = ()
    log_probabilities: list[float] = field(default_factory=list)
    steps: list[Attention] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def total(self) -> float:
        return math.fsum(self.log_probabilities)

    def then(self, token: int, log_probability: float, looked: Attention) -> "Plain":
        ids = self.ids if token == END else (*self.ids, token)
        return Plain(ids, [*self.log_probabilities, log_probability], [*self.steps, looked])

    def score(self, beam: BeamOptions) -> float:
        if not self.log_probabilities:
            return 0.0
        return self.total / divisor(beam, len(self.log_probabilities)) + self.coverage(beam)

    def bound(self, beam: BeamOptions, lengths: Sequence[int]) -> float:
        """The best it can reach if it ends with one of these lengths and no token costs it anything."""
        covered = self.coverage(beam) if beam.coverage_penalty < 0 else 0.0
        return max(self.total / divisor(beam, length) for length in lengths) + covered

    def coverage(self, beam: BeamOptions) -> float:
        covered: Attention = np.sum(self.steps, axis=0)
        return beam.coverage_penalty * sum(math.log(min(share, 1.0)) for share in covered)


def divisor(beam: BeamOptions, length: int) -> float:
    divisors: dict[LengthNormalization, float] = {
        LengthNormalization.NONE: 1.0,
        LengthNormalization.LENGTH: length**beam.length_penalty,
        LengthNormalization.GNMT: ((5 + length) / 6) ** beam.length_penalty,
    }
    return divisors[beam.length_normalization]


def search(model: RandomModel, options: SearchOptions) -> BeamSearch:
    return BeamSearch(options, END, model.vocabulary, TokenRules(options.constraints, END), None)


def summary(results: list[HypothesisResult]) -> list[tuple[tuple[int, ...], FinishReason]]:
    return [(tuple(result.ids), result.reason) for result in results]


def everything(model: RandomModel, options: SearchOptions, start: Plain) -> Iterator[Plain]:
    """All hypotheses that can end, by recursion."""
    looked = model.attention(start.ids)
    for token, value in enumerate(model.log_probabilities(start.ids, options.constraints)):
        if value == -math.inf:
            continue
        longer = start.then(token, value, looked)
        if token == END:
            longer.reason = FinishReason.EOS
            yield longer
        elif len(longer.ids) == options.max_new_tokens:
            longer.reason = FinishReason.LENGTH
            yield longer
        else:
            yield from everything(model, options, longer)


@pytest.mark.parametrize("min_new_tokens", [0, 3])
@pytest.mark.parametrize("coverage_penalty", [0.0, 0.2, -0.2])
@pytest.mark.parametrize(("normalization", "length_penalty"), NORMALIZATIONS)
def test_full_width_is_exhaustive(
    normalization: LengthNormalization, length_penalty: float, coverage_penalty: float, min_new_tokens: int
) -> None:
    model = RandomModel(seed=7, vocabulary=3)
    width = 3**6
    constraints = Constraints(min_new_tokens=min_new_tokens)
    beam = BeamOptions(width, normalization, length_penalty, coverage_penalty)
    every = [*everything(model, SearchOptions(6, constraints=constraints), Plain())]
    every.sort(key=lambda one: one.score(beam), reverse=True)
    lengths = range(min_new_tokens, 6)
    assert len(every) == sum(2**length for length in lengths) + 2**6

    for count in (1, 4, width):
        options = SearchOptions(6, count, beam, constraints=constraints)
        made = run(search(model, options), model.probabilities, attention=model.attention)
        assert summary(made.hypotheses) == [(one.ids, one.reason) for one in every[:count]]
        for result, one in zip(made.hypotheses, every[:count], strict=True):
            assert result.score == pytest.approx(one.score(beam), rel=1e-12)
            assert result.log_probabilities == one.log_probabilities
    assert len(made.hypotheses) == len(every)


@pytest.mark.parametrize(("normalization", "length_penalty"), NORMALIZATIONS)
def test_full_width_is_exhaustive_with_more_tokens(normalization: LengthNormalization, length_penalty: float) -> None:
    model = RandomModel(seed=3, vocabulary=5, end=0.5)
    options = SearchOptions(4, 10, BeamOptions(5**4, normalization, length_penalty))
    assert options.beam is not None
    every = [*everything(model, options, Plain())]
    every.sort(key=lambda one: one.score(options.beam or BeamOptions(1)), reverse=True)
    made = run(search(model, options), model.probabilities)
    assert summary(made.hypotheses) == [(one.ids, one.reason) for one in every[:10]]


class PlainBeamSearch:
    """Looks at every continuation, copies lists, and says of each step whether one more could change the answer."""

    def __init__(self, model: RandomModel, options: SearchOptions) -> None:
        assert options.beam is not None
        self.model, self.options, self.beam = model, options, options.beam
        self.width = self.beam.beam_size // self.beam.groups
        prefix = options.constraints.prefix if options.constraints.prefix_bias is None else ()
        self.prefix = len(prefix)
        self.running = [[Plain(prefix)] for _ in range(self.beam.groups)]
        self.finished: list[list[Plain]] = [[] for _ in range(self.beam.groups)]
        self.steps = 0

    def search(self) -> list[Plain]:
        while any(self.running):
            last = [one for running in self.running for one in running]
            self.steps += 1
            chosen: Counter[int] = Counter()
            for group in range(self.beam.groups):
                if self.running[group]:
                    self.step(group, chosen)
                    chosen.update(one.ids[-1] for one in self.running[group])
            running = [one for running in self.running for one in running]
            best = [one for group in range(self.beam.groups) for one in self.pool(group)]
            if self.beaten(running, best, self.options.num_hypotheses):
                break
        best = [one for group in range(self.beam.groups) for one in self.pool(group)]
        if not best:
            best = [replace(one, reason=FinishReason.DEAD_END) for one in last]
        return sorted(best, key=lambda one: one.score(self.beam), reverse=True)[: self.options.num_hypotheses]

    def pool(self, group: int) -> list[Plain]:
        """A group's part of the answer."""
        given = [one.ids for earlier in range(group) for one in self.pool(earlier)]
        ranked = sorted(self.finished[group], key=lambda one: one.score(self.beam), reverse=True)
        return [one for one in ranked if one.ids not in given][: min(self.width, self.options.num_hypotheses)]

    def step(self, group: int, chosen: Counter[int]) -> None:
        continuations: list[tuple[float, int, Plain]] = []
        for one in self.running[group]:
            looked = self.model.attention(one.ids)
            values = self.model.log_probabilities(one.ids, self.options.constraints)
            for token, value in enumerate(values):
                longer = one.then(token, value, looked)
                continuations.append((longer.total - self.beam.diversity_penalty * chosen[token], token, longer))
        continuations.sort(key=lambda one: one[0], reverse=True)
        self.running[group] = []
        for place, (value, token, longer) in enumerate(continuations[: 2 * self.width]):
            if value == -math.inf:
                continue
            if token == END:
                longer.reason = FinishReason.EOS
            elif self.steps == self.options.max_new_tokens:
                longer.reason = FinishReason.LENGTH
            elif len(self.running[group]) < self.width:
                self.running[group].append(longer)
            if longer.reason is not None and place < self.width:
                self.finished[group].append(longer)
        if self.over(group):
            self.running[group] = []

    def over(self, group: int) -> bool:
        pool, wanted = self.pool(group), min(self.width, self.options.num_hypotheses)
        quota = max(math.floor(self.beam.patience * self.width + 0.5), wanted)
        if self.beam.early_stopping and len(self.finished[group]) >= quota and len(pool) == wanted:
            return True
        return self.beaten(self.running[group], pool, wanted)

    def beaten(self, running: list[Plain], finished: list[Plain], count: int) -> bool:
        """Whether none that runs can get among the `count` best."""
        scores = sorted((one.score(self.beam) for one in finished), reverse=True)
        lengths = range(self.steps + 1, self.options.max_new_tokens + 1)
        return len(scores) >= count and all(one.bound(self.beam, lengths) <= scores[count - 1] for one in running)


def random_options(random: random.Random, vocabulary: int) -> SearchOptions:
    width, groups = random.choice([(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (4, 2), (3, 3), (6, 3), (6, 2)])
    normalization, length_penalty = random.choice(NORMALIZATIONS)
    longest = random.randint(1, 9)
    beam = BeamOptions(
        width,
        normalization,
        length_penalty,
        random.choice([0.0, 0.0, 0.3, -0.3]),
        random.random() < 0.4,
        random.choice([0.3, 1.0, 1.5, 2.0]),
        groups,
        random.choice([0.3, 1.0, 3.0]),
    )
    constraints = Constraints(
        min_new_tokens=random.choice([0, 0, random.randint(0, longest)]),
        suppressed=random.choice([(), (0,)]),
        repetition_penalty=random.choice([1.0, 1.3]),
        no_repeat_ngram_size=random.choice([0, 0, 1, 2]),
        prefix=tuple(
            random.choices([token for token in range(vocabulary) if token != END], k=random.choice([0, 0, 3]))
        ),
        prefix_bias=random.choice([None, 0.2, 0.7]),
        vocabulary=random.choice([None, None, tuple(range(vocabulary - 1))]),
    )
    return SearchOptions(longest, random.randint(1, width), beam, constraints=constraints)


@pytest.mark.parametrize("seed", range(300))
def test_any_beam_is_a_plain_beam_search(seed: int) -> None:
    draw = random.Random(seed)
    model = RandomModel(seed, draw.randint(3, 12), draw.choice([0.5, 1.5, 3.0]), draw.choice([0.0, 0.5, 1.5]))
    options = random_options(draw, model.vocabulary)
    expected = PlainBeamSearch(model, options)
    answer = expected.search()
    delivered = draw.choice([0, 0, model.vocabulary])
    made = run(search(model, options), model.probabilities, attention=model.attention, delivered=delivered)
    assert summary(made.hypotheses) == [(one.ids, one.reason) for one in answer]
    for result, one in zip(made.hypotheses, answer, strict=True):
        assert options.beam is not None
        assert result.score == pytest.approx(one.score(options.beam), rel=1e-6)
        assert result.log_probabilities == pytest.approx(one.log_probabilities, abs=1e-6)
        assert result.prefix == expected.prefix
    assert made.steps == expected.prefix + expected.steps, (
        "it ends when nothing can change the answer, not sooner or later"
    )
