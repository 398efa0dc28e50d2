"""From a recipe to what the trainer needs: split, tokenizers, token ids."""

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.corpus import BadLines, read_pairs
from dragoman_training.data.encode import Tokenizers, drop_overlong, encode_pairs, train_tokenizers
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair, distinct_sources, write_pairs
from dragoman_training.data.tokenizers import SPECIAL_TOKENS, empty_tokenizer, load_tokenizer, save_tokenizer
from dragoman_training.errors import DataError
from dragoman_training.files import read_json, write_text
from dragoman_training.recipe import Recipe

SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"
DATA_FILE, DEV_FILE, LONGEST_FILE, BAD_LINES_FILE = "data.json", "dev.tsv", "longest.tsv", "bad_lines.txt"
KEPT_LONGEST = 64  # training pairs that an export gets to see: numbers grow with length, and dev may be shorter
MOST_MESSAGES = 10  # of bad lines, on the terminal


@dataclass(frozen=True)
class Splits:
    """The corpus as texts.

    No source of dev or test stands in train, in whatever spelling, unless the recipe keeps such pairs; what was drawn
    out of train for dev never does.

    Attributes:
        overlap: how many distinct sources of train stood in a set of its own files, "dev" or "test", too.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    overlap: dict[str, int]


@dataclass(frozen=True)
class TrainingData:
    """Tokenizers, the training pairs as ids, and dev and test as ids and as texts."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: list[EncodedPair]
    dev: list[EncodedPair]
    dev_pairs: list[Pair]
    test_pairs: list[Pair]


def read_splits(recipe: Recipe, bad: BadLines) -> Splits:
    """Reads the recipe's files, and holds out dev: a draw of sources distinct to the model, which the seed determines.

    Raises:
        DataError: a file cannot be read, a line is refused, or no pair is left.
    """
    data = recipe.data
    train, dev, test = (_read(recipe, name, bad) for name in ("train", "dev", "test"))
    reader = empty_tokenizer(recipe.tokenizers.source)
    keyed = [(canonical(reader, pair.source), pair) for pair in train]
    known = {key for key, _ in keyed}
    overlap: dict[str, int] = {}
    for name, pairs in (("dev", dev), ("test", test)):
        there = distinct_sources(pairs, reader).keys() & known
        overlap[name] = len(there)
        if data.overlap == "drop":
            keyed = [(key, pair) for key, pair in keyed if key not in there]
    if data.dev_held_out_sources:
        held = _drawn(keyed, data.dev_held_out_sources, recipe.seed, bad)
        dev = [pair for key, pair in keyed if key in held]
        keyed = [(key, pair) for key, pair in keyed if key not in held]
    if not keyed:
        raise DataError(
            "data.train: no pair is left to train on: every source stands in dev or test too; "
            "data.overlap: keep trains on them all the same"
        )
    return Splits([pair for _, pair in keyed], dev, test, overlap)


def _read(recipe: Recipe, name: Literal["train", "dev", "test"], bad: BadLines) -> list[Pair]:
    """The sound pairs of a set that are not too long in any case; none where the recipe has no such set."""
    files = getattr(recipe.data, name)
    since = len(bad.found)
    pairs = drop_overlong(recipe, read_pairs(files or [], bad), bad)
    if files and not pairs:
        raise _nothing_left(name, bad, since)
    return pairs


def _nothing_left(name: str, bad: BadLines, since: int) -> DataError:
    return DataError(f"data.{name}: no pair is left: {bad.account(since) or 'there is none in its files'}")


def _drawn(keyed: Iterable[tuple[str, Pair]], count: int, seed: int, bad: BadLines) -> set[str]:
    """Some of the sources.

    Args:
        keyed: pairs, each with its source as `canonical` has it.
    """
    spellings: dict[str, str] = {}
    for key, pair in keyed:
        spellings[key] = min(pair.source, spellings.get(key, pair.source))
    if count >= len(spellings):
        skipped = bad.account()
        raise DataError(
            f"{skipped and skipped + '; '}data.dev_held_out_sources ({count}) leaves no training data: "
            f"there are {len(spellings)} distinct sources"
        )
    return set(random.Random(seed).sample(sorted(spellings, key=spellings.__getitem__), count))


def prepare(recipe: Recipe, run: Path, say: Callable[[str], None]) -> TrainingData:
    """Reads the data, makes the tokenizers or takes those that the run has already, and encodes.

    Writes RUN/source_tokenizer.json and target_tokenizer.json, RUN/data.json (counts, a fingerprint), RUN/dev.tsv (the
    dev pairs), RUN/longest.tsv (the training pairs with the longest sources) and, where lines were skipped,
    RUN/bad_lines.txt.

    Args:
        say: takes lines for the user.

    Raises:
        DataError: see `read_splits`; or the run was made from other data.
    """
    bad = BadLines(recipe.data.on_bad_line)
    try:
        return _prepare(recipe, run, say, bad)
    finally:  # in every case: what was skipped may be why nothing is left
        _tell(bad, run, say)


