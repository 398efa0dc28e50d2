"""Blank text is refused by every kind of tokenizer, and errors give positions in the text as it was sent."""

import asyncio
import unicodedata

import pytest
from tokenizers import Tokenizer, normalizers

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.blank_text import describe_characters, is_blank
from dragoman_server.messages.token_ids import SourceEncoder
from dragoman_training.data.tokenizers import train_tokenizer
from dragoman_training.recipe import TokenizerConfig

TEXTS = [f"the {a} {b}s, café {b}ing" for a in ("cat", "dog") for b in ("walk", "sleep", "sing")]
BLANK = {
    " ": "U+0020 SPACE",
    "\n": "U+000A LINE FEED",
    "\u00a0\u00a0": "U+00A0 NO-BREAK SPACE",
    "\u200b ": "U+200B ZERO WIDTH SPACE and U+0020 SPACE",
    "\u3164\u2800": "U+3164 HANGUL FILLER and U+2800 BRAILLE PATTERN BLANK",
    "\ufeff\u2060\u00ad\u200d\ufe0f": (
        "U+FEFF ZERO WIDTH NO-BREAK SPACE, U+2060 WORD JOINER, U+00AD SOFT HYPHEN and 2 more"
    ),
    "\x07": "U+0007 (a character without a name)",
}


def encoder(kind: str, invisible: str = "keep", normalizer: normalizers.Normalizer | None = None) -> SourceEncoder:
    """Returns the encoder of a bundle whose tokenizer keeps or drops invisible characters."""
    config = TokenizerConfig.model_validate({"kind": kind, "vocabulary": 400, "invisible": invisible})
    tokenizer = Tokenizer.from_str(train_tokenizer(config, TEXTS).to_str())
    if normalizer is not None:
        tokenizer.normalizer = normalizers.Sequence([normalizer, tokenizer.normalizer])
    return SourceEncoder(tokenizer, SpecialTokens(pad=0, unknown=1, begin=2, end=3), 64)


def refusal(encoder: SourceEncoder, text: str) -> str:
    with pytest.raises(ApiError) as refused:
        asyncio.run(encoder.encode(pb.Input(text=text), "input"))
    [batched] = asyncio.run(encoder.encode_batch([pb.Input(text=text)], ["input"]))
    assert str(batched) == str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("kind", ["characters", "symbols", "bpe", "unigram"])
@pytest.mark.parametrize("invisible", ["drop", "keep"])
def test_blank_text_is_refused_with_the_names_of_its_characters(kind: str, invisible: str) -> None:
    source = encoder(kind, invisible)
    for text, names in BLANK.items():
        assert refusal(source, text) == f"input.text is blank: it contains only {names}"


@pytest.mark.parametrize("kind", ["characters", "symbols", "bpe", "unigram"])
def test_text_that_is_blank_after_normalization_is_refused(kind: str) -> None:
    marks = encoder(kind, normalizer=normalizers.Replace("\u0301", " "))
    assert refusal(marks, "\u0301") == (
        "input.text is blank after normalization: it contains only U+0301 COMBINING ACUTE ACCENT"
    )
    if kind in ("bpe", "unigram"):
        lower_block = "input.text is blank after normalization: it contains only U+2581 LOWER ONE EIGHTH BLOCK"
        assert refusal(encoder(kind), "▁") == lower_block


def test_positions_count_characters_of_the_original_text() -> None:
    source = encoder("characters", "drop")
    text = " \u200bthe\u00a0 \u00adcat ☃"
    assert f"'☃' (U+2603) at position {text.index('☃')}" in refusal(source, text)
    text = "ca\u200bfe\u0301  \u00adx\u0302"
    assert f"'x\u0302' at position {text.index('x')}" in refusal(source, text)


def test_visible_characters_are_not_blank() -> None:
    for text in ("a", " .", "\u0301", "\u0600", "☃", "\ue000", "\ufffd", "\u200b1"):
        assert not is_blank(text), ascii(text)
    assert is_blank("")
    spaces = [chr(point) for point in range(0x110000) if chr(point).isspace()]
    assert is_blank("".join(spaces))


def test_the_list_of_characters_is_bounded() -> None:
    every = "".join(c for c in map(chr, range(0x110000)) if unicodedata.category(c) == "Cf")
    assert len(describe_characters(every)) < 200
