"""Answers of a server, in enough detail to compare platforms."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman import Client, Result
from tests.platforms.models import Model

SECONDS = 300.0  # timeout of a batch; emulated processors are slow
TIE = 0.05  # nats between two tokens that rounding of activations can swap
MAX_TIES = 0.01  # share of the answers


@dataclass(frozen=True)
class Position:
    """A position of an answer: its token, and the log-probabilities of the two most probable tokens, by id."""

    token: int
    top: Mapping[int, float]


@dataclass(frozen=True)
class Answer:
    """An answer, with the positions of its tokens, without the end token."""

    text: str
    positions: tuple[Position, ...]


@dataclass(frozen=True)
class Answers:
    """The answers of one model on one platform.

    Attributes:
        greedy: Greedy answers to all inputs, from one batch.
        beams: Best answers of a beam of 4 to the first inputs; empty for blockwise models.
        batch_invariant: Whether the first inputs, each sent alone, get the same answers as in the batch, to the last
            bit of a score.
    """

    greedy: list[Answer]
    beams: list[Answer]
    batch_invariant: bool


def ask(client: Client, model: Model) -> Answers:
    """Requests answers to all inputs of a model.

    Raises:
        DragomanError: The server is unavailable or refuses an input.
    """
    greedy = greedy_answers(client, model.name, model.inputs)
    lone = [
        _answer(client.generate(text, model=model.name, top_tokens=2, timeout=SECONDS))
        for text in model.inputs[: model.lone]
    ]
    beam_inputs = [] if model.blockwise else model.inputs[: model.beams]
    beams = (
        client.generate_batch(beam_inputs, model=model.name, beam_size=4, top_tokens=2, timeout=SECONDS)
        if beam_inputs
        else []
    )
    return Answers(greedy, [_answer(result) for result in beams], lone == greedy[: model.lone])


def greedy_answers(client: Client, model: str, inputs: list[str]) -> list[Answer]:
    """Returns the greedy answers to a batch.

    Raises:
        DragomanError: The server is unavailable or refuses an input.
    """
    return [_answer(result) for result in client.generate_batch(inputs, model=model, top_tokens=2, timeout=SECONDS)]


def _answer(result: Result | Exception) -> Answer:
    if isinstance(result, Exception):
        raise result
    positions = []
    for token in result.tokens:
        top = {token.id: token.log_probability} | {other.id: other.log_probability for other in token.alternatives}
        positions.append(Position(token.id, {key: value for key, value in top.items() if value is not None}))
    return Answer(result.text, tuple(positions))


@dataclass(frozen=True)
class Comparison:
    """The comparison of one model's answers on two platforms.

    Attributes:
        count: Number of answers compared.
        ties: Inputs whose answers differ from a position on where two tokens are about equally likely on both.
        different: Inputs whose answers differ for another reason.
        max_difference: Largest difference of a token's log-probabilities, among equal answers.
        batch_invariant: `Answers.batch_invariant` of the second platform.
        exact: Whether the platforms differ only in the order of float sums, which changes no tie.
    """

    model: Model
    count: int
    ties: list[str]
    different: list[str]
    max_difference: float
    batch_invariant: bool
    exact: bool

    @property
    def passed(self) -> bool:
        few_ties = len(self.ties) <= (0 if self.exact else max(1, MAX_TIES * self.count))
        return few_ties and not self.different and self.batch_invariant

    def __str__(self) -> str:
        same = self.count - len(self.different) - len(self.ties)
        text = f"{self.model.name}: {same} of {self.count} answers equal, scores within {self.max_difference:.1e}"
        for kind, inputs in (("equally likely answers", self.ties), ("other answers", self.different)):
            if inputs:
                text += f"; {kind} to {', '.join(map(repr, inputs[:5]))}"
        return text if self.batch_invariant else f"{text}; other scores alone than in a batch"


def compare(model: Model, expected: Answers, actual: Answers, *, exact: bool) -> Comparison:
    """Compares the answers of two platforms.

    Args:
        exact: See `Comparison`.
    """
    inputs = [*model.inputs, *model.inputs[: len(expected.beams)]]
    ties, different, max_difference = [], [], 0.0
    for text, a, b in zip(inputs, [*expected.greedy, *expected.beams], [*actual.greedy, *actual.beams], strict=True):
        if a.text.encode() == b.text.encode() and _ids(a) == _ids(b):
            pairs = zip(a.positions, b.positions, strict=True)
            max_difference = max([max_difference, *(abs(x.top[x.token] - y.top[y.token]) for x, y in pairs)])
        elif _is_tie(a, b):
            ties.append(text)
        else:
            different.append(text)
    return Comparison(model, len(inputs), ties, different, max_difference, actual.batch_invariant, exact)


def _ids(answer: Answer) -> list[int]:
    return [position.token for position in answer.positions]


def _is_tie(a: Answer, b: Answer) -> bool:
    """Returns whether the tokens of the first differing position are about equally likely on both platforms."""
    for x, y in zip(a.positions, b.positions, strict=False):
        if x.token != y.token:
            return all(
                x.token in position.top
                and y.token in position.top
                and abs(position.top[x.token] - position.top[y.token]) < TIE
                for position in (x, y)
            )
    return False
