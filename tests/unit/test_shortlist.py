"""Lexical shortlists: the file, the alignment that finds likely tokens, and the tokens that a step computes."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dragoman_export.bundle.options import ExportOptions
from dragoman_export.errors import ExportError
from dragoman_export.original import Original
from dragoman_export.shortlist.alignment import affordable_pairs, translations
from dragoman_export.shortlist.lists import Statistics, make_shortlist
from dragoman_export.shortlist.pairs import ShortlistPairs, shortlist_pairs
from dragoman_server.bundle.load import BundleError, load_bundle
from dragoman_server.bundle.shortlist import Shortlist, ShortlistError, read_shortlist
from dragoman_server.core.token_list import TokenList
from dragoman_server.runtime.shortlists import COLUMNS, ListedRows, ListedTokens, Shortlists
from dragoman_server.workers.remote import SentLists
from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.pairs import Pair
from tests.support.bundles import SHIPPED_G2P, altered_copy, edit_manifest

SOURCES, TARGETS = 5, 9
COMMON = [0, 3]
LISTS: list[list[int]] = [[], [4, 5], [5, 6, 8], [], [1]]


def shortlist() -> Shortlist:
    starts = np.cumsum([0, *map(len, LISTS)])
    return Shortlist(np.array(COMMON), starts, np.array([token for each in LISTS for token in each]), TARGETS)


def test_candidates_are_the_common_tokens_and_those_of_each_source_token() -> None:
    assert list(shortlist().candidates([2, 1, 2])) == [0, 3, 4, 5, 6, 8]
    assert list(shortlist().candidates([4], more=(7, 3))) == [0, 1, 3, 7]
    assert list(shortlist().candidates([0, 3, -1, SOURCES])) == COMMON


@pytest.mark.parametrize("targets", [TARGETS, 70_000])
def test_the_file_keeps_every_list(tmp_path: Path, targets: int) -> None:
    written = shortlist()
    written.target_vocabulary = targets
    (tmp_path / "list").write_bytes(written.to_bytes())
    read = read_shortlist(tmp_path / "list", SOURCES, targets)
    assert read.lists.dtype == (np.uint16 if targets < 1 << 16 else np.uint32)
    for token in range(SOURCES):
        assert list(read.candidates([token])) == sorted({*COMMON, *LISTS[token]})


def changed(place: int, value: int) -> bytes:
    content = bytearray(shortlist().to_bytes())
    content[place] = value
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a shortlist"),
        (b"x" * 200, "is not a shortlist"),
        (shortlist().to_bytes()[:-1], "has 67 bytes, but its lists need 68: truncated or changed"),
        (changed(8, 6), "is for 6 source and 9 target tokens, but the manifest says 5 and 9"),
        (changed(24, 200), "lists an id that is not one of the 9 target tokens"),
        (changed(-2, 9), "lists an id that is not one of the 9 target tokens"),
        (changed(36, 7), "has lists that do not follow each other"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(ShortlistError, match=f"^{problem}$"):
        read_shortlist(tmp_path / "list", SOURCES, TARGETS)


@pytest.mark.parametrize(
    ("common", "cut", "problem"),
    [
        ([3], 1, "truncated or changed"),
        ([4], 0, "lacks the end token 3, which every source needs"),
    ],
)
def test_a_bundle_with_a_damaged_shortlist_is_refused_by_name(
    tmp_path: Path, common: list[int], cut: int, problem: str
) -> None:
    """Even if the checksum was made after the damage."""
    shape = load_bundle(SHIPPED_G2P).manifest.shape
    size, targets = shape.source_vocabulary, shape.target_vocabulary
    content = Shortlist(np.array(common), np.zeros(size + 1, np.int64), np.zeros(0, np.int64), targets).to_bytes()

    def damage(folder: Path) -> None:
        (folder / "shortlist.bin").write_bytes(content[: len(content) - cut])
        described = {"file": "shortlist.bin", "default": True, "tokens": 1.0}
        entry = {"shortlist.bin": {"sha256": "0" * 64, "bytes": 0}}
        edit_manifest(lambda d: (d.update(shortlist=described, format_version=5), d["files"].update(entry)))(folder)

    folder = altered_copy(SHIPPED_G2P, tmp_path / "bundle", damage)
    with pytest.raises(BundleError) as refused:
        load_bundle(folder)
    assert str(refused.value).startswith(f"{folder / 'shortlist.bin'} ")
    assert problem in str(refused.value)


def test_alignment_finds_the_translation_of_each_token_whatever_the_order() -> None:
    draw = np.random.default_rng(0)
    words = 30
    pairs = []
    for _ in range(300):
        source = draw.permutation(words)[:6]
        target = [*(source + 100), 150]  # a word that translates nothing
        draw.shuffle(target)
        pairs.append(EncodedPair(source.tolist(), [int(token) for token in target]))
    found = translations([*pairs, EncodedPair([], [5]), EncodedPair([5], [])], words, 200)
    for token in range(words):
        own = found.sources == token
        assert found.targets[own][found.probabilities[own].argmax()] == token + 100
        assert found.probabilities[own].sum() == pytest.approx(1, abs=1e-3)


def test_large_corpora_are_sampled_evenly() -> None:
    pairs = [EncodedPair([1] * 9, [place] * 10) for place in range(100)]
    kept = affordable_pairs(pairs, 2500)
    assert [pair.target[0] for pair in kept] == list(range(0, 100, 4))
    assert affordable_pairs(pairs, 10_000) == pairs


def test_a_shortlist_has_the_end_token_copies_and_likely_translations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_export.shortlist.lists.COMMON", 2)
    bundle = load_bundle(SHIPPED_G2P)
    source, target = bundle.source_tokenizer.get_vocab().__getitem__, bundle.target_tokenizer.get_vocab().__getitem__
    phones = {"b": "B", "d": "D", "k": "K", "m": "M", "a": "AE", "o": "AA"}
    texts = [first + middle + last for first in "bdkm" for middle in "ao" for last in "bdkm"]
    pairs = [Pair(text, " ".join(phones[letter] for letter in text), Path(), 0) for text in texts]
    made = make_shortlist(bundle, Statistics(bundle, pairs), 1)
    common = set(made.common.tolist())
    assert bundle.manifest.tokens.end in common
    assert common - {bundle.manifest.tokens.end} == {target("AE"), target("AA")}
    for letter in "bdkm":
        assert list(made.candidates([source(letter)])) == sorted({*common, target(phones[letter])})


def test_tokens_in_use_keep_their_places_and_few_are_computed() -> None:
    """Whatever joins and leaves, each row's columns lead to its own tokens."""
    vocabulary, draw = 600, np.random.default_rng(3)
    shortlists = Shortlists(vocabulary, threads=1)
    rows = ListedRows(shortlists, 4)
    running: list[Sequence[int]] = []
    before: dict[int, ListedTokens] = {}
    moved = 0
    for turn in range(300):
        crowd = 12 if turn % 100 < 50 else 2
        while len(running) > crowd or (running and draw.random() < 0.3):
            running.pop(int(draw.integers(len(running))))
        while len(running) < crowd:
            ids = np.unique(draw.integers(0, vocabulary, int(draw.integers(1, 90))))
            running.append(TokenList(ids) if turn % 2 else tuple(ids.tolist()))
        rows.use(running, len(running) + 1)
        listed = {id(each): shortlists[each] for each in running}
        moved += sum(before[key] is not listed[key] for key in before.keys() & listed.keys())
        before = listed  # keeps the lists alive, and so their id()
        assert shortlists.distinct == len(set().union(*running))
        for row, allowed in enumerate(running):
            count = len(allowed)
            assert rows.ids[row, :count].tolist() == list(allowed)
            assert shortlists.tokens[rows.columns[row, :count]].tolist() == list(allowed)
            assert not rows.mask[row, :count].any()
            assert np.isneginf(rows.mask[row, count:]).all()
        assert np.isneginf(rows.mask[len(running)]).all()
        assert rows.mask.shape[1] == shortlists.width > max(map(len, running))
        assert len(shortlists.tokens) % COLUMNS == 0
        assert len(shortlists.tokens) < 2 * shortlists.distinct + COLUMNS
    assert moved, "places never got sparse"
    rows.use([], 1)
    assert shortlists.distinct == shortlists.width == len(shortlists.tokens) == 0


