"""Text in pieces is the text of all tokens, and stop sequences are found in it wherever tokens begin and end."""

import json
import random
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import BYTE_TOKEN, REPLACEMENT, TargetDecoder, TextStream
from tests.support.target_tokenizers import ALPHABET, BYTE_TOKENS
from tests.support.target_tokenizers import TOKENIZERS as TARGET_TOKENIZERS

CORPUS = [
    "the cat sat on the mat, and the hat was flat. stop here, stop there, full stop!",
    "naïve café élève — déjà vu; 'tis the season's end.\n\nSecond paragraph: a b c.",
    "你好，世界。我们明天再见。停在这里。",
    "नमस्ते दुनिया। हम कल मिलेंगे। यहाँ रुको।",
    "emoji 😀 and family 👩‍👩‍👧 and flag 🇫🇷 and skin 👍🏽 end",
    "combining: e\u0301 o\u0308 n\u0303 a\u030a; שלום עולם; مرحبا بالعالم",
]


def byte_level() -> Tokenizer:
    """Returns byte-level BPE, where any token may be part of a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Returns BPE of frequent characters, with byte tokens for the others."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(
        CORPUS[:2] + CORPUS[3:4], trainers.BpeTrainer(vocab_size=160, limit_alphabet=60, show_progress=False)
    )
    vocabulary, merges = learner.get_vocab(), merges_of(learner)
    for token in ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [(one, other) for one, other in json.loads(tokenizer.to_str())["model"]["merges"]]


def unigram() -> Tokenizer:
    """Returns a unigram tokenizer, whose pieces may start with a space."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def characters() -> Tokenizer:
    alphabet = sorted(set("".join(CORPUS)))
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(["<unk>", *alphabet])}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


TOKENIZERS = {
    "byte-level BPE": byte_level(),
    "BPE with byte fallback": byte_fallback(),
    "unigram": unigram(),
    "characters": characters(),
}
KINDS = pytest.mark.parametrize("kind", TOKENIZERS)


def tracker(tokenizer: Tokenizer, *sequences: str, include: bool = False, prefix: tuple[int, ...] = ()) -> StopTracker:
    constraints = Constraints(stop_sequences=sequences, include_stop_sequence=include, prefix=prefix)
    return StopTracker(TargetDecoder(tokenizer), constraints)


def generate(tokenizer: Tokenizer, ids: list[int], stops: StopTracker) -> tuple[int, int | None]:
    """Returns the number of tokens until the stop, or of all, and of characters to keep."""
    for count, token in enumerate(ids, 1):
        if (cut := stops.push(token)) is not None:
            return count, cut
    return len(ids), stops.finish()


def first_match(text: str, sequences: Sequence[str], known: int = 0) -> tuple[int, int] | None:
    """Returns start and end of the match that counts if the text after `known` comes at once, by brute force."""
    for start in range(len(text)):
        ends = [start + len(sequence) for sequence in sequences if text.startswith(sequence, start)]
        if any(end > known for end in ends):
            return start, max(ends)
    return None


@KINDS
@pytest.mark.parametrize("text", CORPUS)
@pytest.mark.parametrize("include", [False, True])
def test_every_substring_stops_the_text_at_its_first_occurrence(kind: str, text: str, include: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    decoded = tokenizer.decode(ids)
    assert kind in ("unigram", "characters") or decoded == text
    for start in range(0, len(decoded), 3):
        for length in (1, 2, 5):
            sequence = decoded[start : start + length]
            match = first_match(decoded, [sequence])
            assert match is not None
            tokens, cut = generate(tokenizer, ids, tracker(tokenizer, sequence, include=include))
            assert cut == match[include]
            assert tokenizer.decode(ids[:tokens])[:cut] == decoded[:cut]
            # No later token was needed but one that ends a run of byte tokens.
            known = len(tokenizer.decode(ids[: tokens - 1]).rstrip(REPLACEMENT))
            assert known < match[1] or BYTE_TOKEN.fullmatch(tokenizer.id_to_token(ids[tokens - 2]) or "")


@KINDS
@settings(deadline=None)
@given(data=st.data())
def test_any_tokens_any_sequences(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=30))
    text = tokenizer.decode(ids)
    spans = st.tuples(st.integers(0, max(len(text) - 1, 0)), st.integers(1, 6))
    found = [text[start : start + length] for start, length in data.draw(st.lists(spans, max_size=3))]
    others = data.draw(st.lists(st.sampled_from(["the", "e", " ", "\u0301", "好", "😀", "ab", "\n\n"]), max_size=2))
    sequences = [sequence for sequence in [*found, *others] if sequence and REPLACEMENT not in sequence]
    decoder = TargetDecoder(tokenizer)
    stops, stream = tracker(tokenizer, *sequences), TextStream(decoder)
    known = ""
    for token in [*ids, None]:
        cut = stops.finish() if token is None else stops.push(token)
        piece = stream.finish() if token is None else stream.push([token])
        match = first_match(known + piece, sequences, len(known))
        assert cut == (None if match is None else match[0])
        if cut is not None:
            assert text[:cut] == known[:cut] + piece[: max(cut - len(known), 0)]
            break
        known += piece


