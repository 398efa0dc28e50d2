"""Stop sequences: texts that end a hypothesis."""

from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.text_stream import REPLACEMENT, TargetDecoder, TextStream


class StopTracker:
    """Searches the text of one hypothesis for stop sequences. All its tokens are pushed, those of a forced prefix too.

    The first token that completes a sequence ends the text. Of several sequences that it completes, the one that
    starts first counts, and of those the longest. A sequence may start in the forced prefix but must end after it.

    Text that a later token may still change (bytes of an incomplete character, say) is not searched before it is
    certain, as in a stream.

    Args:
        decoder: Converts tokens to text.
        constraints: Constraints with `stop_sequences`.
    """

    def __init__(self, decoder: TargetDecoder, constraints: Constraints) -> None:
        self._stream = TextStream(decoder)
        self._sequences = constraints.stop_sequences
        self._include = constraints.include_stop_sequence
        prefix = constraints.prefix if constraints.prefix_bias is None else ()
        self._prefix_length = len(decoder.decode(list(prefix)).rstrip(REPLACEMENT))  # characters; no match ends there
        self._keep = max(map(len, constraints.stop_sequences), default=1) - 1
        self._tail = ""  # last `keep` characters of the text so far, where a match may start
        self._length = 0  # of the text so far, in characters

    def copy(self) -> "StopTracker":
        """Returns a tracker for another hypothesis that starts with the same tokens."""
        other = object.__new__(StopTracker)
        other.__dict__.update(self.__dict__)
        other._stream = self._stream.copy()
        return other

    def push(self, token: int) -> int | None:
        """Appends the next token, which is not the end token.

        Returns:
            The number of characters of the whole text to keep if the token completes a stop sequence, else None.
        """
        piece = self._stream.push([token])
        cut = self._cut(piece)
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._keep) :]
        self._length += len(piece)
        return cut

    def finish(self) -> int | None:
        """Returns what `push` does, for the text that becomes certain if no token follows. Changes nothing."""
        return self._cut(self._stream.copy().finish())

    def _cut(self, piece: str) -> int | None:
        """Returns where to cut the text for a sequence that ends within the next piece."""
        text = self._tail + piece
        start_of_text = self._length - len(self._tail)
        min_end = max(self._length, self._prefix_length) - start_of_text + 1  # of a match in `text`
        matches = [
            (start, -len(sequence))
            for sequence in self._sequences
            if (start := text.find(sequence, max(0, min_end - len(sequence)))) >= 0
        ]
        if not matches:
            return None
        start, minus_length = min(matches)
        return start_of_text + (start - minus_length if self._include else start)
