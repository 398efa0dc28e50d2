"""Searches with one hypothesis: greedy search with options, one sample, or one alternative."""

import math
from collections.abc import Sequence

from dragoman_server.core.requests import FinishReason, HypothesisResult, Progress, TokenChoice
from dragoman_server.core.search import Continuation, LogitEdits, StepRequest, StepResult
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.finish import finish_reason
from dragoman_server.decoding.sampling import Draw, RandomNumbers, Sampler
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.token_rules import TokenRules

KNOWN_TOKEN = (StepRequest(0),)
CANDIDATES_GROWTH = 8  # factor, where a draw needs more candidates


class SingleHypothesisSearch:
    """Greedy search with constraints or alternatives, or one sample.

    Args:
        options: Options of the request.
        end: Id of the end token.
        vocabulary_size: Size of the target vocabulary.
        rules: The request's constraints.
        stops: Stop sequence tracker of an empty text; None without stop sequences.
        index: Index of this hypothesis in the request's answer: the number of the sample or, with
            `options.alternatives`, the rank of the token to start with.

    Attributes:
        rows: See Search.
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
        shortlist, sampling = options.constraints.vocabulary, options.sampling
        self._end = end
        self._rules = rules
        self._stops = stops
        self._index = index
        self._rank = index if options.alternatives else 0
        self._shortlist = shortlist
        self._choosable = vocabulary_size if shortlist is None else len(shortlist)
        self._top_tokens = options.top_tokens
        self._sampler = None if sampling is None else Sampler(sampling, self._choosable)
        self._numbers = None if sampling is None else RandomNumbers(sampling.seed, index)
        self._temperature = 1.0 if sampling is None else sampling.temperature
        reports = options.log_probabilities or options.top_tokens > 0
        self._untempered = reports and self._temperature != 1.0
        self._has_log_probabilities = reports or self._temperature == 1.0
        needed = 1 if self._sampler is None else self._sampler.candidates
        self._first_candidates = min(max(needed, self._top_tokens), self._choosable)
        self._candidates = self._first_candidates  # to request
        self._best_suffices = sampling is None and not (self._top_tokens or self._rank or rules.soft)
        self._constant_request = self._best_suffices and rules.trivial

        self._ids = list(rules.prefix)
        self._prefix = len(rules.prefix)
        self._last_position = self._prefix + options.max_new_tokens - 1
        self._log_probabilities: list[float] = []
        self._alternatives: list[list[TokenChoice]] = []
        self._reason: FinishReason | None = None
        self._characters: int | None = None
        self._reported = 0  # ids
        if stops is not None:
            for token in rules.prefix:
                stops.push(token)

        self._decoded_prefix = 0  # prefix tokens that were decoder inputs
        self._number: float | None = None  # random number of this step
        self._draw: Draw | None = None
        self._edits: LogitEdits | None = None
        self._requests: tuple[StepRequest, ...] = KNOWN_TOKEN
        if not self._prefix:
            self._update_request()

    def step_requests(self) -> Sequence[StepRequest]:
        return self._requests

    def needs_more(self, result: StepResult, rows: Sequence[int]) -> bool:
        if self._sampler is None or self._decoded_prefix < self._prefix:
            return False
        assert self._numbers is not None
        _, log_probabilities = self._top(result, rows[0])
        if log_probabilities[0] == -math.inf:
            return False
        if self._number is None:
            self._number = self._numbers.next()
        self._draw = self._sampler.draw(log_probabilities, self._number)
        if self._draw is not None:
            return False
        self._candidates = min(self._candidates * CANDIDATES_GROWTH, self._choosable)
        self._update_request()
        return True

    def advance(self, result: StepResult, rows: Sequence[int]) -> Sequence[Continuation] | None:
        if self._decoded_prefix < self._prefix:
            return self._follow_prefix()
        token, log_probability = result.best(rows[0]) if self._best_suffices else self._choose(result, rows[0])
        reason = finish_reason(token, log_probability, len(self._ids), self._end, self._last_position)
        if reason is not FinishReason.DEAD_END:
            if self._best_suffices:
                self._log_probabilities.append(log_probability)
            if reason is not FinishReason.EOS:
                self._ids.append(token)
                if self._stops is not None and (characters := self._stops.push(token)) is not None:
                    self._characters = characters
                    reason = FinishReason.STOP_SEQUENCE
        if reason is not None:
            self._finish(reason)
            return None
        if not self._constant_request:
            self._update_request()
        return (Continuation(0, token),)

    def stop(self, reason: FinishReason) -> None:
        if self._reason is None:
            self._finish(reason)

    def progress(self) -> Sequence[Progress]:
        if self._rank and len(self._ids) == self._prefix and self._reason in (None, FinishReason.DEAD_END):
            return ()  # there may be no token of this rank, and then the alternative is not part of the answer
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
        assert self._reason is not None, "the search is not over"
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

    def _follow_prefix(self) -> Sequence[Continuation]:
        """Continues with the next token of the forced prefix."""
        token = self._ids[self._decoded_prefix]
        self._decoded_prefix += 1
        if self._decoded_prefix == self._prefix:
            self._update_request()
        return (Continuation(0, token),)

    def _update_request(self) -> None:
        """Sets the step request for the position after the ids."""
        edits = self._rules.edits(self._ids)
        candidates = self._candidates
        if len(self._ids) == self._prefix:
            candidates = min(max(candidates, self._rank + 1), self._choosable)
        if edits is not self._edits or candidates != self._requests[0].candidates:
            self._edits = edits
            self._requests = (StepRequest(candidates, edits, self._temperature, self._untempered, self._shortlist),)

    def _choose(self, result: StepResult, row: int) -> tuple[int, float]:
        """Chooses the next token and stores its log-probability and alternatives, as far as they are requested.

        Returns:
            The token and its log-probability at the temperature; -inf where no token is possible.
        """
        ids, log_probabilities = self._top(result, row)
        rank = self._rank if len(self._ids) == self._prefix else 0
        if rank >= len(ids) or log_probabilities[rank] == -math.inf:
            return self._end, -math.inf
        if self._sampler is not None:
            assert self._draw is not None, "needs_more was not called"
            rank = self._draw.rank
            if self._draw.used <= self._first_candidates:
                self._candidates = self._first_candidates
            self._draw = self._number = None
        token, log_probability = ids[rank], log_probabilities[rank]
        if self._untempered:
            ids, log_probabilities = self._untempered_top(result, row)
            rank = ids.index(token)
        if self._has_log_probabilities:
            self._log_probabilities.append(log_probabilities[rank])
        if self._top_tokens:
            pairs = zip(ids[: self._top_tokens], log_probabilities, strict=False)
            self._alternatives.append([TokenChoice(*pair) for pair in pairs if pair[1] > -math.inf])
        return token, log_probability

    def _top(self, result: StepResult, row: int) -> tuple[list[int], list[float]]:
        """Returns the candidates and their log-probabilities, best first, with the bias of a soft prefix."""
        top = result.top(row)
        if self._rules.preferred(self._ids) is None:
            return top
        return self._rules.biased(self._ids, top, self._edits, result.edited(row))

    def _untempered_top(self, result: StepResult, row: int) -> tuple[list[int], list[float]]:
        """Returns `_top` at temperature 1. A soft prefix may change the order, since its bias comes afterwards."""
        ids, tempered = result.top(row)
        untempered = result.untempered(row)
        preferred = self._rules.preferred(self._ids)
        if preferred is None:
            return ids, untempered
        assert self._edits is not None
        # Both are logits minus a constant, one of them divided by the temperature: so they differ by a constant, too.
        shift = untempered[0] - self._temperature * tempered[0]
        edited = [self._temperature * value + shift for value in result.edited(row)]
        if preferred not in ids:
            ids = [*ids, preferred]
            untempered = [*untempered, edited[list(self._edits.ids).index(preferred)]]
        return self._rules.biased(self._ids, (ids, untempered), self._edits, edited)

    def _finish(self, reason: FinishReason) -> None:
        """Ends the hypothesis. The text that becomes certain only now may complete a stop sequence."""
        self._reason = reason
        if self._stops is None or reason is FinishReason.STOP_SEQUENCE:
            return
        self._characters = self._stops.finish()
        if self._characters is not None:
            self._reason = FinishReason.STOP_SEQUENCE
            if reason is FinishReason.EOS:  # the end token is then no part of the hypothesis
                del self._log_probabilities[len(self._ids) - self._prefix :]
                del self._alternatives[len(self._ids) - self._prefix :]