ONE_TO_FOUR = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two, three": 2, "four": 3}, "<unk>"))
ONE_TO_FOUR.decoder = decoders.Fuse()
REPLACED = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["<unk>", *"abc"])}, "<unk>"))
REPLACED.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("ab+"), "x")])
XCX = [1, 2, 3, 1, 2, 2]
CHARACTERS, BYTES = TOKENIZERS["characters"], TOKENIZERS["byte-level BPE"]


@pytest.mark.parametrize(
    ("tokenizer", "text", "sequences", "include", "prefix", "tokens", "cut"),
    [
        (ONE_TO_FOUR, [1, 2, 3], [","], False, 0, 2, 6),  # inside a token
        (ONE_TO_FOUR, [1, 2, 3], [","], True, 0, 2, 7),
        (CHARACTERS, "ne\u0301e", ["\u0301"], False, 0, 3, 2),  # a combining mark is a character of its own
        (CHARACTERS, "ne\u0301e", ["é"], False, 0, 4, None),
        # A match must end behind the prefix, but may start in it.
        (CHARACTERS, "stop stop", ["stop"], False, 6, 9, 5),
        (CHARACTERS, "stop stop", ["stop s", "op sto"], False, 6, 8, 2),
        (CHARACTERS, "stop s", ["stop", "s"], False, 6, 6, None),
        (BYTES, "鿿", ["鿿"], False, 1, 3, 0),  # the prefix ends within a character
        (REPLACED, XCX, ["x"], False, 0, 6, 0),  # the text is certain only at the end
        (REPLACED, XCX, ["x"], False, 3, 6, 2),
    ],
)
def test_where_the_text_is_cut(
    tokenizer: Tokenizer,
    text: str | list[int],
    sequences: list[str],
    include: bool,
    prefix: int,
    tokens: int,
    cut: int | None,
) -> None:
    ids = tokenizer.encode(text).ids if isinstance(text, str) else text
    stops = tracker(tokenizer, *sequences, include=include, prefix=tuple(ids[:prefix]))
    assert generate(tokenizer, ids, stops) == (tokens, cut)


def test_a_match_may_span_tokens() -> None:
    tokenizer = TOKENIZERS["unigram"]
    ids = tokenizer.encode("the cat sat").ids
    assert len(ids) > 3
    tokens, cut = generate(tokenizer, ids, tracker(tokenizer, "e cat s"))
    assert cut == 2
    assert tokenizer.decode(ids[:tokens]).startswith("the cat s")
    assert tokens < len(ids) or not tokenizer.decode(ids[: tokens - 1]).startswith("the cat s")


@pytest.mark.parametrize(
    ("text", "sequences", "by_character", "at_once"),
    [
        ("abcd", ("b", "abc"), (1, 2), (0, 3)),  # complete first, although it starts later
        ("abcd", ("bc", "abc", "c"), (0, 3), (0, 3)),
        ("abcd", ("ab", "abc", "a"), (0, 1), (0, 3)),
        ("aaab", ("aab", "aa"), (0, 2), (0, 2)),
        ("ababac", ("abac",), (2, 6), (2, 6)),  # a false start
        ("xab", ("ab", "ab"), (1, 3), (1, 3)),
        ("abc", ("d", "bcd"), None, None),
    ],
)
@pytest.mark.parametrize("single_token", [False, True])
def test_which_of_several_sequences_counts(
    text: str,
    sequences: tuple[str, ...],
    by_character: tuple[int, int] | None,
    at_once: tuple[int, int] | None,
    single_token: bool,
) -> None:
    """The text is one token, or one token for each character."""
    match = at_once if single_token else by_character
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["<unk>", *"abcdx", text])}, "<unk>"))
    tokenizer.decoder = decoders.Fuse()
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[token] for token in ([text] if single_token else text)]
    for include in (False, True):
        tokens, cut = generate(tokenizer, ids, tracker(tokenizer, *sequences, include=include))
        assert cut == (None if match is None else match[include])
        assert tokens == (len(ids) if match is None or single_token else match[1])


@pytest.mark.parametrize("character", ["😀", "好", "न", "é", "\u0301"])
def test_a_character_of_several_tokens_counts_when_it_is_complete(character: str) -> None:
    tokenizer = TOKENIZERS["byte-level BPE"]
    alphabet = {tokenizer.decode([index]): index for index in range(256)}
    spelled = tokenizer.encode(character).ids
    stops = tracker(tokenizer, character)
    results = [stops.push(token) for token in [alphabet["x"], *spelled]]
    assert results == [*[None] * len(spelled), 1]


