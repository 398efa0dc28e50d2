"""Differences nobody sees: what they are, that they change nothing, and that a recipe can keep them."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from dragoman_training.data.normalization import build_normalizer, canonical
from dragoman_training.data.tokenizers import empty_tokenizer, train_tokenizer
from dragoman_training.recipe import TokenizerConfig

KINDS = ["characters", "symbols", "bpe", "unigram"]
TEXTS = [f"the {a} {b}s, café {b}ing \u00ab{a}\u00bb" for a in ("cat", "dog") for b in ("walk", "sleep", "sing")]
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
    "marks of direction": "\u202athe\u200e cat\u202c",
    "joiners between letters of Latin": "th\u200de c\u200cat\u200d",
    "an invisible character in a blank": "the \u200b cat",
}


def config(kind: str, **options: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"kind": kind, "vocabulary": 400, **options})


def normalised(text: str, **options: object) -> str:
    return build_normalizer(config("characters", **options)).normalize_str(text)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(config(kind), TEXTS) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_differences_nobody_sees_change_no_ids(kind: str, trained: dict[str, Tokenizer]) -> None:
    tokenizer = Tokenizer.from_str(trained[kind].to_str())  # as a server reads it
    ids = {name: tokenizer.encode(text).ids for name, text in SAME.items()}
    assert ids == dict.fromkeys(SAME, tokenizer.encode("the cat").ids)
    assert tokenizer.encode("cafe\u200b\u0301").ids == tokenizer.encode("caf\u00e9").ids


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [" ", "\n", "\u00a0", "\u200b", "\u200d", "\ufeff \u3164"], ids=ascii)
def test_nothing_visible_has_no_tokens(kind: str, text: str, trained: dict[str, Tokenizer]) -> None:
    assert trained[kind].encode(text, add_special_tokens=False).ids == []


def test_a_recipe_can_keep_them() -> None:
    tokenizer = train_tokenizer(config("bpe", invisible="keep"), TEXTS)
    apart = {tuple(tokenizer.encode(text).ids) for text in ["the cat", *SAME.values()]}
    assert len(apart) == 1 + len(SAME)
    assert normalised("e\u0301 \u200b\u00a0", invisible="keep") == "\u00e9 \u200b\u00a0", "but for NFC"


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian: a prefix that does not join its verb
        "\u0647\u200d",  # Arabic: a letter in the form it has before others
        "\u0915\u094d\u200d\u0937",  # Devanagari: a half form in place of a ligature
        "\u0d28\u0d4d\u200d",  # Malayalam: a chillu, as it was spelled before it had a code point
        "\U0001f469\u200d\U0001f680",  # one emoji of two
        "\u2764\ufe0f",  # an emoji, where the bare heart is a text symbol
        "\u1820\u180e\u1820",  # Mongolian: a vowel set apart
    ],
    ids=ascii,
)
def test_what_shapes_letters_stays(text: str) -> None:
    assert normalised(text) == unicodedata.normalize("NFC", text)
    assert normalised(f" {text}\u200b") == unicodedata.normalize("NFC", text)


def test_a_non_joiner_that_ends_a_word_goes() -> None:
    assert normalised("\u062e\u0627\u0646\u0647\u200c \u0646\u0648\u200c") == "\u062e\u0627\u0646\u0647 \u0646\u0648"


odd = st.text(
    st.sampled_from("aZ\u0130\u212a\u0301\u0329\u1e9e \t\u00a0\u200b\u200c\u200d\u00ad\u0645\u094d\u2de1\u3164")
)


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("invisible", ["drop", "keep"])
def test_once_is_enough(lowercase: bool, invisible: str) -> None:
    """Answers are normalised twice, before a model learns to write them and when they are compared."""
    normalizer = build_normalizer(config("characters", lowercase=lowercase, invisible=invisible))

    @given(odd)
    def check(text: str) -> None:
        once = normalizer.normalize_str(text)
        assert normalizer.normalize_str(once) == once

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_texts_compare_as_the_tokenizer_reads_them(kind: str) -> None:
    tokenizer = empty_tokenizer(config(kind, lowercase=True))
    for text in ("the caf\u00e9", " The  Cafe\u0301 ", "THE\u00a0CAF\u00c9"):
        assert canonical(tokenizer, text) == "the caf\u00e9"
    kept = empty_tokenizer(config(kind, invisible="keep"))
    assert canonical(kept, " The  cat") == ("The cat" if kind == "symbols" else " The  cat"), "symbols are words"
