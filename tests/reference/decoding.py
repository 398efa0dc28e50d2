"""Every way to decode, implemented a second time: slow, simple, and from the meaning of the options alone.

There is no cache and no shortcut: each step is a pass over the whole source and target, each distribution the whole
vocabulary, each draw an inverse of the whole distribution function. What the engine serves must be this.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dragoman_server.core.requests import FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search_options import SearchOptions
from tests.reference.beam import BeamReference
from tests.reference.model import Forward
from tests.reference.sampling import RandomStream, draw
from tests.reference.step import Decode, Margins, Vector, choices, completed, distribution, forced, ranked

# Tokens generated so far, log-probabilities at the temperature -> the next token; None where there are too few.
Choose = Callable[[int, Vector], int | None]


@dataclass(frozen=True)
class Decoded:
    """An answer, and the smallest margin of any decision that led to it."""

    hypotheses: list[HypothesisResult]
    margin: float


def decode(forward: Forward, options: SearchOptions, end: int, text: Decode) -> Decoded:
    """Returns the answer to a source.

    Args:
        forward: The model, given the source.
        end: Id of the end token.
        text: Converts ids to text, for stop sequences.
    """
    margins, count = Margins(), options.num_hypotheses
    if options.beam is None:
        hypotheses = [
            _sequence(forward, options, end, text, _chooser(options, index, margins)) for index in range(count)
        ]
        if options.alternatives:  # there may be fewer tokens than requested alternatives
            hypotheses = hypotheses[:1] + [h for h in hypotheses[1:] if h.log_probabilities]
    elif options.alternatives:
        searches = [BeamReference(forward, options, end, text, margins, rank) for rank in range(count)]
        hypotheses = [h for search in searches for h in search.run(1)]
    else:
        hypotheses = BeamReference(forward, options, end, text, margins).run(count)
    return Decoded(hypotheses, margins.smallest)


def _chooser(options: SearchOptions, index: int, margins: Margins) -> Choose:
    """Returns how the index-th hypothesis of a greedy search, sampling or alternatives chooses its tokens."""
    if options.sampling is not None:
        sampling, numbers = options.sampling, RandomStream(options.sampling.seed, index)
        return lambda generated, log_probabilities: draw(log_probabilities, sampling, numbers.next(), margins)

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
    """Returns one hypothesis."""
    constraints = options.constraints
    temperature = options.sampling.temperature if options.sampling else 1.0
    ids = forced(constraints)
    log_probabilities: list[float] = []
    alternatives: list[list[TokenChoice]] = []
    reason, characters = FinishReason.LENGTH, None
    for generated in range(options.max_new_tokens):
        logits = forward([ids])[0][0]
        untempered = distribution(logits, ids, constraints, end)
        possible = bool(ranked(untempered))
        token = choose(generated, distribution(logits, ids, constraints, end, temperature)) if possible else None
        if token is None:
            reason = FinishReason.DEAD_END
            break
        log_probabilities.append(float(untempered[token]))
        if options.top_tokens:
            alternatives.append(choices(untempered, options.top_tokens))
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
        prefix=len(forced(constraints)),
        alternatives=alternatives,
        characters=characters,
    )
