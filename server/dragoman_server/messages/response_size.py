"""The most that an answer can take, estimated from the request before any of it is computed.

A plain answer, one hypothesis as text, is about as long as its source, far from what max_new_tokens allows: a batch of
those is measured while it is answered. All else may take megabytes for each source, and is judged by what it can be at
most, for tokens of average length.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.generation_options import ResponseDetails

# Bytes of an answer, and of a hypothesis, beside its tokens and its text.
ANSWER_BYTES, HYPOTHESIS_BYTES = 64, 48
ALIGNMENT_BYTES, WEIGHT_BYTES = 2, 4


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """What a token takes at most, beside its text: by itself, and with its log-probability."""

    token: int
    log_probability: int


MESSAGE = TokenFormat(token=10, log_probability=5)  # as dragoman.v1.Token
JSON = TokenFormat(token=45, log_probability=44)  # as the Open Inference Protocol has it


class ResponseSizes:
    """Sizes of one model's answers.

    Args:
        source, target: the model's tokenizers.
        planes: heads of all layers, each with weights of its own.
        limits: with the bytes of one response.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, planes: int, limits: pb.Limits) -> None:
        self._source, self._target = (_mean_bytes(each.get_vocab()) for each in (source, target))
        self._weights = WEIGHT_BYTES * planes
        self._limits = limits

    def check(
        self,
        details: ResponseDetails,
        search: SearchOptions,
        source_tokens: int,
        token_format: TokenFormat = MESSAGE,
        inputs: int | None = None,
    ) -> None:
        """Refuses what might have too large an answer, and says how much would fit.

        Args:
            source_tokens: of all inputs together.
            token_format: how tokens are written.
            inputs: of a batch.

        Raises:
            ApiError: it might.
        """
        if search.num_hypotheses == 1 and not details.tokens:
            return
        count = inputs or 1
        per_token = self._per_token(details, token_format, source_tokens / count)
        fixed = ANSWER_BYTES + (
            source_tokens / count * (MESSAGE.token + self._source) if details.needs_attention else 0
        )
        behind = len(search.constraints.prefix) + 1  # tokens that are no new ones
        hypothesis = HYPOTHESIS_BYTES + (behind + search.max_new_tokens) * per_token
        answer = fixed + search.num_hypotheses * hypothesis
        if count * answer <= self._most:
            return
        fit = int(self._most / answer)
        if inputs is not None and fit:
            problem = (
                f"has {inputs} items, whose answers could take {self._too_many(count * answer)}: {fit} such items fit"
            )
            raise invalid(
                "inputs", f"{problem}, or more with a lower max_new_tokens, fewer hypotheses or fewer details"
            )
        raise self._too_long(
            search, answer, ((self._most - fixed) / search.num_hypotheses - HYPOTHESIS_BYTES) / per_token - behind
        )

    def check_score(self, targets: int, tokens: int, alignment: bool, attention: bool, source_tokens: int) -> None:
        """The same for targets to score.

        Args:
            tokens: of all targets, end tokens included.

        Raises:
            ApiError: the answer would be too large.
        """
        details = ResponseDetails(tokens=True, log_probabilities=True, alignment=alignment, attention=attention)
        size = ANSWER_BYTES + source_tokens * (MESSAGE.token + self._source)
        size += targets * HYPOTHESIS_BYTES + tokens * self._per_token(details, MESSAGE, source_tokens)
        if size > self._most:
            problem = f"would have an answer of {self._too_many(size)}: about {int(self._most / size * targets)} fit"
            raise invalid("targets", problem)

    def too_large(self) -> ApiError:
        """For a batch whose answers have become too large, however little they were asked to tell."""
        problem = f"have answers of more than {self._most} bytes, the server's --max-answer-bytes; send fewer at once"
        return invalid("inputs", problem)

    @property
    def _most(self) -> int:
        return self._limits.answer_bytes

    def _per_token(self, details: ResponseDetails, token_format: TokenFormat, source_tokens: float) -> float:
        """Bytes of one target token of a hypothesis, its part of the text included."""
        size = self._target
        if details.tokens:
            token = (
                token_format.token + self._target + (token_format.log_probability if details.log_probabilities else 0)
            )
            size += token * (1 + details.top_tokens)
        if details.alignment:
            size += ALIGNMENT_BYTES
        if details.attention:
            size += self._weights * source_tokens
        return size

    def _too_long(self, search: SearchOptions, answer: float, tokens: float) -> ApiError:
        could = f"an answer could take {self._too_many(answer)}"
        if tokens >= 1:
            return invalid(
                "options.max_new_tokens", f"is {search.max_new_tokens}, so {could}: {int(tokens)} tokens fit"
            )
        return invalid(
            "options.num_hypotheses", f"is {search.num_hypotheses}, so {could}; ask for fewer, or less of each"
        )

    def _too_many(self, size: float) -> str:
        return f"{int(size)} bytes, but the server sends at most {self._most} (--max-answer-bytes)"


def _mean_bytes(tokens: Iterable[str]) -> float:
    lengths = [len(token.encode()) for token in tokens]
    return sum(lengths) / len(lengths)
