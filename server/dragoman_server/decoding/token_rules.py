"""Which tokens may follow a hypothesis, and which of them are preferred."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from dragoman_server.core.search import LogitEdits
from dragoman_server.core.search_options import Constraints

FORBIDDEN = (1.0, -math.inf)  # penalty and offset
UNCHANGED = (1.0, 0.0)


class TokenRules:
    """The constraints that concern tokens; it has no state, so all hypotheses of a request share one.

    All of it is exact on the whole vocabulary, for what it changes it changes before the softmax, or, for the soft
    prefix, by a formula that needs no more than the candidates and one token's probability.

    Args:
        constraints: of the request.
        end: id of the end token.

    Attributes:
        prefix: the forced prefix; empty where it is soft.
        soft: there is a soft prefix.
        trivial: there are never edits, nor a bias.
    """

    def __init__(self, constraints: Constraints, end: int) -> None:
        self.soft = constraints.prefix_bias is not None
        self.prefix: tuple[int, ...] = () if self.soft else constraints.prefix
        self._preferred: tuple[int, ...] = constraints.prefix if self.soft else ()
        self._bias = constraints.prefix_bias or 0.0
        self._end = end
        self._allowed = None if constraints.vocabulary is None else frozenset(constraints.vocabulary)
        self._first_end = len(self.prefix) + constraints.min_new_tokens
        self._sequences = constraints.suppressed_sequences
        self._penalty = constraints.repetition_penalty
        self._ngram = constraints.no_repeat_ngram_size
        self._always = dict.fromkeys(constraints.suppressed, FORBIDDEN)
        self._always_edits = self._edits(self._always)
        self._early_edits = self._edits({**self._always, end: FORBIDDEN})
        self._varies = bool(self._sequences or self._penalty != 1.0 or self._ngram or self._preferred)
        self.trivial = not self._varies and self._always_edits is None and not constraints.min_new_tokens

    def forced(self, place: int) -> int | None:
        """The only token that may stand at this place; None beyond the forced prefix."""
        return self.prefix[place] if place < len(self.prefix) else None

    def preferred(self, ids: Sequence[int]) -> int | None:
        """The next token of a soft prefix that the hypothesis has followed so far, where it may be chosen at all."""
        place = len(ids)
        if place >= len(self._preferred) or tuple(ids) != self._preferred[:place]:
            return None
        token = self._preferred[place]
        return token if self._allowed is None or token in self._allowed else None

    def edits(self, ids: Sequence[int]) -> LogitEdits | None:
        """What to change for the step behind these ids, a forced prefix among them."""
        early = len(ids) < self._first_end
        if not self._varies:
            return self._early_edits if early else self._always_edits
        edits: dict[int, tuple[float, float]] = {}
        if self._penalty != 1.0:
            edits = dict.fromkeys(ids, (self._penalty, 0.0))
        for token in self._repeating(ids):
            edits[token] = FORBIDDEN
        for *head, last in self._sequences:
            if len(head) <= len(ids) and list(ids[len(ids) - len(head) :]) == head:
                edits[last] = FORBIDDEN
        edits |= self._always
        if early:
            edits[self._end] = FORBIDDEN
        if (next_token := self.preferred(ids)) is not None:
            edits.setdefault(next_token, UNCHANGED)  # its probability is needed, be it among the candidates or not
        return self._edits(edits)

    def biased(
        self, ids: Sequence[int], top: tuple[list[int], list[float]], edits: LogitEdits | None, edited: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """The candidates with the soft prefix's bias b: all probabilities times 1 - b, and b more for its next token.

        A next token that is forbidden gets nothing, and then nor do the others lose anything.

        Args:
            top: candidates without the bias, best first, and their log-probabilities.
            edits: those for these ids.
            edited: log-probabilities of `edits.ids`; not looked at where there is no bias.

        Returns:
            candidates, best first, and their log-probabilities: as many as were given or, where the next token is now
            better than one of them and was not among them, one more. `top` itself where there is no bias.
        """
        token = self.preferred(ids)
        if token is None or edits is None:
            return top
        log_probability = edited[list(edits.ids).index(token)]
        if log_probability == -math.inf:
            return top
        share = math.log1p(-self._bias)
        others = [(candidate, value + share) for candidate, value in zip(*top, strict=True) if candidate != token]
        preferred = math.log((1.0 - self._bias) * math.exp(log_probability) + self._bias)
        place = bisect_left(others, (-preferred, token), key=lambda other: (-other[1], other[0]))
        # Behind all the others it might still be worse than some token that is no candidate.
        if place < len(others) or len(others) < len(top[0]):
            others.insert(place, (token, preferred))
        return [candidate for candidate, _ in others], [value for _, value in others]

    def _repeating(self, ids: Sequence[int]) -> list[int]:
        """Tokens that would complete an n-gram that stands there already."""
        size = self._ngram
        if not size or len(ids) < size:
            return []
        head = list(ids[len(ids) - size + 1 :])
        return [ids[at + size - 1] for at in range(len(ids) - size + 1) if list(ids[at : at + size - 1]) == head]

    def _edits(self, edits: dict[int, tuple[float, float]]) -> LogitEdits | None:
        """Those of tokens outside the request's vocabulary, which have no logit, left out; None where none are left."""
        if self._allowed is not None:
            edits = {token: edit for token, edit in edits.items() if token in self._allowed}
        if not edits:
            return None
        penalties, offsets = zip(*edits.values(), strict=True)
        return LogitEdits(list(edits), list(penalties), list(offsets))
