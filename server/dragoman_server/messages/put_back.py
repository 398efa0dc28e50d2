"""Puts text that was carried past a model into its answer, where the source's neighbors have gone."""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from dragoman_server.core.requests import CarriedText, HypothesisResult, Piece
from dragoman_server.decoding.text_stream import TargetDecoder, TextStream

# Behind a word, or behind the punctuation after it.
_GAP = re.compile(r"""(?<=\w)(?=[.,;:!?…)\]}"'“”’»](?!\w))|(?<=\S)(?=\s|$)""")


class Placement:
    """Places carried text in the targets of one model.

    Args:
        segment: Splits a part of a source into ids, without any around them.
        decoder: Decoder of the targets.
    """

    def __init__(self, segment: Callable[[str], list[int]], decoder: TargetDecoder) -> None:
        self._segment = segment
        self._decoder = decoder

    @staticmethod
    def needs_alignment(carried: CarriedText) -> bool:
        """Returns whether a piece stood neither at the start nor at the end of its source."""
        return any(0 < piece.position < len(carried.left) for piece in carried.pieces)

    def boundaries(self, carried: CarriedText, source_ids: Sequence[int]) -> list[int]:
        """Returns the source position of the first token after each piece.

        Args:
            source_ids: Token ids of what was left of the source, and of what an imported model has around it.
        """
        within = self._segment(carried.left)
        starts = range(len(source_ids) - len(within) + 1)
        start = next((start for start in starts if [*source_ids[start : start + len(within)]] == within), 0)
        return [start + len(self._segment(carried.left[: piece.position])) for piece in carried.pieces]

    def put_back(
        self,
        text: str,
        hypothesis: HypothesisResult,
        carried: CarriedText,
        boundaries: Sequence[int],
        alignment: Sequence[int] | None,
    ) -> str:
        """Returns the text of a hypothesis with the carried pieces; if nothing was left of a source, the source.

        A piece goes into the gap between two words that most tokens agree with: those aligned to the source before the
        piece should be before it, the others after it. A forced prefix stays as it is.

        Args:
            text: Text of the hypothesis, which a stop sequence may have cut.
            hypothesis: The hypothesis.
            boundaries: What `boundaries` returned; unused without an alignment.
            alignment: Source position of each token; None if `needs_alignment` returned False.
        """
        if not carried.left:
            return carried.pieces[0].text
        fixed = len(self._decoder.decode(hypothesis.ids[: hypothesis.prefix])) if hypothesis.prefix else 0
        gaps = [match.start() for match in _GAP.finditer(text) if match.start() >= fixed] or [len(text)]
        ends = self._ends(hypothesis.ids) if alignment is not None else []
        tokens = [bisect_right(ends, gap) for gap in gaps]
        placed: list[tuple[int, Piece]] = []
        for index, piece in enumerate(carried.pieces):
            if piece.text in text[:fixed]:
                continue
            if piece.position == 0:
                place = gaps[0] if fixed else 0
            elif piece.position >= len(carried.left) or alignment is None:
                place = len(text)
            else:
                place = gaps[_best_gap(tokens, alignment[: len(ends)], boundaries[index])]
            placed.append((place, piece))
        placed.sort(key=lambda each: each[0])  # keeps the order of those at one place
        for place, piece in placed[::-1]:
            text = _inserted(text, piece, place)
        return text

    def _ends(self, ids: Sequence[int]) -> list[int]:
        """Returns where the text of each token ends."""
        stream = TextStream(self._decoder)
        return list(accumulate(len(stream.push([index])) for index in ids))


def _best_gap(tokens: Sequence[int], alignment: Sequence[int], first: int) -> int:
    """Returns the gap on whose wrong side the fewest tokens are; of several, one behind the source's last token.

    Args:
        tokens: Number of tokens before each gap, ascending.
        alignment: Source position of each token.
        first: Source position of the first token after the piece.
    """
    late = [0, *accumulate(position >= first for position in alignment)]  # tokens before each token
    early = len(alignment) - late[-1]

    def cost(gap: int) -> tuple[int, bool]:
        count = tokens[gap]
        wrong = late[count] + early - (count - late[count])
        return wrong, not count or alignment[count - 1] != first - 1

    return min(range(len(tokens)), key=cost)


def _inserted(text: str, piece: Piece, place: int) -> str:
    """Inserts a piece, set off as it was in the source; words always are."""
    before, after = text[:place], text[place:]
    left = right = ""
    if (
        before
        and not before[-1].isspace()
        and (piece.space_before or (before[-1].isalnum() and piece.text[0].isalnum()))
    ):
        left = " "
    if after and not after[0].isspace() and (after[0].isalnum() or not before):
        right = " " if piece.space_after or piece.text[-1].isalnum() else ""
    return f"{before}{left}{piece.text}{right}{after}"
