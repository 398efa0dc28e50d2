"""What a server answers, in enough detail to tell one platform from another."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman import Client, Result
from tests.platforms.models import Model

ALONE = 12  # inputs that are asked once more, each in a call of its own
BEAM_INPUTS = 16
SECONDS = 300.0  # for a batch; emulated processors take their time
TIE = 0.05  # nats between two tokens that rounding of activations may swap
TIES = 0.01  # of the answers, at most


@dataclass(frozen=True)
class Place:
    """One place of an answer: the token, and the log-probabilities of the two most probable ones by id."""

    token: int
    likely: Mapping[int, float]


@dataclass(frozen=True)
class Answer:
    """One answer; its places are those of `text`, without the end token."""

    text: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Answers:
    """What one model answers on one platform.

    Attributes:
        greedy: of all inputs, asked in one batch.
        beams: of the first of them, the best of a beam of 4; none of blockwise models.
        lone: whether the first inputs get, alone, the answers that they got in the batch, to the last bit of a score.
    """

    greedy: list[Answer]
    beams: list[Answer]
    lone: bool


def ask(client: Client, model: Model) -> Answers:
    """Asks a model for all its inputs.

    Raises:
        DragomanError: the server does not answer, or refuses an input.
    """
    batch = client.generate_batch(model.inputs, model=model.name, top_tokens=2, timeout=SECONDS)
    greedy = [_answer(result) for result in batch]
    alone = [
        _answer(client.generate(text, model=model.name, top_tokens=2, timeout=SECONDS)) for text in model.inputs[:ALONE]
    ]
    wide = [] if model.blockwise else model.inputs[:BEAM_INPUTS]
    beams = client.generate_batch(wide, model=model.name, beam_size=4, top_tokens=2, timeout=SECONDS) if wide else []
    return Answers(greedy, [_answer(result) for result in beams], alone == greedy[:ALONE])


def _answer(result: Result | Exception) -> Answer:
    if isinstance(result, Exception):
        raise result
    places = []
    for token in result.tokens:
        likely = {token.id: token.log_probability} | {other.id: other.log_probability for other in token.alternatives}
        places.append(Place(token.id, {key: value for key, value in likely.items() if value is not None}))
    return Answer(result.text, tuple(places))


@dataclass(frozen=True)
class Comparison:
    """Answers of one model on two platforms.

    Attributes:
        model: which.
        asked: how many answers were compared.
        ties: inputs with other answers, from a place on where two tokens are as good as equally likely on both.
        different: inputs with other answers for no such reason.
        largest: difference of two log-probabilities of the same token, among answers that are equal.
        lone: whether answers do not depend on the batch, on the second platform.
        exact: whether both platforms compute the same but for the order of float sums, which settles no tie.
    """

    model: Model
    asked: int
    ties: list[str]
    different: list[str]
    largest: float
    lone: bool
    exact: bool

    @property
    def holds(self) -> bool:
        few = len(self.ties) <= (0 if self.exact else TIES * self.asked)
        return few and not self.different and self.lone

    def __str__(self) -> str:
        same = self.asked - len(self.different) - len(self.ties)
        text = f"{self.model.name}: {same} of {self.asked} answers equal, scores within {self.largest:.1e}"
        for what, inputs in (("equally likely answers", self.ties), ("other answers", self.different)):
            if inputs:
                text += f"; {what} to {', '.join(map(repr, inputs[:5]))}"
        return text if self.lone else f"{text}; other scores alone than in a batch"


def compare(model: Model, here: Answers, there: Answers, *, exact: bool) -> Comparison:
    """Holds the answers of two platforms against each other.

    Args:
        exact: see `Comparison`.
    """
    inputs = [*model.inputs, *model.inputs[: len(here.beams)]]
    ties, different, largest = [], [], 0.0
    for text, a, b in zip(inputs, [*here.greedy, *here.beams], [*there.greedy, *there.beams], strict=True):
        if a.text.encode() == b.text.encode() and _ids(a) == _ids(b):
            pairs = zip(a.places, b.places, strict=True)
            largest = max([largest, *(abs(x.likely[x.token] - y.likely[y.token]) for x, y in pairs)])
        elif _is_tie(a, b):
            ties.append(text)
        else:
            different.append(text)
    return Comparison(model, len(inputs), ties, different, largest, there.lone, exact)


def _ids(answer: Answer) -> list[int]:
    return [place.token for place in answer.places]


def _is_tie(a: Answer, b: Answer) -> bool:
    """Whether both tokens of the first place that differs are about equally likely on both platforms."""
    for x, y in zip(a.places, b.places, strict=False):
        if x.token != y.token:
            return all(
                x.token in place.likely
                and y.token in place.likely
                and abs(place.likely[x.token] - place.likely[y.token]) < TIE
                for place in (x, y)
            )
    return False
