"""An answer while it is generated: pieces of text that are never taken back."""

from collections import defaultdict
from collections.abc import AsyncGenerator

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import BeamProgress, GenerationRequest, Progress
from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.text_stream import TargetDecoder, TextStream
from dragoman_server.messages.generation_options import ResponseDetails
from dragoman_server.messages.served_model import ServedModel


async def stream_answer(
    model: ServedModel, request: GenerationRequest, details: ResponseDetails
) -> AsyncGenerator[pb.GenerateStreamResponse, None]:
    """Asks the engines, and tells what they decide as they do. Whoever stops to listen must close it.

    Raises:
        QueueFullError, DeadlineExpiredError, EngineUnavailableError: as engines and scorer do.
    """
    generation = model.submit(request)
    streams: dict[int, HypothesisStream] = defaultdict(
        lambda: HypothesisStream(model.decoder, request.search.constraints)
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
                last = len(final.hypotheses) - 1  # it comes together with the whole
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
    """What can be sent of one hypothesis. All pieces and the rest, joined, are the text of the finished hypothesis.

    That text may be cut before a stop sequence, so what may turn out to be the start of one is held back; and what
    comes from the token that completes one is left to the rest, for only the search knows where it cuts.

    Attributes:
        tokens: how many have been pushed.
    """

    def __init__(self, decoder: TargetDecoder, constraints: Constraints) -> None:
        self.tokens = 0
        self._stream = TextStream(decoder)
        self._sequences = constraints.stop_sequences
        self._cut_before = not constraints.include_stop_sequence
        self._forced = len(constraints.prefix) if constraints.prefix_bias is None else 0
        self._keep = max(map(len, self._sequences), default=1) - 1
        self._tail = ""  # the end of the text so far, as much of it as a match can begin in
        self._held = 0  # characters at its end that have not been sent
        self._sent = 0
        self._ended = False  # by a stop sequence

    def push(self, ids: list[int]) -> str:
        """The text that can be sent with these tokens and could not before; may be empty."""
        self.tokens += len(ids)
        piece = self._stream.push(ids)
        known, text = len(self._tail), self._tail + piece
        # A sequence that is complete within a forced prefix ends nothing.
        if self.tokens > self._forced and self._ends(text, known):
            self._ended = True
        if self._ended:
            return ""
        held = max((_overlap(text, stop) for stop in self._sequences), default=0) if self._cut_before else 0
        piece = text[known - self._held : len(text) - held]
        self._held = held
        self._tail = text[max(0, len(text) - self._keep) :]
        self._sent += len(piece)
        return piece

    def rest(self, text: str) -> str:
        """What has not been sent of the finished hypothesis.

        Args:
            text: all of its text.
        """
        return text[self._sent :]

    def _ends(self, text: str, known: int) -> bool:
        """Whether a stop sequence ends behind the first `known` characters."""
        return any(text.find(stop, max(0, known - len(stop) + 1)) >= 0 for stop in self._sequences)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that the stop sequence begins with, without being all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
