"""Streamed pieces of text are the text."""

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models

from server.text.stream import REPLACEMENT, TargetDecoder, TextStream

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer(tokens: list[str], decoder: decoders.Decoder | None) -> Tokenizer:
    """A tokenizer good for decoding: what it would make of a text is of no interest here."""
    made = Tokenizer(models.WordLevel({token: index for index, token in enumerate([*SPECIAL, *tokens])}, "<unk>"))
    made.decoder = decoder
    made.add_special_tokens(SPECIAL)
    return made


# The alphabet of byte-level BPE: bytes that can be seen stand for themselves.
VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
ALPHABET = {byte: chr(byte) for byte in VISIBLE} | {byte: chr(256 + n) for n, byte in enumerate(HIDDEN)}


def byte_level() -> Tokenizer:
    """Every byte as a token, and a few of several bytes."""
    words = [" the", "é", "€", " 😀", "\u05d0", "a\u0301"]
    spelled = ["".join(ALPHABET[byte] for byte in word.encode()) for word in words]
    return tokenizer([*ALPHABET.values(), *spelled], decoders.ByteLevel())


PIECES = ["▁", "▁▁", "▁a", "b", "▁é", "€", " ", REPLACEMENT, "'s", "."]
TOKENIZERS = {
    "characters": tokenizer(list("ABC 'é\u0301\u05d0"), decoders.Fuse()),
    "symbols": tokenizer(["AH0", "K", "S", "TH"], None),
    "byte-level BPE": byte_level(),
    "BPE with byte fallback": tokenizer(
        [*PIECES, *BYTES],
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    ),
    "unigram with byte fallback": tokenizer(
        [*PIECES, *BYTES], decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ),
    "unigram": tokenizer(PIECES, decoders.Metaspace()),
    "BPE with word ends": tokenizer(["a", "b</w>", "</w>", "é</w>"], decoders.BPEDecoder()),
    "word pieces": tokenizer(["don", "##'t", "'", "##ing", ".", "n't"], decoders.WordPiece()),
    "replaced across tokens": tokenizer(
        ["a", "b", "c"], decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("ab+"), "x")])
    ),
}


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
    started = time.perf_counter()
    pieces = [stream.push([index]) for index in ids]
    # Decoding everything anew with every token would take minutes.
    assert time.perf_counter() - started < 5
    assert "".join([*pieces, stream.finish()]) == decoder.decode(ids)