def _prepare(recipe: Recipe, run: Path, say: Callable[[str], None], bad: BadLines) -> TrainingData:
    splits = read_splits(recipe, bad)
    tokenizers = _tokenizers(recipe, run, splits.train)

    def encoded(pairs: list[Pair], name: str) -> tuple[list[EncodedPair], list[Pair]]:
        since = len(bad.found)
        kept: list[tuple[EncodedPair, Pair]] = []
        for pair, ids, fault in encode_pairs(recipe, tokenizers, pairs):
            if fault is None:
                kept.append((ids, pair))
            else:
                bad.report(pair.file, pair.line, "too_long", fault)
        if pairs and not kept:
            raise _nothing_left(name, bad, since)
        return [ids for ids, _ in kept], [pair for _, pair in kept]

    train, train_pairs = encoded(splits.train, "train")
    dev, dev_pairs = encoded(splits.dev, "dev")
    _, test_pairs = encoded(splits.test, "test")

    _check_fingerprint(run, train)
    counts = {
        name: {"pairs": len(pairs), "sources": len(distinct_sources(pairs, tokenizers.source))}
        for name, pairs in (("train", train_pairs), ("dev", dev_pairs), ("test", test_pairs))
    }
    for name, count in splits.overlap.items():
        if count:
            say(_overlap(name, count, recipe.data.overlap))
    document = {
        "counts": counts,
        "overlap": splits.overlap,
        "bad_lines": dict(bad.counts),
        "unseen_source_tokens": unseen_source_tokens(tokenizers.source, train),
        "train_sha256": _fingerprint(train),
        "dev_sha256": pairs_digest(dev_pairs),
        "test_sha256": pairs_digest(test_pairs),
    }
    write_text(run / DATA_FILE, json.dumps(document, indent=2) + "\n")
    write_pairs(run / DEV_FILE, dev_pairs)
    by_length = sorted(range(len(train)), key=lambda i: len(train[i].source), reverse=True)
    write_pairs(run / LONGEST_FILE, [train_pairs[i] for i in by_length[:KEPT_LONGEST]])
    sizes = ", ".join(f"{name} {count['pairs']:,} pairs" for name, count in counts.items())
    say(f"{sizes}; vocabulary {tokenizers.source.get_vocab_size():,} / {tokenizers.target.get_vocab_size():,}")
    return TrainingData(*tokenizers, train, dev, dev_pairs, test_pairs)


def unseen_source_tokens(tokenizer: Tokenizer, train: Iterable[EncodedPair]) -> list[int]:
    """Ids that no training source holds, special tokens left out: bytes, and pieces that only make up longer ones."""
    seen = set(range(len(SPECIAL_TOKENS))).union(*(pair.source for pair in train))
    return [token for token in range(tokenizer.get_vocab_size()) if token not in seen]


def _tell(bad: BadLines, run: Path, say: Callable[[str], None]) -> None:
    """Writes down which lines were skipped, where any were, and says it in short."""
    messages = bad.messages
    if not messages:
        return
    write_text(run / BAD_LINES_FILE, "".join(f"{message}\n" for message in messages))
    for message in messages[:MOST_MESSAGES]:
        say(f"skipped {message}")
    kinds = ", ".join(f"{kind} {count}" for kind, count in bad.counts.items())
    for file in bad.emptied:
        say(f"warning: every line of {file} is skipped")
    say(f"skipped {len(messages)} bad lines ({kinds}); all stand in {run / BAD_LINES_FILE}")


def _tokenizers(recipe: Recipe, run: Path, train: list[Pair]) -> Tokenizers:
    """Those of the run, so that a resumed run never depends on how they were trained; else new ones, saved."""
    source_file, target_file = run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER
    if not (source_file.exists() and target_file.exists()):
        learned = train_tokenizers(recipe, train)
        save_tokenizer(learned.source, source_file)
        save_tokenizer(learned.target, target_file)
    return Tokenizers(load_tokenizer(source_file), load_tokenizer(target_file))


def _overlap(name: str, count: int, policy: Literal["drop", "keep"]) -> str:
    here = f"{count:,} distinct sources of data.{name} are in data.train too"
    if policy == "drop":
        return f"{here}; left out of training (data.overlap: keep would train on them)"
    return f"warning: {here} and will be trained on (data.overlap: keep), so what is measured on {name} flatters"


def _fingerprint(pairs: Iterable[EncodedPair]) -> str:
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}{pair.target}".encode())
    return digest.hexdigest()


def pairs_digest(pairs: Iterable[Pair]) -> str:
    """Of texts, by which an export knows that a set is the one that the run measured."""
    told = hashlib.sha256()
    for pair in pairs:
        told.update(f"{pair.source}\0{pair.target}\0".encode())
    return told.hexdigest()


def _check_fingerprint(run: Path, train: list[EncodedPair]) -> None:
    told = read_json(run / DATA_FILE)
    if told is not None and told.get("train_sha256") != _fingerprint(train):
        raise DataError(f"{run}: the training data is not what this run was started with, so it cannot be resumed")
