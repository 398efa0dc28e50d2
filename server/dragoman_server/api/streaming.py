"""Streams a generation: pieces of text that are never taken back."""

from collections import defaultdict
from collections.abc import AsyncGenerator

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import BeamProgress, GenerationRequest, Progress
from dragoman_server.core.search_options import OWN_CONVENTIONS, Constraints, Conventions
from dragoman_server.decoding.text_stream import TargetDecoder, TextStream
from dragoman_server.messages.generation_options import ResponseDetails
from dragoman_server.messages.served_model import ServedModel


async def stream_response(
    model: ServedModel, request: GenerationRequest, details: ResponseDetails
) -> AsyncGenerator[pb.GenerateStreamResponse, None]:
    """Submits a request and yields its messages. Close the generator to cancel the request.

    Raises:
        QueueFullError, DeadlineExpiredError, EngineUnavailableError: as raised by the engines and the scorer.
    """
    generation, search = model.submit(request), request.search
    streams: dict[int, HypothesisStream] = defaultdict(
        lambda: HypothesisStream(
            model.decoder, search.constraints, search.conventions, whole=request.carried is not None
        )
    )
    try:
        async for event in generation.events():
            if isinstance(event, Progress):
                text = streams[event.hypothesis].push(event.ids)
                tokens = model.writer.progress(event, details)
                if text or tokens:
                    yield pb.GenerateStreamResponse(text=text, tokens=tokens, hypothesis=event.hypothesis)
            elif isinstance(event, BeamProgress):
                progress = pb.BeamProgress(tokens=event.tokens, running=event.running, finished=event.finished)
                yield pb.GenerateStreamResponse(progress=progress)
            else:
                final = await model.write_response(request, event, details)
                last = len(final.hypotheses) - 1  # sent together with the complete response
                for index, hypothesis in enumerate(final.hypotheses):
                    stream = streams[index]
                    text, tokens = stream.rest(hypothesis.text), hypothesis.tokens[stream.tokens :]
                    message = pb.GenerateStreamResponse(text=text, tokens=tokens, hypothesis=index)
                    if index == last:
                        message.final.CopyFrom(final)
                    if text or tokens or index == last:
                        yield message
    finally:
        generation.cancel()


class HypothesisStream:
    """Decides which text of one hypothesis can be sent. All pieces and the rest add up to the text of the hypothesis.

    The text may be cut before a stop sequence, so a possible start of one is held back. The text of the token that
    completes a stop sequence is left to the rest, because only the search knows where it cuts.

    Args:
        whole: Whether all text is left to the rest: where carried text belongs is known only at the end.

    Attributes:
        tokens: Number of tokens so far.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        constraints: Constraints,
        conventions: Conventions = OWN_CONVENTIONS,
        *,
        whole: bool = False,
    ) -> None:
        self.tokens = 0
        self._whole = whole
        self._stream = TextStream(decoder)
        self._stop_sequences = constraints.stop_sequences
        self._cut_before = not constraints.include_stop_sequence
        self._forced = len(constraints.prefix) if constraints.prefix_bias is None else 0
        self._forced += conventions.forced_first is not None
        self._tail_length = max(map(len, self._stop_sequences), default=1) - 1
        self._tail = ""  # the end of the text so far, long enough for a match to start in it
        self._held = 0  # characters at its end that have not been sent
        self._sent = 0
        self._stopped = False  # by a stop sequence

    def push(self, ids: list[int]) -> str:
        """Adds tokens, and returns the text that can now be sent, which may be empty."""
        self.tokens += len(ids)
        if self._whole:
            return ""
        piece = self._stream.push(ids)
        known, text = len(self._tail), self._tail + piece
        # A stop sequence that is complete within a forced prefix does not count.
        if self.tokens > self._forced and self._has_match(text, known):
            self._stopped = True
        if self._stopped:
            return ""
        held = max((_overlap(text, stop) for stop in self._stop_sequences), default=0) if self._cut_before else 0
        piece = text[known - self._held : len(text) - held]
        self._held = held
        self._tail = text[max(0, len(text) - self._tail_length) :]
        self._sent += len(piece)
        return piece

    def rest(self, text: str) -> str:
        """Returns what has not been sent of the finished hypothesis.

        Args:
            text: The complete text of the hypothesis.
        """
        return text[self._sent :]

    def _has_match(self, text: str, known: int) -> bool:
        """Returns whether a stop sequence ends after the first `known` characters."""
        return any(text.find(stop, max(0, known - len(stop) + 1)) >= 0 for stop in self._stop_sequences)


def _overlap(text: str, stop: str) -> int:
    """Returns the length of the longest suffix of the text that is a proper prefix of the stop sequence."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
