"""Tokenizers: what goes in comes out, ids of the special tokens, and text that looks like a special token."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dragoman_training.data.tokenizers import (
    BYTE_TOKENS,
    END_ID,
    SPECIAL_TOKENS,
    UNKNOWN_ID,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from dragoman_training.errors import DataError
from dragoman_training.recipe import TokenizerConfig

TEXTS = [f"the {a} {b} {b}ing, the {a}s {b}" for a in ("cat", "dog", "bird", "fish") for b in ("walk", "sleep", "sing")]


def made(kind: str, folder: Path, **options: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"kind": kind, "vocabulary": 400, **options})
    save_tokenizer(train_tokenizer(config, TEXTS), folder / f"{kind}.json")
    return load_tokenizer(folder / f"{kind}.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.mark.parametrize("kind", ["characters", "symbols", "bpe", "unigram"])
def test_special_tokens_and_end(kind: str, folder: Path) -> None:
    tokenizer = made(kind, folder)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    ids = tokenizer.encode("the cat").ids
    assert ids[-1] == END_ID
    assert ids.count(END_ID) == 1
    assert min(ids[:-1]) > END_ID
    assert tokenizer.decode(ids) == "the cat"


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_are_pieces_with_bytes_below_them(kind: str, folder: Path) -> None:
    tokenizer = made(kind, folder)
    assert [tokenizer.token_to_id(token) for token in BYTE_TOKENS] == list(range(4, 260))
    assert tokenizer.get_vocab_size() <= 400
    assert len(tokenizer.encode("the cat walk").tokens) < len("the cat walk")
    assert tokenizer.encode("é").tokens[-3:] == ["<0xC3>", "<0xA9>", "</s>"]
    # A word is the same piece at the start and inside.
    ids = tokenizer.encode("the the").ids[:-1]
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "text",
    [
        "the cat",
        " leading",
        "   three spaces   in and after  ",
        "tabs\tand\nlines\r\n",
        "हिन्दी में नमस्ते",
        "👩‍👩‍👧‍👦 and 🇩🇪",
        "שלום עולם",
        "</s> <unk> <0x41>",
        "a\x00b",
        "﷽",
        " ",
    ],
)
def test_subwords_round_trip(kind: str, text: str, folder: Path) -> None:
    tokenizer = made(kind, folder, invisible="keep")
    ids = tokenizer.encode(text).ids
    assert UNKNOWN_ID not in ids
    assert ids.count(END_ID) == 1
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


# "▁" stands for the space inside the pieces and comes back as one; nothing else is lost.
text_of_any_kind = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), min_size=1)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("invisible", ["drop", "keep"])
def test_subwords_round_trip_any_text(kind: str, invisible: str, folder: Path) -> None:
    tokenizer = made(kind, folder, invisible=invisible)

    @settings(max_examples=200, deadline=None)
    @given(text_of_any_kind)
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids) == tokenizer.normalizer.normalize_str(text)[1:]

    check()


def test_characters_keep_every_character(folder: Path) -> None:
    tokenizer = made("characters", folder, invisible="keep")
    assert tokenizer.decode(tokenizer.encode("  the  cat ").ids) == "  the  cat "
    assert tokenizer.encode("thé").ids.count(UNKNOWN_ID) == 1


def test_text_that_spells_a_special_token_is_text(folder: Path) -> None:
    tokenizer = made("characters", folder)
    ids = tokenizer.encode("a</s>b").ids
    assert ids.count(END_ID) == 1
    assert len(ids) == len("a</s>b") + 1


def test_lowercase(folder: Path) -> None:
    tokenizer = made("bpe", folder, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("The CAT").ids) == "the cat"


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match=r"broken\.json: cannot be read as a tokenizer"):
        load_tokenizer(tmp_path / "broken.json")
