"""Tokenizers and normalization: special tokens, round trips, invisible differences, and limits of training."""

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dragoman_training.data.normalization import build_normalizer, canonical
from dragoman_training.data.tokenizers import (
    BYTE_TOKENS,
    END_ID,
    MAX_PIECE_LENGTH,
    SPECIAL_TOKENS,
    UNKNOWN_ID,
    empty_tokenizer,
    load_tokenizer,
    save_tokenizer,
    train_tokenizer,
)
from dragoman_training.errors import DataError
from dragoman_training.recipe import TokenizerConfig

KINDS = ["characters", "symbols", "bpe", "unigram"]
SUBWORDS = ["bpe", "unigram"]
TEXTS = [f"the {a} {b} {b}ing, the {a}s {b}" for a in ("cat", "dog", "bird", "fish") for b in ("walk", "sleep", "sing")]
ACCENTS = [f"the {a} {b}s, café {b}ing \u00ab{a}\u00bb" for a in ("cat", "dog") for b in ("walk", "sleep", "sing")]
# Spellings of "the cat" that differ in what nobody sees.
SAME = {
    "trailing blank": "the cat ",
    "trailing line break": "the cat\r\n",
    "leading blanks": "  the cat",
    "two blanks": "the  cat",
    "tab": "the\tcat",
    "no-break space": "the\u00a0cat",
    "narrow no-break space": "the\u202fcat",
    "ideographic space": "the\u3000cat",
    "Hangul filler": "the\u3164cat",
    "soft hyphen": "the ca\u00adt",
    "zero-width space": "the\u200b cat\u200b",
    "word joiner": "th\u2060e cat",
    "byte order mark": "\ufeffthe cat",
    "direction marks": "\u202athe\u200e cat\u202c",
    "joiners between Latin letters": "th\u200de c\u200cat\u200d",
    "an invisible character in a blank": "the \u200b cat",
}


def config(kind: str, **options: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"kind": kind, "vocabulary": 400, **options})


def normalized(text: str, **options: object) -> str:
    return build_normalizer(config("characters", **options)).normalize_str(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def trained(kind: str, folder: Path, texts: list[str] = TEXTS, **options: object) -> Tokenizer:
    """Trains, saves and loads a tokenizer."""
    save_tokenizer(train_tokenizer(config(kind, **options), texts), folder / f"{kind}.json")
    return load_tokenizer(folder / f"{kind}.json")


# Tokens


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens(kind: str, folder: Path) -> None:
    tokenizer = trained(kind, folder)
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    ids = tokenizer.encode("the cat").ids
    assert ids[-1] == END_ID
    assert min(ids[:-1]) > END_ID
    assert tokenizer.decode(ids) == "the cat"


@pytest.mark.parametrize("kind", SUBWORDS)
def test_subwords_fall_back_to_bytes(kind: str, folder: Path) -> None:
    tokenizer = trained(kind, folder)
    assert [tokenizer.token_to_id(token) for token in BYTE_TOKENS] == list(range(4, 260))
    assert tokenizer.get_vocab_size() <= 400
    assert len(tokenizer.encode("the cat walk").tokens) < len("the cat walk")
    assert tokenizer.encode("é").tokens[-3:] == ["<0xC3>", "<0xA9>", "</s>"]
    # A word is the same piece at the start and inside.
    ids = tokenizer.encode("the the").ids[:-1]
    assert ids[: len(ids) // 2] == ids[len(ids) // 2 :]


@pytest.mark.parametrize("kind", SUBWORDS)
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
    tokenizer = trained(kind, folder, invisible="keep")
    ids = tokenizer.encode(text).ids
    assert UNKNOWN_ID not in ids
    assert ids.count(END_ID) == 1
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


# "▁" stands for the space inside pieces and comes back as one; nothing else is lost.
any_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), min_size=1)


@pytest.mark.parametrize("kind", SUBWORDS)
@pytest.mark.parametrize("invisible", ["drop", "keep"])
def test_subwords_round_trip_any_text(kind: str, invisible: str, folder: Path) -> None:
    tokenizer = trained(kind, folder, invisible=invisible)

    @settings(max_examples=200, deadline=None)
    @given(any_text)
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids) == tokenizer.normalizer.normalize_str(text)[1:]

    check()


def test_characters(folder: Path) -> None:
    tokenizer = trained("characters", folder, invisible="keep")
    assert tokenizer.decode(tokenizer.encode("  the  cat ").ids) == "  the  cat "
    assert tokenizer.encode("thé").ids.count(UNKNOWN_ID) == 1
    # A text that spells a special token is text.
    ids = tokenizer.encode("a</s>b").ids
    assert ids.count(END_ID) == 1
    assert len(ids) == len("a</s>b") + 1


def test_lowercase(folder: Path) -> None:
    tokenizer = trained("bpe", folder, lowercase=True)
    assert tokenizer.decode(tokenizer.encode("The CAT").ids) == "the cat"