def test_byte_tokens_are_certain_when_another_token_or_the_end_follows() -> None:
    tokenizer = TOKENIZERS["BPE with byte fallback"]
    spelled = tokenizer.encode("😀").ids[-4:]
    assert [tokenizer.id_to_token(index) for index in spelled] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    stops = tracker(tokenizer, "😀", include=True)
    assert [stops.push(token) for token in spelled] == [None] * 4
    assert stops.finish() == 1
    assert stops.copy().push(tokenizer.get_vocab()["t"]) == 1
    # A fifth byte makes all of them invalid.
    assert stops.push(spelled[0]) is None
    assert stops.finish() is None


@KINDS
def test_copies_are_independent(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    one, other = tokenizer.encode("the cat sat on the mat").ids, tokenizer.encode("the cat sat and").ids
    shared = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    stops = tracker(tokenizer, "mat", "sat and")
    for token in one[:shared]:
        assert stops.push(token) is None
    copy = stops.copy()
    assert generate(tokenizer, one[shared:], stops)[1] == tokenizer.decode(one).index("mat")
    assert generate(tokenizer, other[shared:], copy)[1] == tokenizer.decode(other).index("sat and")


def test_copies_within_a_character_are_independent() -> None:
    tokenizer = TOKENIZERS["byte-level BPE"]
    one, other = tokenizer.encode("鿿").ids, tokenizer.encode("鿾").ids
    assert one[:-1] == other[:-1] != []
    stops = tracker(tokenizer, "鿿", "鿾")
    for token in one[:-1]:
        assert stops.push(token) is None
    copy = stops.copy()
    assert copy.push(tokenizer.encode("a").ids[0]) is None
    assert stops.push(one[-1]) == 0


@KINDS
def test_finish_changes_nothing(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    stops = tracker(tokenizer, "दुनिया")
    ids = tokenizer.encode("नमस्ते दुनिया।").ids
    expected = tokenizer.decode(ids).find("दुनिया")
    for token in ids:
        stops.finish()
        cut = stops.push(token)
        if cut is not None:
            break
    assert (cut if cut is not None else stops.finish()) == (expected if expected >= 0 else None)


@pytest.mark.parametrize("kind", TARGET_TOKENIZERS)
@settings(deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole_text(kind: str, data: st.DataObject) -> None:
    decoder = TargetDecoder(TARGET_TOKENIZERS[kind])
    size = TARGET_TOKENIZERS[kind].get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    stream = TextStream(decoder)
    pieces = [stream.push(ids[start:end]) for start, end in pairwise([0, *cuts, len(ids)])]
    assert "".join([*pieces, stream.finish()]) == decoder.decode(ids)


BYTE_IDS = {
    "BPE with byte fallback": [TARGET_TOKENIZERS["BPE with byte fallback"].get_vocab()[token] for token in BYTE_TOKENS],
    **{
        kind: [TARGET_TOKENIZERS[kind].get_vocab()[ALPHABET[byte]] for byte in range(256)]
        for kind in ("byte-level BPE", "bytes, only UTF-8")
    },
}


@pytest.mark.parametrize("kind", BYTE_IDS)
@settings(deadline=None)
@given(text=st.text(max_size=12))
def test_characters_of_several_tokens_are_held_back(kind: str, text: str) -> None:
    ids = [BYTE_IDS[kind][byte] for byte in text.encode()]
    stream = TextStream(TargetDecoder(TARGET_TOKENIZERS[kind]))
    pieces = [stream.push([index]) for index in ids]
    assert "".join(pieces).count(REPLACEMENT) <= text.count(REPLACEMENT)
    assert "".join([*pieces, stream.finish()]) == TARGET_TOKENIZERS[kind].decode(ids)


def test_text_is_sent_as_soon_as_it_is_certain() -> None:
    stops = TARGET_TOKENIZERS["unigram"]
    stream = TextStream(TargetDecoder(stops))
    ids = [stops.get_vocab()[token] for token in ("▁a", "b", "▁é", "▁▁", ".")]
    assert [stream.push([index]) for index in ids] == ["a", "b", " é", "  ", "."]
    assert stream.finish() == ""


@pytest.mark.parametrize("kind", TARGET_TOKENIZERS)
def test_long_texts_cost_no_more_per_token_than_short_ones(kind: str) -> None:
    decoder, size = TargetDecoder(TARGET_TOKENIZERS[kind]), TARGET_TOKENIZERS[kind].get_vocab_size()
    draw = random.Random(0)
    stream, ids = TextStream(decoder), [draw.randrange(size) for _ in range(20_000)]
    started = time.thread_time()
    pieces = [stream.push([index]) for index in ids]
    # Decoding everything again with every token would take minutes.
    assert time.thread_time() - started < 20
    assert "".join([*pieces, stream.finish()]) == decoder.decode(ids)
