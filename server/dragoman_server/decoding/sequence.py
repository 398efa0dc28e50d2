"""One hypothesis: the most probable token every time, or tokens drawn at random."""

import math
from collections.abc import Sequence

from dragoman_server.core.requests import FinishReason, HypothesisResult, Progress, TokenChoice
from dragoman_server.core.search import Continuation, LogitEdits, RowScores, StepRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.sampling import Drawn, RandomNumbers, Sampler
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.token_rules import TokenRules

NOTHING = (StepRequest(0),)  # the next token is known
GROWTH = 8  # of the candidates, where they did not suffice


class SequenceSearch:
    """Greedy search, or one sample.

    Args:
        options: of the request.
        end: id of the end token.
        vocabulary_size: of the model.
        rules: the request's constraints.
        stops: looks for its stop sequences, if it has any.
        index: which of the request's hypotheses this is: which sample or, where alternatives are wanted, how many
            tokens are better than the one to begin with.
    """

    rows = 1

    def __init__(
        self,
        options: SearchOptions,
        end: int,
        vocabulary_size: int,
        rules: TokenRules,
        stops: StopTracker | None,
        index: int = 0,
    ) -> None:
        vocabulary = options.constraints.vocabulary
        sampling = options.sampling
        self._end = end
        self._rules = rules
        self._stops = stops
        self._index = index
        self._rank = index if options.alternatives else 0
        self._vocabulary = vocabulary
        self._choosable = vocabulary_size if vocabulary is None else len(vocabulary)
        self._top_tokens = options.top_tokens
        self._sampler = None if sampling is None else Sampler(sampling, self._choosable)
        self._numbers = None if sampling is None else RandomNumbers(sampling.seed, index)
        self._temperature = 1.0 if sampling is None else sampling.temperature
        wanted = options.log_probabilities or options.top_tokens > 0
        self._plain = wanted and self._temperature != 1.0
        self._told = wanted or self._temperature == 1.0  # else log-probabilities are not known
        needed = 1 if self._sampler is None else self._sampler.candidates
        self._first = min(max(needed, self._top_tokens), self._choosable)
        self._candidates = self._first  # to ask for
        self._best = sampling is None and not (self._top_tokens or self._rank or rules.soft)  # `scores.best` is enough
        self._steady = self._best and rules.trivial  # step_requests are always the same

        self._ids = list(rules.prefix)
        self._prefix = len(rules.prefix)
        self._last = self._prefix + options.max_new_tokens
        self._log_probabilities: list[float] = []
        self._alternatives: list[list[TokenChoice]] = []
        self._reason: FinishReason | None = None
        self._characters: int | None = None
        self._reported = 0  # ids
        if stops is not None:
            for token in rules.prefix:
                stops.push(token)

        self._fed = 0  # tokens of the prefix that the decoder has been given
        self._number: float | None = None  # this step's random number
        self._drawn: Drawn | None = None
        self._edits: LogitEdits | None = None
        self._demands: tuple[StepRequest, ...] = NOTHING
        if not self._prefix:
            self._ask()

    def step_requests(self) -> Sequence[StepRequest]:
        return self._demands

    def needs_more(self, scores: RowScores, rows: Sequence[int]) -> bool:
        if self._sampler is None or self._fed < self._prefix:
            return False
        assert self._numbers is not None
        _, log_probabilities = self._top(scores, rows[0])
        if log_probabilities[0] == -math.inf:
            return False
        if self._number is None:
            self._number = self._numbers.next()
        self._drawn = self._sampler.draw(log_probabilities, self._number)
        if self._drawn is not None:
            return False
        self._candidates = min(self._candidates * GROWTH, self._choosable)
        self._ask()
        return True

    def advance(self, scores: RowScores, rows: Sequence[int]) -> Sequence[Continuation] | None:
        if self._fed < self._prefix:
            return self._feed()
        if self._best:
            token, log_probability = scores.best(rows[0])
            if log_probability == -math.inf:
                self._over(FinishReason.DEAD_END)
                return None
            self._log_probabilities.append(log_probability)
        else:
            choice = self._choose(scores, rows[0])
            if choice is None:
                self._over(FinishReason.DEAD_END)
                return None
            token = choice
        if token == self._end:
            self._over(FinishReason.EOS)
            return None
        self._ids.append(token)
        if self._stops is not None and (cut := self._stops.push(token)) is not None:
            self._characters = cut
            self._over(FinishReason.STOP_SEQUENCE)
            return None
        if len(self._ids) == self._last:
            self._over(FinishReason.LENGTH)
            return None
        if not self._steady:
            self._ask()
        return (Continuation(0, token),)

    def stop(self, reason: FinishReason) -> None:
        if self._reason is None:
            self._over(reason)

    def progress(self) -> Sequence[Progress]:
        if self._rank and len(self._ids) == self._prefix and self._reason in (None, FinishReason.DEAD_END):
            return ()  # there may be no token for this alternative, which then is no part of the answer
        events: list[Progress] = []
        if self._reported < self._prefix:
            events.append(Progress(self._ids[: self._prefix], [], [], self._index))
            self._reported = self._prefix
        if self._reported < len(self._ids):
            new = slice(self._reported - self._prefix, len(self._ids) - self._prefix)
            ids = self._ids[self._reported :]
            events.append(Progress(ids, self._log_probabilities[new], self._alternatives[new], self._index))
            self._reported = len(self._ids)
        return events

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._reason is not None, "the search goes on"
        return [
            HypothesisResult(
                self._ids,
                self._log_probabilities,
                self._reason,
                sum(self._log_probabilities, 0.0),
                self._prefix,
                self._alternatives,
                self._characters,
            )
        ]

    def _feed(self) -> Sequence[Continuation]:
        """The prefix's next token."""
        token = self._ids[self._fed]
        self._fed += 1
        if self._fed == self._prefix:
            self._ask()
        return (Continuation(0, token),)

    def _ask(self) -> None:
        """Sets the step_request for the place behind the ids."""
        edits = self._rules.edits(self._ids)
        candidates = self._candidates
        if len(self._ids) == self._prefix:
            candidates = min(max(candidates, self._rank + 1), self._choosable)
        if edits is not self._edits or candidates != self._demands[0].candidates:
            self._edits = edits
            self._demands = (StepRequest(candidates, edits, self._temperature, self._plain, self._vocabulary),)

    def _choose(self, scores: RowScores, row: int) -> int | None:
        """The next token, which it notes with all that is wanted of it; None where none is possible."""
        ids, log_probabilities = self._top(scores, row)
        place = self._rank if len(self._ids) == self._prefix else 0
        if place >= len(ids) or log_probabilities[place] == -math.inf:
            return None
        if self._sampler is not None:
            assert self._drawn is not None, "it was not asked whether these candidates suffice"
            place = self._drawn.place
            if self._drawn.reach <= self._first:
                self._candidates = self._first
            self._drawn = self._number = None
        token = ids[place]
        if self._plain:
            ids, log_probabilities = self._plain_top(scores, row)
            place = ids.index(token)
        if self._told:
            self._log_probabilities.append(log_probabilities[place])
        if self._top_tokens:
            pairs = zip(ids[: self._top_tokens], log_probabilities, strict=False)
            self._alternatives.append([TokenChoice(*pair) for pair in pairs if pair[1] > -math.inf])
        return token

    def _top(self, scores: RowScores, row: int) -> tuple[list[int], list[float]]:
        """The candidates and their log-probabilities, best first."""
        top = scores.top(row)
        if self._rules.preferred(self._ids) is None:
            return top
        return self._rules.biased(self._ids, top, self._edits, scores.edited(row))

    def _plain_top(self, scores: RowScores, row: int) -> tuple[list[int], list[float]]:
        """The same at temperature 1: the order may differ where there is a soft prefix, which is biased afterwards."""
        ids, tempered = scores.top(row)
        plain = scores.plain(row)
        preferred = self._rules.preferred(self._ids)
        if preferred is None:
            return ids, plain
        assert self._edits is not None
        # Both are logits less a constant, one of them divided by the temperature: the difference is a constant too.
        shift = plain[0] - self._temperature * tempered[0]
        edited = [self._temperature * value + shift for value in scores.edited(row)]
        if preferred not in ids:
            ids = [*ids, preferred]
            plain = [*plain, edited[list(self._edits.ids).index(preferred)]]
        return self._rules.biased(self._ids, (ids, plain), self._edits, edited)

    def _over(self, reason: FinishReason) -> None:
        """Ends the hypothesis; the text that is certain only now may complete a stop sequence."""
        self._reason = reason
        if self._stops is None or reason is FinishReason.STOP_SEQUENCE:
            return
        self._characters = self._stops.finish()
        if self._characters is not None:
            self._reason = FinishReason.STOP_SEQUENCE
            if reason is FinishReason.EOS:  # the end token is then no part of it
                del self._log_probabilities[len(self._ids) - self._prefix :]
                del self._alternatives[len(self._ids) - self._prefix :]
