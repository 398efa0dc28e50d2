"""Text that a model can't read skips it, and comes back where its neighbors have gone."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer

from dragoman_server.bundle.load import load_bundle
from dragoman_server.core.requests import CarriedText, FinishReason, HypothesisResult, Piece
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.messages.carried_text import TextCarrier
from dragoman_server.messages.put_back import Placement
from dragoman_server.models.repository import SHIPPED_MODELS

MODEL = SHIPPED_MODELS / "de-en" / "1"
MOST = 200_000  # characters


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """That of the shipped translator, for both sides; Latin letters but no @, for example."""
    return load_bundle(MODEL).source_tokenizer


@pytest.mark.parametrize(
    ("text", "left", "pieces"),
    [
        ("Ich mag 😀 Katzen.", "Ich mag Katzen.", ["😀"]),
        ("Danke!😀", "Danke!", ["😀"]),
        ("😀  Hallo", "Hallo", ["😀"]),
        ("Ich mag💖dich", "Ich mag dich", ["💖"]),
        ("Ich mag 👨‍👩‍👧 1️⃣, ja!", "Ich mag, ja!", ["👨‍👩‍👧 1️⃣"]),
        ("Ich mag 👍🏽 und ❤️.", "Ich mag und.", ["👍🏽", "❤️"]),
        ("Ich wohne in Łódź.", "Ich wohne in.", ["Łódź"]),
        ("Die Łódź-Reise endet.", "Die endet.", ["Łódź-Reise"]),
        ("Ich war in (東京) und „Αθήνα“.", "Ich war in und.", ["(東京)", "„Αθήνα“"]),
        ("Er sagte: 東京 大阪, glaube ich", "Er sagte: glaube ich", ["東京 大阪,"]),
        ("Сергей, wie geht es dir?", "wie geht es dir?", ["Сергей,"]),
        ("Berlin, Москва, Rom.", "Berlin, Rom.", ["Москва,"]),
        ("Wir sagen ja. Да! Nein.", "Wir sagen ja. Nein.", ["Да!"]),
        ("Kauf Brot, und Käse, 🧀!", "Kauf Brot, und Käse!", [", 🧀"]),
        ("Ich mag „寿司“und Bier.", "Ich mag und Bier.", ["„寿司“"]),
        ("Er sagte „Привет мир“ und ging.", "Er sagte und ging.", ["„Привет мир“"]),
        ("Das ist toll („Москва, Киев“)!", "Das ist toll!", ["(„Москва, Киев“)"]),
        ("Das ist gut (😀 😀).", "Das ist gut.", ["(😀 😀)"]),
        ("Guten Morgen!😀Wie geht es?", "Guten Morgen! Wie geht es?", ["😀"]),
        ("Er sagte: „😀 Nein“", "Er sagte: „Nein“", ["😀"]),
        ("Das kostet 5^2 Euro.", "Das kostet Euro.", ["5^2"]),
        ("Schreib an max@firma.de, bitte", "Schreib an, bitte", ["max@firma.de"]),
        ("@max schrieb #Thema", "schrieb", ["@max", "#Thema"]),
        ("Ich mag x😀я sehr", "Ich mag sehr", ["x😀я"]),
        ("Ein\nBrief 🎉", "Ein Brief", ["🎉"]),
        ("a\u0308rgerlich 😀", "ärgerlich", ["😀"]),  # typed as a letter and its accent
    ],
)
def test_what_cannot_be_read_is_taken_out(tokenizer: Tokenizer, text: str, left: str, pieces: list[str]) -> None:
    carried = TextCarrier(tokenizer, MOST).take(text)
    assert carried is not None
    assert (carried.left, [piece.text for piece in carried.pieces]) == (left, pieces)
    assert TextCarrier(tokenizer, MOST).take(carried.left) is None, "all of it can be read"


@pytest.mark.parametrize(
    "text", ["Ich mag Katzen.", "a\u0308", "*wichtig*", "`ls` und", "x = y", "=" * 9, "Na ja…aber nein…"]
)
def test_texts_that_stay_whole(tokenizer: Tokenizer, text: str) -> None:
    """The model can read them, or has to guess what a mark means."""
    assert TextCarrier(tokenizer, MOST).take(text) is None


def test_texts_that_are_too_long_are_left_alone(tokenizer: Tokenizer) -> None:
    assert TextCarrier(tokenizer, 8).take("Hallo 😀 !") is None
    assert TextCarrier(tokenizer, 8).take("Hallo 😀!") is not None


@pytest.mark.parametrize("text", ["Привет, мир", "😀", "tom@x.de", "„東京“, 🎉!"])
def test_texts_of_which_no_word_is_left_come_back_whole(tokenizer: Tokenizer, text: str) -> None:
    assert placed(tokenizer, text, "Something else.", None) == text


@pytest.mark.parametrize("text", ["😀" * 50_000 + " a", "東" * 50_000 + " a", "a=" * 50_000 + " b", "a= " * 30_000])
@pytest.mark.timeout(20)
def test_long_texts_take_no_longer_than_they_are(tokenizer: Tokenizer, text: str) -> None:
    TextCarrier(tokenizer, MOST).take(text)


def placed(tokenizer: Tokenizer, source: str, target: str, alignment: Sequence[int] | None) -> str:
    carried = TextCarrier(tokenizer, MOST).take(source)
    assert carried is not None
    assert Placement.needs_alignment(carried) == (alignment is not None)
    ids = tokenizer.encode(target, add_special_tokens=False).ids
    return put_back(tokenizer, target, hypothesis(ids), carried, alignment)


def hypothesis(ids: list[int], prefix: int = 0) -> HypothesisResult:
    return HypothesisResult(ids, [], FinishReason.EOS, prefix=prefix)


def put_back(
    tokenizer: Tokenizer,
    text: str,
    found: HypothesisResult,
    carried: CarriedText,
    alignment: Sequence[int] | None,
) -> str:
    placement = Placement(lambda part: tokenizer.encode(part, add_special_tokens=False).ids, TargetDecoder(tokenizer))
    boundaries = placement.boundaries(carried, tokenizer.encode(carried.left).ids)
    return placement.put_back(text, found, carried, boundaries, alignment)


def aligned(tokenizer: Tokenizer, source: str, target: str, words: dict[str, str]) -> list[int]:
    """The source position of each target token, given the source word of each target word."""

    def spans(text: str) -> list[tuple[int, int]]:
        return tokenizer.encode(text, add_special_tokens=False).offsets

    def middle(span: tuple[int, int]) -> float:
        return (span[0] + span[1]) / 2

    def within(span: tuple[int, int], text: str, word: str) -> bool:
        start = text.index(word)
        return start - 1 <= span[0] and span[1] <= start + len(word)

    positions = []
    for span in spans(target):
        word = next(word for word in words if within(span, target, word))
        inside = [i for i, each in enumerate(spans(source)) if within(each, source, words[word])]
        positions.append(min(inside, key=lambda i: middle(spans(source)[i])))
    return positions


def test_pieces_follow_their_neighbors(tokenizer: Tokenizer) -> None:
    left, target = "Gestern mag ich Katzen.", "I like cats yesterday."
    words = {"I": "ich", "like": "mag", "cats": "Katzen", "yesterday": "Gestern", ".": "."}
    alignment = aligned(tokenizer, left, target, words)
    assert placed(tokenizer, "Gestern mag ich Katzen 😀.", target, alignment) == "I like cats yesterday 😀."
    in_order = "Ich mag Katzen, Tom.", "I like cats, Tom."
    words = {"I": "Ich", "like": "mag", "cats": "Katzen", ",": ",", "Tom": "Tom", ".": "."}
    alignment = aligned(tokenizer, *in_order, words)
    for source, expected in {
        "Ich 😀 mag Katzen, Tom.": "I 😀 like cats, Tom.",
        "Ich mag 😀 Katzen, Tom.": "I like 😀 cats, Tom.",
        "Ich mag Katzen 😀, Tom.": "I like cats 😀, Tom.",
        "Ich mag Katzen, 😀 Tom.": "I like cats, 😀 Tom.",
        "Ich mag Katzen, Tom 😀.": "I like cats, Tom 😀.",
        "Ich 🚀 mag 😀 Katzen, Tom.": "I 🚀 like 😀 cats, Tom.",
        "Ich mag Katzen😀, Tom.": "I like cats😀, Tom.",
    }.items():
        assert placed(tokenizer, source, in_order[1], alignment) == expected


def test_ends_need_no_alignment(tokenizer: Tokenizer) -> None:
    assert placed(tokenizer, "😀 Danke!🎉", "Thank you.", None) == "😀 Thank you.🎉"
    assert placed(tokenizer, "😀 Danke 🎉", '"Thank you"', None) == '😀 "Thank you" 🎉'
    assert placed(tokenizer, "😀 Danke", "", None) == "😀"
    assert placed(tokenizer, "Сергей, danke", "Thank you.", None) == "Сергей, Thank you."


def test_words_are_set_off(tokenizer: Tokenizer) -> None:
    """Also where the source had a bracket, or nothing, between them."""
    ids = tokenizer.encode("I am here", add_special_tokens=False).ids
    for piece, expected in (("東京", "I am 東京 here"), ("😀", "I am😀 here")):
        carried = CarriedText("Ich bin da", (Piece(piece, 8, False, False),))
        assert put_back(tokenizer, "I am here", hypothesis(ids), carried, [0, 1, 2]) == expected


def test_a_prefix_stays_as_it_is(tokenizer: Tokenizer) -> None:
    text, carried = "It's nice", CarriedText("Schön", (Piece("😀", 0, True, True), Piece("🎉", 5, True, True)))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    fixed = len(tokenizer.encode("It's", add_special_tokens=False).ids)
    found = put_back(tokenizer, text, hypothesis(ids, fixed), carried, None)
    assert found == "It's 😀 nice 🎉"
    ids = tokenizer.encode("🎉 nice", add_special_tokens=False).ids
    fixed = len(tokenizer.encode("🎉", add_special_tokens=False).ids)
    found = put_back(tokenizer, "🎉 nice", hypothesis(ids, fixed), carried, None)
    assert found == "🎉 😀 nice", "it has one piece already"


def test_words_are_not_split(tokenizer: Tokenizer) -> None:
    """Whatever the alignment says."""
    target, carried = "I don't like 3.5 C++ of them", CarriedText("Ich mag", (Piece("😀", 3, True, True),))
    ids = tokenizer.encode(target, add_special_tokens=False).ids
    for boundary in range(len(ids) + 1):
        alignment = [0] * boundary + [2] * (len(ids) - boundary)
        text = put_back(tokenizer, target, hypothesis(ids), carried, alignment)
        assert text.replace(" 😀", "") == target
        assert set(target.split()) < set(text.split())


def test_pieces_at_one_place_keep_their_order(tokenizer: Tokenizer) -> None:
    carried = CarriedText("Ich mag Tom", (Piece("🚀", 3, True, True), Piece("🎉", 7, True, True)))
    ids = tokenizer.encode("Tom", add_special_tokens=False).ids
    assert put_back(tokenizer, "Tom", hypothesis(ids), carried, [0] * len(ids)) == "Tom 🚀 🎉"
