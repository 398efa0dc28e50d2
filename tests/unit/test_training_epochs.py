"""What changes between epochs: random segmentation and augmentation, always as a function of the seed."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dragoman_training.data.augmentation import Augmentation
from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.foreign_text import foreign_text, made_up_name, random_digits, random_number
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.segmentation import VARIANTS, RandomSegmentation, rare_characters
from dragoman_training.data.tokenizers import load_tokenizer, save_tokenizer, train_tokenizer
from dragoman_training.recipe import AugmentationConfig, NumberFormat, TokenizerConfig, load_recipe
from tests.support.training import TINY

TEXTS = ["Der Zug fährt um 14:30 Uhr ab.", "Das kostet 1.234,50 Euro.", "Der Zug kostet Geld, Tom!"] * 20


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    config = TokenizerConfig(kind="bpe", vocabulary=400, digits="split", punctuation="split")
    save_tokenizer(train_tokenizer(config, TEXTS), file)
    return load_tokenizer(file)


# Segmentation


@pytest.mark.parametrize("text", [*TEXTS[:3], "Der Bär 🐻 fährt nach Łódź.", "", "  Привет ", "</s><0x41>"])
def test_without_dropout_the_segmentation_is_the_tokenizers(tokenizer: Tokenizer, text: str) -> None:
    segmentation = RandomSegmentation(tokenizer, 0, 0, (), seed=1)
    words = segmentation.words(text)
    for variant in range(VARIANTS):
        assert segmentation.encode(words, [variant] * len(words)) == tokenizer.encode(text).ids


def test_bpe_dropout_keeps_the_text_and_varies_the_pieces(tokenizer: Tokenizer) -> None:
    segmentation = RandomSegmentation(tokenizer, 0.3, 0, (), seed=1)
    words = segmentation.words(TEXTS[0])
    drawn = [segmentation.encode(words, [variant] * len(words)) for variant in range(VARIANTS)]
    assert {tokenizer.decode(ids) for ids in drawn} == {TEXTS[0]}
    assert len({tuple(ids) for ids in drawn}) > 1
    assert max(map(len, drawn)) > len(tokenizer.encode(TEXTS[0]).ids)


def test_segmentations_depend_on_the_seed_and_the_word_alone(tokenizer: Tokenizer) -> None:
    def segmented(texts: list[str], seed: int) -> list[int]:
        segmentation = RandomSegmentation(tokenizer, 0.3, 0.5, "äö", seed)
        words = [segmentation.words(text) for text in texts][-1]
        return segmentation.encode(words, [3] * len(words))

    assert segmented(TEXTS[:1], 1) == segmented([TEXTS[1], TEXTS[0]], 1) != segmented(TEXTS[:1], 2)


def test_rare_characters_become_bytes(tokenizer: Tokenizer) -> None:
    segmentation = RandomSegmentation(tokenizer, 0, 0.9999, "ä", seed=1)
    words = segmentation.words("fährt")
    tokens = [tokenizer.id_to_token(token) for token in segmentation.encode(words, [0] * len(words))]
    assert "<0xC3>" in tokens
    assert "<0xA4>" in tokens
    assert tokenizer.decode(segmentation.encode(words, [0] * len(words))) == "fährt"


def test_rare_characters_are_outside_the_common_share(tokenizer: Tokenizer) -> None:
    text = " " + "e" * 9000 + "n" * 1000 + "é"
    assert rare_characters(Counter(tokenizer.normalizer.normalize_str(text.replace(" ", "en " * 1000)))) == "é"


def test_split_digits_and_punctuation(tokenizer: Tokenizer) -> None:
    pieces = [tokenizer.id_to_token(token) for token in tokenizer.encode("Der Zug um 14:30.").ids]
    assert pieces[-7:] == ["1", "4", ":", "3", "0", ".", "</s>"]


# Augmentation


def changed(config: AugmentationConfig, *pairs: tuple[str, str], seed: int = 1) -> list[tuple[str, str]]:
    return list(Augmentation(config).changes(pairs, np.random.default_rng(seed)).values())


def test_pairs_are_concatenated() -> None:
    pairs = [("a", "x"), ("b", "y")]
    for source, target in changed(AugmentationConfig(concatenated=1), *pairs):
        assert [dict(pairs)[word] for word in source.split()] == target.split()


def test_numbers_change_on_both_sides_alike() -> None:
    config = AugmentationConfig(numbers=1, number_format=NumberFormat(source="1.234,5", target="1,234.5"))
    swap = str.maketrans(",.", ".,")
    seen = set()
    for seed in range(50):
        ((source, target),) = changed(config, ("Es sind 30 Kilo.", "It is 30 kilos."), seed=seed)
        number = target.removeprefix("It is ").removesuffix(" kilos.")
        assert source == f"Es sind {number.translate(swap)} Kilo."
        seen.add(number)
    assert len(seen) > 40
    ((source, target),) = changed(config, ("Am 3.4. um 16:30 mit DE12 3456", "3.4. at 16:30 with DE12 3456"))
    shape = "".join("9" if c.isdigit() else c for c in source)
    assert shape == "Am 9.9. um 99:99 mit DE99 9999"
    assert target == source.replace("Am ", "").replace("um", "at").replace("mit", "with")


def test_a_number_of_one_side_stays() -> None:
    assert changed(AugmentationConfig(numbers=1), ("um 14 Uhr", "at 2 p.m.")) == []


def test_names_change_on_both_sides_alike() -> None:
    for seed in range(20):
        ((source, target),) = changed(
            AugmentationConfig(names=1), ("Gestern sah Tom mich an.", "Tom looked at me."), seed=seed
        )
        name = target.removesuffix(" looked at me.")
        assert name != "Tom"
        assert source == f"Gestern sah {name} mich an."
    # "was" is another word in each language.
    assert changed(AugmentationConfig(names=1), ("Weißt du, was das ist?", "Do you know what it was?")) == []


def test_inserts_leave_the_rest_as_it_was() -> None:
    texts = "Gestern sah Tom mich an.", "Yesterday Tom looked at me."
    for seed in range(60):
        ((source, target),) = changed(AugmentationConfig(inserts=1), texts, seed=seed)
        for text, plain in ((source, texts[0]), (target, texts[1])):
            assert len(text) > len(plain)
            rest = iter(text)
            assert all(character in rest for character in plain)  # a subsequence


def test_final_punctuation_and_case() -> None:
    assert changed(AugmentationConfig(unpunctuated=1), ("Ja!", "Yes.")) == [("Ja", "Yes")]
    assert changed(AugmentationConfig(unpunctuated=1), ("Ja!", "Yes"), ("...", "...")) == []
    assert changed(AugmentationConfig(uppercase=1), ("Ja, größer!", "Yes.")) == [("JA, GRÖSSER!", "YES.")]


def test_foreign_texts_are_visible_and_written_in_utf8() -> None:
    rng = np.random.default_rng(1)
    texts = [foreign_text(rng) for _ in range(2000)] + [made_up_name(rng) for _ in range(100)]
    assert all(text.strip() == text and text.encode().decode() == text for text in texts)
    assert len(set(texts)) > 1900
    assert {len(chr(ord(text[0])).encode()) for text in texts} == {1, 2, 3, 4}
    for part in ("\u200d", "🏽", "\ufe0f", "🇩"):  # joined people, a skin tone, a coloured form, half of a flag
        assert any(part in text for text in texts)


def test_random_numbers_agree_in_all_formats() -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        english, german, french = random_number(rng, "1,234.5", "1.234,5", "1 234,5")
        assert german == english.translate(str.maketrans(",.", ".,"))
        assert french == english.translate(str.maketrans(",.", " ,"))


def test_runs_of_a_digit_are_drawn_more_often_on_request() -> None:
    def share(repeated: float) -> float:
        rng = np.random.default_rng(1)
        drawn = [random_digits(rng, 11, repeated) for _ in range(2000)]
        assert all(len(digits) == 11 and digits.isdigit() for digits in drawn)
        return sum(a == b for digits in drawn for a, b in pairwise(digits)) / 20_000

    assert share(0) == pytest.approx(0.1, abs=0.01)
    assert share(1) == pytest.approx(0.55, abs=0.01)
    assert random_digits(np.random.default_rng(1), 0, 1) == ""


# Epochs


def prepared(run: Path, *overrides: str) -> TrainingData:
    run.mkdir(exist_ok=True)
    bpe = "tokenizers.source={kind: bpe, vocabulary: 400, bpe_dropout: 0.2, byte_dropout: 0.2}"
    return prepare(load_recipe(TINY, [bpe, *overrides]), run, lambda line: None)


def pairs_of(data: TrainingData, epoch: int) -> list[EncodedPair]:
    """All pairs of an epoch, which is one block."""
    pairs = data.epochs.block(epoch, 0)
    return [pairs[i] for i in range(len(pairs))]


def test_each_epoch_is_a_function_of_the_seed(tmp_path: Path) -> None:
    one, two = prepared(tmp_path / "one"), prepared(tmp_path / "two")
    assert pairs_of(one, 3) == pairs_of(two, 3)
    assert pairs_of(one, 3) != pairs_of(one, 4)
    for pair, plain in zip(pairs_of(one, 0), one.train, strict=True):
        assert one.tokenizers.source.decode(pair.source) == one.tokenizers.source.decode(plain.source)
        assert one.tokenizers.target.decode(pair.target) == one.tokenizers.target.decode(plain.target)


def test_bpe_dropout_may_leave_the_targets_alone(tmp_path: Path) -> None:
    joint = "tokenizers={joint: true, target_bpe_dropout: 0, source: {kind: bpe, vocabulary: 400, bpe_dropout: 0.3}}"
    data = prepared(tmp_path / "run", joint)
    drawn = pairs_of(data, 0)
    assert [pair.target for pair in drawn] == [pair.target for pair in data.train]
    assert [pair.source for pair in drawn] != [pair.source for pair in data.train]


def test_pairs_that_become_too_long_stay_as_they_were(tmp_path: Path) -> None:
    limits = "model.max_source_length=24", "model.max_target_length=60"
    data = prepared(tmp_path / "run", *limits, "augmentation.concatenated=1", "data.on_bad_line=skip")
    drawn = pairs_of(data, 0)
    assert all(len(pair.source) <= 24 and len(pair.target) <= 61 for pair in drawn)
    longer = sum(len(pair.source) > len(plain.source) + 2 for pair, plain in zip(drawn, data.train, strict=True))
    assert 0 < longer < len(drawn)


def test_without_changes_every_epoch_has_the_same_pairs(tmp_path: Path) -> None:
    data = prepared(tmp_path / "run", "tokenizers.source={kind: bpe, vocabulary: 400}")
    assert pairs_of(data, 7) == list(data.train)
