"""Streamed pieces are the text of the finished hypothesis, wherever a stop sequence cuts it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.api.streaming import HypothesisStream
from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from tests.support.fake_engines import letters
from tests.support.target_tokenizers import TOKENIZERS

LETTERS = TargetDecoder(letters())
DECODERS = {kind: TargetDecoder(tokenizer) for kind, tokenizer in TOKENIZERS.items()}


def spelled(text: str) -> list[int]:
    return letters().encode(text, add_special_tokens=False).ids


def run(decoder: TargetDecoder, constraints: Constraints, ids: list[int]) -> tuple[list[str], str]:
    """The pieces of a hypothesis with these ids or, if a stop sequence ends it, the first of them; and its text."""
    stream, stops = HypothesisStream(decoder, constraints), StopTracker(decoder, constraints)
    forced = list(constraints.prefix)
    pieces = [stream.push(forced)] if forced else []
    for token in forced:
        stops.push(token)
    taken, cut = list(forced), None
    for token in ids:
        taken.append(token)
        pieces.append(stream.push([token]))
        if (cut := stops.push(token)) is not None:
            break
    if cut is None:
        cut = stops.finish()
    text = decoder.decode(taken)[:cut]
    return [*pieces, stream.rest(text)], text


@pytest.mark.parametrize("kind", DECODERS)
@settings(deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_text_that_the_search_cut(kind: str, data: st.DataObject) -> None:
    decoder, size = DECODERS[kind], TOKENIZERS[kind].get_vocab_size()
    token = st.integers(0, size - 1)
    # Few different tokens, and stop sequences out of what they spell, so that these do occur, and overlap.
    tokens = data.draw(st.lists(token, min_size=1, max_size=4))
    ids = data.draw(st.lists(st.sampled_from(tokens), max_size=24))
    prefix = data.draw(st.lists(st.sampled_from(tokens), max_size=4))
    text = decoder.decode(prefix + ids) or "a"
    spans = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 5))
    stops = {text[start : start + length] for start, length in data.draw(st.lists(spans, max_size=3))}
    constraints = Constraints(
        prefix=tuple(prefix), stop_sequences=tuple(sorted(stops)), include_stop_sequence=data.draw(st.booleans())
    )
    pieces, whole = run(decoder, constraints, ids)
    assert "".join(pieces) == whole


def pieces(stops: list[str], text: str, *, include: bool = False, prefix: str = "") -> list[str]:
    constraints = Constraints(prefix=tuple(spelled(prefix)), stop_sequences=tuple(stops), include_stop_sequence=include)
    return run(LETTERS, constraints, spelled(text))[0]


def test_what_may_be_the_start_of_a_stop_sequence_is_held_back() -> None:
    assert pieces([], "abc") == ["a", "b", "c", ""]
    assert pieces(["bcd"], "abcde") == ["a", "", "", "", ""]  # "bcd" is never seen
    assert pieces(["bcd"], "abcx") == ["a", "", "", "bcx", ""]
    assert pieces(["bcd"], "abc") == ["a", "", "", "bc"]  # the end token comes before the rest of it
    assert pieces(["aab"], "aaab") == ["", "", "a", "", ""]
    assert pieces(["bcd", "c"], "abcd") == ["a", "", "", "b"]  # the first that is complete


def test_an_included_stop_sequence_is_sent_as_it_comes_but_for_its_end() -> None:
    assert pieces(["bcd"], "abcde", include=True) == ["a", "b", "c", "", "d"]


def test_a_stop_sequence_within_the_prefix_holds_nothing_back() -> None:
    assert pieces(["b"], "cdbe", prefix="ab") == ["ab", "c", "d", "", ""]
    assert pieces(["bc"], "cde", prefix="ab") == ["a", "", ""]
    assert pieces(["bc"], "de", prefix="ab") == ["a", "bd", "e", ""]


def test_a_long_text_costs_no_more_per_token_than_a_short_one() -> None:
    """Only the end of the text is looked at."""
    draw = random.Random(0)
    ids = [draw.randrange(4, 30) for _ in range(20_000)]
    stream = HypothesisStream(LETTERS, Constraints(stop_sequences=("a" * 256, "b" * 256)))
    sent = "".join(stream.push([index]) for index in ids)
    assert sent + stream.rest(LETTERS.decode(ids)) == LETTERS.decode(ids)
    assert len(stream._tail) == 255
