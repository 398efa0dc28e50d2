"""Streamed pieces of text are the text."""

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.decoding.text_stream import REPLACEMENT, TargetDecoder, TextStream
from tests.support.target_tokenizers import ALPHABET, BYTES, TOKENIZERS


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole_text(kind: str, data: st.DataObject) -> None:
    decoder = TargetDecoder(TOKENIZERS[kind])
    size = TOKENIZERS[kind].get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    stream = TextStream(decoder)
    pieces = [stream.push(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)])]
    assert "".join([*pieces, stream.finish()]) == decoder.decode(ids)


BYTE_IDS = {
    "BPE with byte fallback": [TOKENIZERS["BPE with byte fallback"].get_vocab()[token] for token in BYTES],
    "byte-level BPE": [TOKENIZERS["byte-level BPE"].get_vocab()[ALPHABET[byte]] for byte in range(256)],
}


@pytest.mark.parametrize("kind", BYTE_IDS)
@settings(deadline=None)
@given(text=st.text(max_size=12))
def test_characters_of_several_tokens_are_held_back(kind: str, text: str) -> None:
    ids = [BYTE_IDS[kind][byte] for byte in text.encode()]
    stream = TextStream(TargetDecoder(TOKENIZERS[kind]))
    pieces = [stream.push([index]) for index in ids]
    assert "".join(pieces).count(REPLACEMENT) <= text.count(REPLACEMENT)
    assert "".join([*pieces, stream.finish()]) == TOKENIZERS[kind].decode(ids)


def test_text_is_sent_as_soon_as_it_is_certain() -> None:
    made = TOKENIZERS["unigram"]
    stream = TextStream(TargetDecoder(made))
    ids = [made.get_vocab()[token] for token in ("▁a", "b", "▁é", "▁▁", ".")]
    assert [stream.push([index]) for index in ids] == ["a", "b", " é", "  ", "."]
    assert stream.finish() == ""


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_long_texts_cost_no_more_per_token_than_short_ones(kind: str) -> None:
    decoder, size = TargetDecoder(TOKENIZERS[kind]), TOKENIZERS[kind].get_vocab_size()
    draw = random.Random(0)
    stream, ids = TextStream(decoder), [draw.randrange(size) for _ in range(20_000)]
    started = time.thread_time()
    pieces = [stream.push([index]) for index in ids]
    # Decoding everything anew with every token would take minutes.
    assert time.thread_time() - started < 20
    assert "".join([*pieces, stream.finish()]) == decoder.decode(ids)
