"""Texts that end a hypothesis."""

from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.text_stream import REPLACEMENT, TargetDecoder, TextStream


class StopTracker:
    """Looks for the stop sequences in the text of one hypothesis, whose tokens are all pushed, a forced prefix's too.

    The first token that completes a sequence ends the text; of several that it completes, the one that begins first
    counts, and of those the longest. A sequence may begin in the forced prefix but must end behind it.

    Text that a later token may still change (bytes of an incomplete character, say) is not looked at before it is
    certain, as in a stream.
    """

    def __init__(self, decoder: TargetDecoder, constraints: Constraints) -> None:
        self._stream = TextStream(decoder)
        self._sequences = constraints.stop_sequences
        self._include = constraints.include_stop_sequence
        prefix = constraints.prefix if constraints.prefix_bias is None else ()
        self._given = len(decoder.decode(list(prefix)).rstrip(REPLACEMENT))  # characters that no match may end in
        self._keep = max(map(len, constraints.stop_sequences), default=1) - 1
        self._tail = ""  # the end of the text so far, as much of it as a match can begin in
        self._characters = 0  # of the text so far

    def copy(self) -> "StopTracker":
        """For another hypothesis that has begun in the same way."""
        other = object.__new__(StopTracker)
        other.__dict__.update(self.__dict__)
        other._stream = self._stream.copy()
        return other

    def push(self, token: int) -> int | None:
        """The next token, never the end token.

        Returns:
            how many characters of the whole text to keep, where the token completes a stop sequence.
        """
        piece = self._stream.push([token])
        cut = self._cut(piece)
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._keep) :]
        self._characters += len(piece)
        return cut

    def finish(self) -> int | None:
        """The same for the text that is certain only if no more tokens come. The tracker stays as it was."""
        return self._cut(self._stream.copy().finish())

    def _cut(self, piece: str) -> int | None:
        """Where to cut the text for a sequence that ends within the piece that comes next."""
        text = self._tail + piece
        first = self._characters - len(self._tail)  # place of `text` in the whole
        behind = max(self._characters, self._given) - first + 1  # where a match may end at the earliest
        matches = [
            (start, -len(sequence))
            for sequence in self._sequences
            if (start := text.find(sequence, max(0, behind - len(sequence)))) >= 0
        ]
        if not matches:
            return None
        start, minus_length = min(matches)
        return first + (start - minus_length if self._include else start)