# Normalization


@pytest.mark.parametrize("kind", KINDS)
def test_invisible_differences_change_no_ids(kind: str, folder: Path) -> None:
    tokenizer = trained(kind, folder, ACCENTS)
    ids = {name: tokenizer.encode(text).ids for name, text in SAME.items()}
    assert ids == dict.fromkeys(SAME, tokenizer.encode("the cat").ids)
    assert tokenizer.encode("cafe\u200b\u0301").ids == tokenizer.encode("caf\u00e9").ids
    for text in (" ", "\n", "\u00a0", "\u200b", "\u200d", "\ufeff \u3164"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == [], ascii(text)


def test_a_recipe_can_keep_invisible_differences() -> None:
    tokenizer = train_tokenizer(config("bpe", invisible="keep"), ACCENTS)
    distinct = {tuple(tokenizer.encode(text).ids) for text in ["the cat", *SAME.values()]}
    assert len(distinct) == 1 + len(SAME)
    assert normalized("e\u0301 \u200b\u00a0", invisible="keep") == "\u00e9 \u200b\u00a0", "NFC still applies"


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian: a prefix that does not join its verb
        "\u0647\u200d",  # Arabic: a letter in the form it has before others
        "\u0915\u094d\u200d\u0937",  # Devanagari: a half form instead of a ligature
        "\u0d28\u0d4d\u200d",  # Malayalam: a chillu as spelled before it had a code point
        "\U0001f469\u200d\U0001f680",  # one emoji of two
        "\u2764\ufe0f",  # an emoji; the bare heart is a text symbol
        "\u1820\u180e\u1820",  # Mongolian: a separated vowel
    ],
    ids=ascii,
)
def test_shaping_characters_are_kept(text: str) -> None:
    assert normalized(text) == unicodedata.normalize("NFC", text)
    assert normalized(f" {text}\u200b") == unicodedata.normalize("NFC", text)


def test_non_joiner_at_the_end_of_a_word_is_removed() -> None:
    assert normalized("\u062e\u0627\u0646\u0647\u200c \u0646\u0648\u200c") == "\u062e\u0627\u0646\u0647 \u0646\u0648"


odd_text = st.text(
    st.sampled_from("aZ\u0130\u212a\u0301\u0329\u1e9e \t\u00a0\u200b\u200c\u200d\u00ad\u0645\u094d\u2de1\u3164")
)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("invisible", ["drop", "keep"])
def test_normalization_is_idempotent(lowercase: bool, invisible: str) -> None:
    """Targets are normalized twice: before the model learns them and when answers are compared with them."""
    normalizer = build_normalizer(config("characters", lowercase=lowercase, invisible=invisible))

    @given(odd_text)
    def check(text: str) -> None:
        once = normalizer.normalize_str(text)
        assert normalizer.normalize_str(once) == once

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_canonical_form(kind: str) -> None:
    tokenizer = empty_tokenizer(config(kind, lowercase=True))
    for text in ("the caf\u00e9", " The  Cafe\u0301 ", "THE\u00a0CAF\u00c9"):
        assert canonical(tokenizer, text) == "the caf\u00e9"
    keeping = empty_tokenizer(config(kind, invisible="keep"))
    assert canonical(keeping, " The  cat") == ("The cat" if kind == "symbols" else " The  cat"), "symbols are words"


# Limits


@pytest.mark.parametrize("kind", SUBWORDS)
def test_pieces_have_a_maximum_length(kind: str) -> None:
    """The lower bound on a text's tokens counts on it."""
    texts = ["donaudampfschifffahrtsgesellschaftskapitän", "bundesverfassungsgerichtsentscheidung"] * 50
    vocabulary = train_tokenizer(TokenizerConfig.model_validate({"kind": kind}), texts).get_vocab()
    assert max(map(len, vocabulary)) <= MAX_PIECE_LENGTH


def test_training_survives_a_huge_word() -> None:
    """Runs in a process of its own: a stack overflow of `tokenizers` raises no exception."""
    code = (
        "import random; from dragoman_training.data.tokenizers import train_tokenizer\n"
        "from dragoman_training.recipe import *\n"
        "word = ''.join(chr(0x4e00 + random.randrange(3000)) for _ in range(100_000))\n"
        "train_tokenizer(TokenizerConfig(kind='unigram'), [word, 'a b c'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_errors_of_the_library_are_explained(tmp_path: Path) -> None:
    """`tokenizers` raises TypeError here: must be real number, not NoneType."""
    with pytest.raises(
        DataError, match=r"tokenizers\.target: no unigram tokenizer can be trained on the training data"
    ):
        train_tokenizer(TokenizerConfig(kind="unigram"), [""], "tokenizers.target")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(DataError, match=r"broken\.json: cannot be read as a tokenizer"):
        load_tokenizer(tmp_path / "broken.json")
