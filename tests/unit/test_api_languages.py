"""Languages of requests: the ids around those of a source, the forced first token, and what is refused."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import LanguageTokens, Text
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.imported_ids import ImportedSourceEncoder, ImportedTargetEncoder
from dragoman_server.messages.languages import Languages
from tests.support.fake_engines import letters_bundle

END, A, B = 3, 4, 5
DE, EN, FR = 20, 21, 22
LANGUAGES = {code: LanguageTokens(source=id_, target=id_) for code, id_ in (("de", DE), ("en", EN), ("fr", FR))}
NLLB = Text(before=["source_language"], after=[END], languages=LANGUAGES, source_language="en", forces_language=True)
MBART = NLLB.model_copy(update={"before": [], "after": [END, "source_language"], "target_language": "de"})
SOURCE_ONLY = {code: LanguageTokens(source=tokens.source) for code, tokens in LANGUAGES.items()}
MARIAN = Text(before=["target_language"], after=[END], languages=SOURCE_ONLY)
MADLAD = Text(after=[END], prefix="<2{target_language}> ", languages=SOURCE_ONLY, target_language="fr")
T5 = Text(after=[END])


def bundle(text: Text) -> Bundle:
    plain = letters_bundle()
    plain.source_tokenizer.post_processor = None
    return replace(plain, manifest=plain.manifest.model_copy(update={"text": text}))


def encoder(text: Text) -> ImportedSourceEncoder:
    return ImportedSourceEncoder(bundle(text), Languages(text), 12)


def encoded(rules: Text, fields: dict[str, Any]) -> list[int]:
    """Returns the ids of a source; alone and in a batch they are the same."""
    source = pb.Input(**fields)
    one = asyncio.run(encoder(rules).encode(source, "input"))
    assert asyncio.run(encoder(rules).encode_batch([source], ["input"])) == [one]
    return one


def refusal(rules: Text, fields: dict[str, Any]) -> str:
    source = pb.Input(**fields)

    def read() -> None:
        asyncio.run(encoder(rules).encode(source, "input"))
        Languages(rules).forced_first(source, "input")

    with pytest.raises(ApiError) as refused:
        read()
    return str(refused.value)


def ids(*values: int) -> pb.TokenIds:
    return pb.TokenIds(ids=values)


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        (NLLB, {"text": "ab", "source_language": "fr", "target_language": "de"}, [FR, A, B, END]),
        (NLLB, {"text": "ab", "target_language": "de"}, [EN, A, B, END]),
        (MBART, {"text": "ab"}, [A, B, END, EN]),
        (MBART, {"text": "ab", "source_language": "de"}, [A, B, END, DE]),
        (MARIAN, {"text": "ab", "target_language": "fr"}, [FR, A, B, END]),
        (MARIAN, {"text": ">>fr<< ab"}, [FR, A, B, END]),
        (MARIAN, {"text": ">>fr<< ab", "target_language": "fr"}, [FR, A, B, END]),
        (T5, {"text": "ab"}, [A, B, END]),
        (T5, {"token_ids": ids(A, B)}, [A, B, END]),
        (T5, {"token_ids": ids(A, B, END)}, [A, B, END]),
        (NLLB, {"token_ids": ids(DE, A, END), "target_language": "fr"}, [DE, A, END]),
        (MBART, {"token_ids": ids(A, END, DE)}, [A, END, DE]),
    ],
)
def test_sources_have_the_ids_of_their_languages(text: Text, fields: dict[str, Any], expected: list[int]) -> None:
    expected_letters = [id_ for id_ in expected if id_ in (A, B)]
    found = encoded(text, fields)
    unknown = bundle(text).manifest.tokens.unknown  # the blank after a language that the text names
    assert [id_ for id_ in found if id_ != unknown] == expected
    assert [id_ for id_ in found if id_ in (A, B)] == expected_letters


def test_a_prefix_names_the_language_once() -> None:
    source = pb.Input(text="ab")
    assert Languages(MADLAD).frame(source, "input").text == "<2fr> ab"
    source.target_language = "de"
    assert Languages(MADLAD).frame(source, "input").text == "<2de> ab"
    named = pb.Input(text="<2de> ab")
    assert Languages(MADLAD).frame(named, "input").text == "<2de> ab"
    other = pb.Input(text="<2xx> ab")  # no language of the model
    assert Languages(MADLAD).frame(other, "input").text == "<2fr> <2xx> ab"


@pytest.mark.parametrize(
    ("text", "fields", "token"),
    [
        (NLLB, {"text": "a", "target_language": "fr"}, FR),
        (MBART, {"text": "a"}, DE),
        (MBART, {"token_ids": ids(A, END, DE), "target_language": "en"}, EN),
        (MARIAN, {"text": "a", "target_language": "fr"}, None),
        (T5, {"text": "a"}, None),
    ],
)
def test_the_first_token_that_a_language_forces(text: Text, fields: dict[str, Any], token: int | None) -> None:
    assert Languages(text).forced_first(pb.Input(**fields), "input") == token


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        (
            NLLB,
            {"text": "a"},
            "input.target_language is missing: the model needs a target language, one of de, en, fr",
        ),
        (
            NLLB,
            {"text": "a", "target_language": "fra"},
            "input.target_language is 'fra', which is not a target language of the model; did you mean fr?",
        ),
        (
            NLLB,
            {"text": "a", "source_language": "xyz", "target_language": "de"},
            "input.source_language is 'xyz', which is not a source language of the model; it has one of de, en, fr",
        ),
        (MARIAN, {"text": ">>xx<< a"}, "input.target_language is missing: the model needs a target language"),
        (
            MARIAN,
            {"text": ">>fr<< a", "target_language": "de"},
            "input.target_language is 'de', but the text starts with '>>fr<<'",
        ),
        (
            MARIAN,
            {"text": "a", "source_language": "de", "target_language": "fr"},
            "input.source_language is set, but the model has no choice of source languages",
        ),
        (T5, {"text": "a", "target_language": "de"}, "is set, but the model has no choice of target languages"),
        (
            NLLB,
            {"token_ids": ids(DE, A, END), "source_language": "de", "target_language": "fr"},
            "input.source_language can't be combined with token_ids, which contain the language",
        ),
        (MARIAN, {"token_ids": ids(DE, A, END), "target_language": "de"}, "can't be combined with token_ids"),
        (T5, {"token_ids": ids()}, "input.token_ids.ids is empty"),
        (T5, {"token_ids": ids(A, 999)}, "input.token_ids.ids[1] is 999, but the source vocabulary has ids 0 to"),
        (T5, {"token_ids": ids(0)}, "input.token_ids.ids[0] is 0, the special token"),
        (T5, {"text": "a" * 12}, "input.text has 13 tokens, the end token included, but the model reads at most 12"),
        (NLLB, {"text": " ", "target_language": "de"}, "input.text is blank"),
    ],
)
def test_refusals(text: Text, fields: dict[str, Any], message: str) -> None:
    assert message in refusal(text, fields)


def test_an_item_of_a_batch_is_refused_alone() -> None:
    sources = [pb.Input(text="ab", target_language=code) for code in ("fr", "xx", "de")]
    fields = [f"inputs[{index}]" for index in range(3)]
    first, error, last = asyncio.run(encoder(MARIAN).encode_batch(sources, fields))
    assert (first, last) == ([FR, A, B, END], [DE, A, B, END])
    assert isinstance(error, ApiError)
    assert "inputs[1].target_language is 'xx'" in str(error)


def test_tokenizing_needs_no_language_that_is_not_in_the_source() -> None:
    """With NLLB, only the target has the target language. Field names of TokenizeRequest lack "input."."""
    found = asyncio.run(encoder(NLLB).tokenize("ab", pb.Input(text="ab", source_language="de")))
    assert found == [DE, A, B, END]
    with pytest.raises(ApiError, match=r"^target_language is missing"):
        asyncio.run(encoder(MARIAN).tokenize("ab", pb.Input(text="ab")))
    with pytest.raises(ApiError, match=r"^source_language is 'xx'"):
        asyncio.run(encoder(NLLB).tokenize("ab", pb.Input(text="ab", source_language="xx")))


def test_models_trained_here_have_no_languages() -> None:
    assert Languages(None).codes == {"source": frozenset(), "target": frozenset()}


def test_targets_may_contain_what_the_vocabulary_lacks() -> None:
    target = ImportedTargetEncoder(bundle(T5), 12)
    unknown = bundle(T5).manifest.tokens.unknown
    [found] = asyncio.run(target.encode([pb.Input(text="aあ")], ["targets[0]"]))
    assert found == (A, unknown)
    with pytest.raises(ApiError, match=r"targets\[0\].target_language is set, but only a source has languages"):
        asyncio.run(target.encode([pb.Input(text="a", target_language="de")], ["targets[0]"]))
