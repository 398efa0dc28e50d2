"""Estimates the largest possible size of a response from its request, before anything is computed.

A plain response, one hypothesis as text, is about as long as its source, far below what max_new_tokens allows: a batch
of those is measured while it is answered. All other responses may take megabytes for each source. They are judged by
their largest possible size, with tokens of average length.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.generation_options import ResponseDetails

# Bytes of a response, and of a hypothesis, without tokens and text.
RESPONSE_BYTES, HYPOTHESIS_BYTES = 64, 48
ALIGNMENT_BYTES, WEIGHT_BYTES = 2, 4


@dataclass(frozen=True, slots=True)
class TokenFormat:
    """Upper bounds for the bytes of an encoded token.

    Attributes:
        token: Bytes without its text and its log-probability.
        log_probability: Bytes of its log-probability.
    """

    token: int
    log_probability: int


MESSAGE = TokenFormat(token=10, log_probability=5)  # dragoman.v1.Token
JSON = TokenFormat(token=45, log_probability=44)  # the Open Inference Protocol


class ResponseSizes:
    """Estimates response sizes of one model.

    Args:
        source: Tokenizer of the source.
        target: Tokenizer of the target.
        heads: Number of attention heads of all layers together.
        limits: Limits of the model, with the bytes of one response.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer, heads: int, limits: pb.Limits) -> None:
        self._source, self._target = (_mean_bytes(tokenizer.get_vocab()) for tokenizer in (source, target))
        self._weights = WEIGHT_BYTES * heads
        self._limits = limits

    def check(
        self,
        details: ResponseDetails,
        search: SearchOptions,
        source_tokens: int,
        token_format: TokenFormat = MESSAGE,
        items: int | None = None,
    ) -> int:
        """Checks that the response to a request can't be too large.

        Args:
            source_tokens: Source tokens of all items together.
            token_format: How tokens are encoded.
            items: Number of items of a batch; None for a single request.

        Returns:
            The bytes that the response may take; 0 for a plain one, which is about as long as its source.

        Raises:
            ApiError: the response could be too large; the error says what would fit.
        """
        if search.num_hypotheses == 1 and not details.tokens:
            return 0
        count = items or 1
        per_token = self._token_bytes(details, token_format, source_tokens / count)
        source = source_tokens / count * (MESSAGE.token + self._source) if details.needs_attention else 0
        fixed = RESPONSE_BYTES + source
        forced = search.fixed_tokens + 1  # and the end token
        hypothesis = HYPOTHESIS_BYTES + (forced + search.max_new_tokens) * per_token
        response = fixed + search.num_hypotheses * hypothesis
        if count * response <= self._max_bytes:
            return int(count * response)
        fitting = int(self._max_bytes / response)
        if items is not None and fitting:
            problem = (
                f"has {items} items, whose responses {self._could_take(count * response)}: {fitting} such items fit"
            )
            remedy = "or more with a lower max_new_tokens, fewer hypotheses or fewer details"
            raise invalid("inputs", f"{problem}, {remedy}")
        tokens = ((self._max_bytes - fixed) / search.num_hypotheses - HYPOTHESIS_BYTES) / per_token - forced
        problem = f"so the response {self._could_take(response)}"
        if tokens >= 1:
            raise invalid("options.max_new_tokens", f"is {search.max_new_tokens}, {problem}: {int(tokens)} tokens fit")
        remedy = "request fewer hypotheses or fewer details"
        raise invalid("options.num_hypotheses", f"is {search.num_hypotheses}, {problem}; {remedy}")

    def check_score(self, targets: int, tokens: int, alignment: bool, attention: bool, source_tokens: int) -> None:
        """Checks that the response to a Score request can't be too large.

        Args:
            tokens: Tokens of all targets, end tokens included.

        Raises:
            ApiError: the response would be too large; the error says how many targets would fit.
        """
        details = ResponseDetails(tokens=True, log_probabilities=True, alignment=alignment, attention=attention)
        size = RESPONSE_BYTES + source_tokens * (MESSAGE.token + self._source)
        size += targets * HYPOTHESIS_BYTES + tokens * self._token_bytes(details, MESSAGE, source_tokens)
        if size > self._max_bytes:
            fitting = int(self._max_bytes / size * targets)
            raise invalid("targets", f"have a response that {self._could_take(size)}: about {fitting} fit")

    def too_large(self) -> ApiError:
        """Returns the error for a batch whose plain responses have become too large."""
        problem = f"have responses of more than {self._max_bytes} bytes, the server's --max-answer-bytes"
        return invalid("inputs", f"{problem}; send fewer at once")

    @property
    def _max_bytes(self) -> int:
        return self._limits.answer_bytes

    def _token_bytes(self, details: ResponseDetails, token_format: TokenFormat, source_tokens: float) -> float:
        """Returns the bytes for one target token of a hypothesis, including its part of the text."""
        size = self._target
        if details.tokens:
            token = token_format.token + self._target
            token += token_format.log_probability if details.log_probabilities else 0
            size += token * (1 + details.top_tokens)
        if details.alignment:
            size += ALIGNMENT_BYTES
        if details.attention:
            size += self._weights * source_tokens
        return size

    def _could_take(self, size: float) -> str:
        return f"could take {int(size)} bytes, but the server sends at most {self._max_bytes} (--max-answer-bytes)"


def _mean_bytes(tokens: Iterable[str]) -> float:
    """Returns the mean length of tokens in UTF-8."""
    lengths = [len(token.encode()) for token in tokens]
    return sum(lengths) / len(lengths)