def test_a_worker_is_sent_each_list_once_and_again_after_it_was_dropped() -> None:
    sent = SentLists()
    first, second, third = (TokenList(np.array([token])) for token in range(3))
    assert sent.numbers([first, second, first]) == ([0, 1, 0], {0: first, 1: second})
    assert sent.numbers([second, third]) == ([1, 2], {2: third})
    assert sent.numbers([first, third]) == ([3, 2], {3: first})


def test_pairs_of_a_file_are_split_and_faults_are_told(tmp_path: Path) -> None:
    def pairs_of(text: str, *, shortlist: bool = True) -> ShortlistPairs | None:
        (tmp_path / "pairs.tsv").write_text(text)
        options = ExportOptions("x", shortlist=shortlist, shortlist_from=tmp_path / "pairs.tsv")
        return shortlist_pairs(cast(Original, None), options, 100, print)

    found = pairs_of("".join(f"s{number // 2}\tt{number}\n" for number in range(100)))
    assert found is not None
    assert len(found.held_out) == 20, "a tenth, with the other pairs of the same sources"
    assert len(found.aligned) == 80
    assert not {pair.source for pair in found.held_out} & {pair.source for pair in found.aligned}
    assert pairs_of("a\tb\n", shortlist=False) is None
    with pytest.raises(ExportError, match=r"pairs\.tsv: has no pair; expected source<TAB>target in each line$"):
        pairs_of("a b\n")
    missing = ExportOptions("x", shortlist_from=tmp_path / "missing")
    with pytest.raises(ExportError, match=r"^--shortlist-from: .*missing: no such data file"):
        shortlist_pairs(cast(Original, None), missing, 100, print)
