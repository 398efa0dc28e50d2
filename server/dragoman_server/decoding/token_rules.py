"""Token constraints: which tokens may follow a hypothesis, and which of them are preferred."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from dragoman_server.core.search import LogitEdits
from dragoman_server.core.search_options import OWN_CONVENTIONS, Constraints, Conventions

TopTokens = tuple[list[int], list[float]]  # tokens, best first, and their log-probabilities

FORBIDDEN = (1.0, -math.inf)  # penalty and offset
UNCHANGED = (1.0, 0.0)


class TokenRules:
    """The constraints on tokens. The object has no state, so all hypotheses of a request share it.

    The rules are exact on the whole vocabulary: they change logits before the softmax or, for a soft prefix, use a
    formula that needs only the candidates and the probability of one token.

    Args:
        constraints: Constraints of the request.
        end: Id of the end token.
        conventions: Rules of the model.
        source_ids: Source of the request, for the rule on its n-grams.
        vocabulary_size: Size of the target vocabulary; None if it has every source id.

    Attributes:
        prefix: Forced tokens: the model's forced first token, then the prefix unless it is soft.
        soft: Whether there is a soft prefix.
        trivial: Whether there are never logit edits, nor a bias.
        min_length: Number of ids, a forced prefix included, before which the end token is forbidden.
    """

    def __init__(
        self,
        constraints: Constraints,
        end: int,
        conventions: Conventions = OWN_CONVENTIONS,
        source_ids: Sequence[int] = (),
        vocabulary_size: int | None = None,
    ) -> None:
        self.soft = constraints.prefix_bias is not None
        first = () if conventions.forced_first is None else (conventions.forced_first,)
        self.prefix: tuple[int, ...] = first if self.soft else first + constraints.prefix
        self._soft_prefix: tuple[int, ...] = constraints.prefix if self.soft else ()
        self._bias = constraints.prefix_bias or 0.0
        self._end = end
        self._shortlist = None if constraints.vocabulary is None else frozenset(constraints.vocabulary)
        self.min_length = len(self.prefix) + constraints.min_new_tokens
        self._sequences = constraints.suppressed_sequences
        self._penalty = constraints.repetition_penalty
        self._ngram = constraints.no_repeat_ngram_size
        self._source_ngram = constraints.encoder_no_repeat_ngram_size
        self._source_ngrams = _ngrams(source_ids, self._source_ngram, vocabulary_size)
        self._history = conventions.history
        self._begin = len(first)
        self._begin_suppressed = conventions.begin_suppressed
        self._suppressed = dict.fromkeys(constraints.suppressed, FORBIDDEN)
        self._constant_edits = self._to_logit_edits(self._suppressed)
        self._early_edits = self._to_logit_edits({**self._suppressed, end: FORBIDDEN})
        self._depends_on_ids = bool(
            self._sequences
            or self._penalty != 1.0
            or self._ngram
            or self._source_ngrams
            or self._soft_prefix
            or self._begin_suppressed
        )
        self.trivial = not (self._depends_on_ids or self._constant_edits or constraints.min_new_tokens)

    def forced(self, position: int) -> int | None:
        """Returns the token of the forced prefix at a position; None after the prefix."""
        return self.prefix[position] if position < len(self.prefix) else None

    def preferred(self, ids: Sequence[int]) -> int | None:
        """Returns the next token of the soft prefix.

        None where the hypothesis has left the prefix or has all of it, or where the shortlist lacks the token.
        """
        position = len(ids) - len(self.prefix)
        if position >= len(self._soft_prefix) or tuple(ids[len(self.prefix) :]) != self._soft_prefix[:position]:
            return None
        token = self._soft_prefix[position]
        return token if self._shortlist is None or token in self._shortlist else None

    def edits(self, ids: Sequence[int]) -> LogitEdits | None:
        """Returns the logit edits of the step after these ids, a forced prefix included."""
        early = len(ids) < self.min_length
        if not self._depends_on_ids:
            return self._early_edits if early else self._constant_edits
        edits: dict[int, tuple[float, float]] = {}
        seen = [*self._history, *ids]
        if self._penalty != 1.0:
            edits = dict.fromkeys(seen, (self._penalty, 0.0))
        for token in self._repeating(seen):
            edits[token] = FORBIDDEN
        for *head, last in self._sequences:
            if len(head) <= len(seen) and seen[len(seen) - len(head) :] == head:
                edits[last] = FORBIDDEN
        if self._source_ngrams and (start := len(seen) - self._source_ngram + 1) >= 0:
            edits |= dict.fromkeys(self._source_ngrams.get(tuple(seen[start:]), ()), FORBIDDEN)
        edits |= self._suppressed
        if len(ids) == self._begin:
            edits |= dict.fromkeys(self._begin_suppressed, FORBIDDEN)
        if early:
            edits[self._end] = FORBIDDEN
        if (preferred := self.preferred(ids)) is not None:
            edits.setdefault(preferred, UNCHANGED)  # so that its probability is known even if it is no candidate
        return self._to_logit_edits(edits)

    def biased(
        self, ids: Sequence[int], top: tuple[list[int], list[float]], edits: LogitEdits | None, edited: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Returns the candidates with the soft prefix's bias b: all probabilities times 1 - b, plus b for its token.

        Where the token is forbidden there is no bias.

        Args:
            ids: Tokens of the hypothesis.
            top: Candidates without the bias, best first, and their log-probabilities.
            edits: Logit edits for these ids.
            edited: Log-probabilities of `edits.ids`; unused without a bias.

        Returns:
            Candidates, best first, and their log-probabilities: as many as before or, where the prefix's token was no
            candidate and is now better than one, one more. `top` itself without a bias.
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
        rank = bisect_left(others, (-preferred, token), key=lambda other: (-other[1], other[0]))
        # As the last one it might still be worse than some token that is no candidate.
        if rank < len(others) or len(others) < len(top[0]):
            others.insert(rank, (token, preferred))
        return [candidate for candidate, _ in others], [value for _, value in others]

    def after_softmax(
        self, top: TopTokens, edits: LogitEdits, edited: Sequence[float], *, renormalized: bool
    ) -> TopTokens:
        """Returns the candidates where edits apply to log-probabilities, as in transformers' beam search.

        A penalty multiplies a log-probability. Renormalized, all probabilities are then divided by their sum.

        Args:
            top: Candidates without edits, best first, and their log-probabilities: as many more as there are edits.
            edits: The edits.
            edited: Log-probabilities of `edits.ids` without edits.
        """
        changed = {
            token: -math.inf if offset == -math.inf else value * penalty
            for token, value, penalty, offset in zip(edits.ids, edited, edits.penalties, edits.offsets, strict=True)
        }
        shift = 0.0
        if renormalized:
            total = 1.0 + sum(math.exp(value) for value in changed.values()) - sum(map(math.exp, edited))
            shift = math.log(total) if total > 0 else 0.0
        values = {token: value for token, value in zip(*top, strict=True) if value > -math.inf} | changed
        best = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        return [token for token, _ in best], [value - shift for _, value in best]

    def _repeating(self, ids: Sequence[int]) -> list[int]:
        """Returns the tokens that would complete an n-gram that the ids contain."""
        size = self._ngram
        if not size or len(ids) < size:
            return []
        head = list(ids[len(ids) - size + 1 :])
        return [ids[at + size - 1] for at in range(len(ids) - size + 1) if list(ids[at : at + size - 1]) == head]

    def _to_logit_edits(self, edits: dict[int, tuple[float, float]]) -> LogitEdits | None:
        """Drops tokens outside the shortlist, which have no logit, and returns None if no edit is left."""
        if self._shortlist is not None:
            edits = {token: edit for token, edit in edits.items() if token in self._shortlist}
        if not edits:
            return None
        penalties, offsets = zip(*edits.values(), strict=True)
        return LogitEdits(list(edits), list(penalties), list(offsets))


def neutral(edits: LogitEdits) -> LogitEdits:
    """Returns edits of the same tokens that change nothing, so that a step returns their log-probabilities."""
    count = len(edits.ids)
    return LogitEdits(edits.ids, [1.0] * count, [0.0] * count)


def _ngrams(ids: Sequence[int], size: int, vocabulary_size: int | None) -> dict[tuple[int, ...], set[int]]:
    """Returns the last ids of all sequences of `size` ids by the ids before them; none for size 0.

    Ids that the vocabulary lacks are left out: they have no logit to edit.
    """
    ngrams: dict[tuple[int, ...], set[int]] = {}
    for at in range(len(ids) - size + 1 if size else 0):
        *head, last = ids[at : at + size]
        if vocabulary_size is None or last < vocabulary_size:
            ngrams.setdefault(tuple(head), set()).add(last)
    return ngrams
