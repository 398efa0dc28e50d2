"""Stop sequences, in text that is decoded from the start with every token."""

from collections.abc import Callable, Sequence

from dragoman_server.core.search_options import Constraints

Decode = Callable[[list[int]], str]


def completed(ids: Sequence[int], constraints: Constraints, decode: Decode) -> int | None:
    """How many characters count where the last token completes a stop sequence; None where it does not.

    Of several that it completes the one that starts first counts, and of those the longest.

    NOTE: only for tokenizers whose text so far is not changed by what follows.
    """
    before, text = decode(list(ids[:-1])), decode(list(ids))
    matches = [
        (start, -len(stop))
        for stop in constraints.stop_sequences
        for start in range(len(text) - len(stop) + 1)
        if text.startswith(stop, start) and start + len(stop) > len(before)
    ]
    if not matches:
        return None
    start, minus_length = min(matches)
    return start - minus_length if constraints.include_stop_sequence else start
