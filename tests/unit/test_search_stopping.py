"""Stop sequences are found in the text, wherever tokens begin and end."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from dragoman_server.core.search_options import Constraints
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import BYTE_TOKEN, REPLACEMENT, TargetDecoder, TextStream

CORPUS = [
    "the cat sat on the mat, and the hat was flat. stop here, stop there, full stop!",
    "naïve café élève — déjà vu; 'tis the season's end.\n\nSecond paragraph: a b c.",
    "你好，世界。我们明天再见。停在这里。",
    "नमस्ते दुनिया। हम कल मिलेंगे। यहाँ रुको।",
    "emoji 😀 and family 👩‍👩‍👧 and flag 🇫🇷 and skin 👍🏽 end",
    "combining: e\u0301 o\u0308 n\u0303 a\u030a; שלום עולם; مرحبا بالعالم",
]


def byte_level() -> Tokenizer:
    """Byte-level BPE: any token may hold a part of a character."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def byte_fallback() -> Tokenizer:
    """BPE of frequent characters; the others are spelled with byte tokens."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator(
        CORPUS[:2] + CORPUS[3:4], trainers.BpeTrainer(vocab_size=160, limit_alphabet=60, show_progress=False)
    )
    vocabulary, merges = learner.get_vocab(), merges_of(learner)
    for token in ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]:
        vocabulary.setdefault(token, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def merges_of(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [(one, other) for one, other in json.loads(tokenizer.to_str())["model"]["merges"]]


def unigram() -> Tokenizer:
    """Words are made of pieces that begin with a space, or not."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    return made


def characters() -> Tokenizer:
    alphabet = sorted(set("".join(CORPUS)))
    made = Tokenizer(models.WordLevel({token: index for index, token in enumerate(["<unk>", *alphabet])}, "<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


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


def generate(tokenizer: Tokenizer, ids: list[int], made: StopTracker) -> tuple[int, int | None]:
    """How many tokens are generated until the stop, or in all, and how many characters count."""
    for place, token in enumerate(ids):
        if (cut := made.push(token)) is not None:
            return place + 1, cut
    return len(ids), made.finish()


def first_match(text: str, sequences: Sequence[str], known: int = 0) -> tuple[int, int] | None:
    """Start and end of the match that counts where the text behind `known` comes all at once; by trying every place."""
    for start in range(len(text)):
        ends = [start + len(sequence) for sequence in sequences if text.startswith(sequence, start)]
        if any(end > known for end in ends):
            return start, max(ends)
    return None


@KINDS
@pytest.mark.parametrize("text", CORPUS)
@pytest.mark.parametrize("include", [False, True])
def test_every_substring_stops_the_text_where_it_first_stands(kind: str, text: str, include: bool) -> None:
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
            # No token was waited for, but the one that shows what byte tokens before it mean.
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
    made, stream = tracker(tokenizer, *sequences), TextStream(decoder)
    known = ""
    for token in [*ids, None]:
        cut = made.finish() if token is None else made.push(token)
        piece = stream.finish() if token is None else stream.push([token])
        match = first_match(known + piece, sequences, len(known))
        assert cut == (None if match is None else match[0])
        if cut is not None:
            assert text[:cut] == known[:cut] + piece[: max(cut - len(known), 0)]
            break
        known += piece


def test_a_match_across_the_borders_of_tokens() -> None:
    tokenizer = TOKENIZERS["unigram"]
    ids = tokenizer.encode("the cat sat").ids
    assert len(ids) > 3
    tokens, cut = generate(tokenizer, ids, tracker(tokenizer, "e cat s"))
    assert cut == 2
    assert tokenizer.decode(ids[:tokens]).startswith("the cat s")
    assert tokens < len(ids) or not tokenizer.decode(ids[: tokens - 1]).startswith("the cat s")


def test_a_cut_inside_a_token() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two, three": 2, "four": 3}, "<unk>"))
    tokenizer.decoder = decoders.Fuse()
    assert generate(tokenizer, [1, 2, 3], tracker(tokenizer, ",")) == (2, 6)
    assert generate(tokenizer, [1, 2, 3], tracker(tokenizer, ",", include=True)) == (2, 7)


@pytest.mark.parametrize(
    ("text", "sequences", "by_character", "at_once"),
    [
        ("abcd", ("b", "abc"), (1, 2), (0, 3)),  # complete first, although it begins later
        ("abcd", ("bc", "abc", "c"), (0, 3), (0, 3)),
        ("abcd", ("ab", "abc", "a"), (0, 1), (0, 3)),
        ("aaab", ("aab", "aa"), (0, 2), (0, 2)),
        ("ababac", ("abac",), (2, 6), (2, 6)),  # a false start
        ("xab", ("ab", "ab"), (1, 3), (1, 3)),
        ("abc", ("d", "bcd"), None, None),
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_which_of_overlapping_sequences_counts(
    text: str,
    sequences: tuple[str, ...],
    by_character: tuple[int, int] | None,
    at_once: tuple[int, int] | None,
    whole: bool,
) -> None:
    """The text comes as one token, or one for each character."""
    match = at_once if whole else by_character
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["<unk>", *"abcdx", text])}, "<unk>"))
    tokenizer.decoder = decoders.Fuse()
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[token] for token in ([text] if whole else text)]
    for include in (False, True):
        tokens, cut = generate(tokenizer, ids, tracker(tokenizer, *sequences, include=include))
        assert cut == (None if match is None else match[include])
        assert tokens == (len(ids) if match is None or whole else match[1])


