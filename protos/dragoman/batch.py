"""A batch until all of its sources have their outcomes: those that ended with UNAVAILABLE are sent again. Pure."""

from collections.abc import Iterable
from typing import Any

from dragoman import answers, options
from dragoman.errors import DragomanError, ItemError, ServerError, UnavailableError
from dragoman.fields import Source
from dragoman.messages import input_or_error
from dragoman.results import Result
from dragoman.retry import Attempts
from dragoman.v1 import generation_pb2 as pb


class Batch:
    """The state of one generate_batch.

    A driver (one in each client) sends `request` while there is one, and reports what came of it.

    Args:
        given: GenerateOptions.

    Raises:
        ValueError: an option does not fit its field.
        TypeError: a source is neither text nor ids, or there is no such option.
    """

    def __init__(self, sources: Iterable[Source], **given: Any) -> None:
        self._shared = options.of_request(**given)
        self._inputs: dict[int, pb.Input] = {}  # to be sent, by their sources' places
        self._outcomes: dict[int, Result | ItemError] = {}
        self._answered = False
        for index, source in enumerate(sources):
            built = input_or_error(index, source)
            if isinstance(built, ItemError):
                self._outcomes[index] = built
            else:
                self._inputs[index] = built

    @property
    def request(self) -> pb.GenerateBatchRequest | None:
        """What to send now; None where all have their outcomes."""
        return pb.GenerateBatchRequest(inputs=self._inputs.values(), **self._shared) if self._inputs else None

    def answered(self, response: pb.GenerateBatchResponse, attempts: Attempts) -> float:
        """Takes the answer to `request`.

        Returns:
            seconds to wait before the next request; 0 where there is none.

        Raises:
            ServerError: it is not one whole answer for each source that was sent.
        """
        if len(response.items) != len(self._inputs):
            raise ServerError(
                f"the server answered {len(response.items)} of {len(self._inputs)} inputs", code="INTERNAL"
            )
        outcomes = {index: answers.item(index, item) for index, item in zip(self._inputs, response.items, strict=True)}
        self._outcomes |= outcomes
        self._answered = True
        lost = {
            index: outcome.error
            for index, outcome in outcomes.items()
            if isinstance(outcome, ItemError) and isinstance(outcome.error, UnavailableError)
        }
        delay = None
        if lost:
            delay = attempts.delay_after(max(lost.values(), key=lambda error: error.retry_after or 0.0))
        self._inputs = {index: self._inputs[index] for index in lost} if delay is not None else {}
        return delay or 0.0

    def failed(self, error: DragomanError) -> None:
        """The request came to nothing: its sources end with that, and what was answered before stays.

        Raises:
            DragomanError: the error, where nothing was answered before.
        """
        if not self._answered:
            raise error
        self._outcomes |= {index: ItemError(index, error) for index in self._inputs}
        self._inputs = {}

    def outcomes(self) -> list[Result | ItemError]:
        """What became of every source, in order, once there is no `request` any more."""
        return [self._outcomes[index] for index in sorted(self._outcomes)]
