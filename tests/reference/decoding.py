"""Every way to decode, written once more: slow, plain, and from the meaning of the options alone.

Nothing is cached, nothing is shortened: each step is a pass over the whole source and target, each distribution the
whole vocabulary, each draw an inverse of the whole distribution function. What the engine serves must be this.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dragoman_server.core.requests import FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search_options import SearchOptions
from tests.reference.beam import BeamReference
from tests.reference.distribution import Vector, distribution, forced, ranked
from tests.reference.margins import Margins
from tests.reference.model import Forward
from tests.reference.results import places
from tests.reference.sampling import Draws, draw
from tests.reference.stops import Decode, completed

# Tokens generated so far, log-probabilities at the temperature -> the next; None where there are not enough.
Choose = Callable[[int, Vector], int | None]


@dataclass(frozen=True)
class Decoded:
    """An answer, and the smallest margin of any decision that led to it."""

    hypotheses: list[HypothesisResult]
    margin: float


def decode(forward: Forward, options: SearchOptions, end: int, text: Decode) -> Decoded:
    """The answer to a source.

    Args:
        forward: the model, given the source.
        end: id of the end token.
        text: ids to text, for stop sequences.
    """
    margins = Margins()
    if options.beam is not None:
        if options.alternatives:
            ranks: list[int | None] = list(range(options.num_hypotheses))
            found = [BeamReference(forward, options, end, text, margins, rank).run(1) for rank in ranks]
            return Decoded([h for hypotheses in found for h in hypotheses], margins.smallest)
        hypotheses = BeamReference(forward, options, end, text, margins, None).run(options.num_hypotheses)
        return Decoded(hypotheses, margins.smallest)
    hypotheses = [
        _sequence(forward, options, end, text, _chooser(options, index, margins))
        for index in range(options.num_hypotheses)
    ]
    # There may be fewer tokens than alternatives were asked for.
    some = [h for i, h in enumerate(hypotheses) if i == 0 or h.log_probabilities or not options.alternatives]
    return Decoded(some, margins.smallest)


def _chooser(options: SearchOptions, index: int, margins: Margins) -> Choose:
    """How the index-th hypothesis of a search that is no beam search takes its tokens."""
    if options.sampling is not None:
        sampling, draws = options.sampling, Draws(options.sampling.seed, index)
        return lambda generated, log_probabilities: draw(log_probabilities, sampling, draws.next(), margins)

    def best(generated: int, log_probabilities: Vector) -> int | None:
        order = ranked(log_probabilities)
        rank = index if generated == 0 else 0
        if rank >= len(order):
            return None
        values = log_probabilities[order].tolist()
        margins.cut(values, rank)
        margins.cut(values, rank + 1)
        return order[rank]

    return best


def _sequence(forward: Forward, options: SearchOptions, end: int, text: Decode, choose: Choose) -> HypothesisResult:
    """One hypothesis."""
    constraints = options.constraints
    temperature = options.sampling.temperature if options.sampling else 1.0
    prefix = forced(constraints)
    ids = list(prefix)
    log_probabilities: list[float] = []
    alternatives: list[list[TokenChoice]] = []
    reason, characters = FinishReason.LENGTH, None
    for generated in range(options.max_new_tokens):
        logits = forward([ids])[0][0]
        plain = distribution(logits, ids, constraints, end)
        order = ranked(plain)
        token = choose(generated, distribution(logits, ids, constraints, end, temperature)) if order else None
        if token is None:
            reason = FinishReason.DEAD_END
            break
        log_probabilities.append(float(plain[token]))
        if options.top_tokens:
            alternatives.append(places(plain, order, options.top_tokens))
        if token == end:
            reason = FinishReason.EOS
            break
        ids.append(token)
        characters = completed(ids, constraints, text)
        if characters is not None:
            reason = FinishReason.STOP_SEQUENCE
            break
    return HypothesisResult(
        ids=ids,
        log_probabilities=log_probabilities,
        reason=reason,
        score=sum(log_probabilities),
        prefix=len(prefix),
        alternatives=alternatives,
        characters=characters,
    )