@pytest.mark.parametrize("character", ["😀", "好", "न", "é", "\u0301"])
def test_a_character_of_several_byte_tokens_counts_when_it_is_whole(character: str) -> None:
    tokenizer = TOKENIZERS["byte-level BPE"]
    alphabet = {tokenizer.decode([index]): index for index in range(256)}
    spelled = tokenizer.encode(character).ids
    made = tracker(tokenizer, character)
    results = [made.push(token) for token in [alphabet["x"], *spelled]]
    assert results == [*[None] * len(spelled), 1]


def test_byte_tokens_are_certain_when_another_token_follows_or_none_does() -> None:
    tokenizer = TOKENIZERS["BPE with byte fallback"]
    spelled = tokenizer.encode("😀").ids[-4:]
    assert [tokenizer.id_to_token(index) for index in spelled] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    made = tracker(tokenizer, "😀", include=True)
    assert [made.push(token) for token in spelled] == [None] * 4
    assert made.finish() == 1
    assert made.copy().push(tokenizer.get_vocab()["t"]) == 1
    # A fifth byte makes all of them invalid.
    assert made.push(spelled[0]) is None
    assert made.finish() is None


def test_a_combining_mark_is_a_character_of_its_own() -> None:
    tokenizer = TOKENIZERS["characters"]
    ids = tokenizer.encode("ne\u0301e").ids
    assert generate(tokenizer, ids, tracker(tokenizer, "\u0301")) == (3, 2)
    assert generate(tokenizer, ids, tracker(tokenizer, "é")) == (4, None)


def test_text_that_ends_in_the_prefix_is_not_matched_but_what_begins_there_is() -> None:
    tokenizer = TOKENIZERS["characters"]
    prefix = tuple(tokenizer.encode("stop s").ids)
    ids = tokenizer.encode("stop stop").ids
    assert generate(tokenizer, ids, tracker(tokenizer, "stop", prefix=prefix)) == (9, 5)
    assert generate(tokenizer, ids, tracker(tokenizer, "stop s", "op sto", prefix=prefix)) == (8, 2)
    assert generate(tokenizer, ids[:6], tracker(tokenizer, "stop", "s", prefix=prefix)) == (6, None)


def test_a_character_that_the_prefix_begins_and_the_answer_completes_is_matched() -> None:
    tokenizer = TOKENIZERS["byte-level BPE"]
    ids = tokenizer.encode("鿿").ids
    assert len(ids) > 1
    assert generate(tokenizer, ids, tracker(tokenizer, "鿿", prefix=tuple(ids[:1]))) == (len(ids), 0)


def test_the_prefix_does_not_count_either_where_text_is_certain_at_the_end_only() -> None:
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["<unk>", *"abc"])}, "<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("ab+"), "x")])
    ids = [1, 2, 3, 1, 2, 2]  # "xcx"
    assert generate(tokenizer, ids, tracker(tokenizer, "x")) == (6, 0)
    assert generate(tokenizer, ids, tracker(tokenizer, "x", prefix=(1, 2, 3))) == (6, 2)


@KINDS
def test_copies_go_on_by_themselves(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    one, other = tokenizer.encode("the cat sat on the mat").ids, tokenizer.encode("the cat sat and").ids
    shared = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    made = tracker(tokenizer, "mat", "sat and")
    for token in one[:shared]:
        assert made.push(token) is None
    copy = made.copy()
    assert generate(tokenizer, one[shared:], made)[1] == tokenizer.decode(one).index("mat")
    assert generate(tokenizer, other[shared:], copy)[1] == tokenizer.decode(other).index("sat and")


def test_copies_in_the_middle_of_a_character_complete_it_in_different_ways() -> None:
    tokenizer = TOKENIZERS["byte-level BPE"]
    one, other = tokenizer.encode("鿿").ids, tokenizer.encode("鿾").ids
    assert one[:-1] == other[:-1] != []
    made = tracker(tokenizer, "鿿", "鿾")
    for token in one[:-1]:
        assert made.push(token) is None
    copy = made.copy()
    assert copy.push(tokenizer.encode("a").ids[0]) is None
    assert made.push(one[-1]) == 0


@KINDS
def test_finish_leaves_the_tracker_as_it_was(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    made = tracker(tokenizer, "दुनिया")
    ids = tokenizer.encode("नमस्ते दुनिया।").ids
    expected = tokenizer.decode(ids).find("दुनिया")
    for token in ids:
        made.finish()
        cut = made.push(token)
        if cut is not None:
            break
    assert (cut if cut is not None else made.finish()) == (expected if expected >= 0 else None)
