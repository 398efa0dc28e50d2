"""Prepares the data of a run: reads and splits it, trains or loads the tokenizers, and encodes."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.corpus import BadLines
from dragoman_training.data.encode import Tokenizers, encode_pairs, train_tokenizers
from dragoman_training.data.epochs import EpochPairs, epoch_pairs
from dragoman_training.data.pairs import Pair, distinct_sources, write_pairs
from dragoman_training.data.splits import describe_left_out, no_pair_left, read_splits
from dragoman_training.data.tokenizers import SPECIAL_TOKENS, load_tokenizer, save_tokenizer
from dragoman_training.errors import DataError
from dragoman_training.files import (
    BAD_LINES_FILE,
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_TOKENIZER,
    read_json,
    write_text,
)
from dragoman_training.recipe import Recipe

KEPT_LONGEST = 64  # training pairs kept for export: values grow with length, and dev may be shorter
MAX_SHOWN_LINES = 10  # bad lines shown on the terminal


@dataclass(frozen=True)
class TrainingData:
    """Tokenizers, train and dev as token ids, and dev and test as text.

    Attributes:
        train: Training pairs as the tokenizers encode them.
        train_epoch: Function from an epoch to its training pairs, with the recipe's changes.
    """

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: list[EncodedPair]
    train_epoch: EpochPairs
    dev: list[EncodedPair]
    dev_pairs: list[Pair]
    test_pairs: list[Pair]


def prepare(recipe: Recipe, run: Path, echo: Callable[[str], None]) -> TrainingData:
    """Reads the data, trains the tokenizers or loads those of the run, and encodes.

    Writes RUN/source_tokenizer.json and target_tokenizer.json, RUN/data.json (counts and fingerprints), RUN/dev.tsv
    (the dev pairs), RUN/longest.tsv (the training pairs with the longest sources) and, if lines were skipped,
    RUN/bad_lines.txt.

    Args:
        echo: Callback that shows a line to the user.

    Raises:
        DataError: See `read_splits`; or the run was started with other data.
    """
    bad = BadLines(recipe.data.on_bad_line)
    try:
        return _prepare(recipe, run, echo, bad)
    finally:  # also after an error: skipped lines may be the reason that no pair is left
        _report_bad_lines(bad, run, echo)


def _prepare(recipe: Recipe, run: Path, echo: Callable[[str], None], bad: BadLines) -> TrainingData:
    given = _imported_tokenizers(recipe, run)
    splits = read_splits(recipe, bad, given)
    tokenizers = given or _load_or_train_tokenizers(recipe, run, splits.train)
    train, train_pairs = _encode_split(recipe, tokenizers, "train", splits.train, bad)
    dev, dev_pairs = _encode_split(recipe, tokenizers, "dev", splits.dev, bad)
    _, test_pairs = _encode_split(recipe, tokenizers, "test", splits.test, bad)

    _check_fingerprint(run, train)
    train_epoch = epoch_pairs(recipe, tokenizers, train_pairs, train)
    counts = {
        name: {"pairs": len(pairs), "sources": len(distinct_sources(pairs, tokenizers.source))}
        for name, pairs in (("train", train_pairs), ("dev", dev_pairs), ("test", test_pairs))
    }
    for line in describe_left_out(recipe, splits):
        echo(line)
    document = {
        "counts": counts,
        "overlap": splits.overlap,
        **({"overlapping_targets": splits.overlapping_targets} if recipe.data.overlap_by == "either" else {}),
        **({"filtered": splits.filtered} if splits.filtered else {}),
        "bad_lines": dict(bad.counts),
        "unseen_source_tokens": _never_seen(run, tokenizers.source, chain(train, train_epoch(0))),
        "train_sha256": _fingerprint(train),
        "dev_sha256": pairs_digest(dev_pairs),
        "test_sha256": pairs_digest(test_pairs),
    }
    write_text(run / DATA_FILE, json.dumps(document, indent=2) + "\n")
    write_pairs(run / DEV_FILE, dev_pairs)
    by_length = sorted(range(len(train)), key=lambda i: len(train[i].source), reverse=True)
    write_pairs(run / LONGEST_FILE, [train_pairs[i] for i in by_length[:KEPT_LONGEST]])
    sizes = ", ".join(f"{name} {count['pairs']:,} pairs" for name, count in counts.items())
    echo(f"{sizes}; vocabulary {tokenizers.source.get_vocab_size():,} / {tokenizers.target.get_vocab_size():,}")
    return TrainingData(*tokenizers, train, train_epoch, dev, dev_pairs, test_pairs)


def _encode_split(
    recipe: Recipe, tokenizers: Tokenizers, name: str, pairs: list[Pair], bad: BadLines
) -> tuple[list[EncodedPair], list[Pair]]:
    """Returns the pairs of a split that fit the model, as token ids and as text."""
    since = len(bad.lines)
    encoded: list[EncodedPair] = []
    kept: list[Pair] = []
    for pair, ids, problem in encode_pairs(recipe, tokenizers, pairs):
        if problem is None:
            encoded.append(ids)
            kept.append(pair)
        else:
            bad.add(pair.file, pair.line, "too_long", problem)
    if pairs and not kept:
        raise no_pair_left(name, bad, since)
    return encoded, kept


def unseen_source_tokens(tokenizer: Tokenizer, train: Iterable[EncodedPair]) -> list[int]:
    """Returns the ids that occur in no training source, without special tokens: bytes, and parts of longer pieces."""
    seen = set(range(len(SPECIAL_TOKENS))).union(*(pair.source for pair in train))
    return [token for token in range(tokenizer.get_vocab_size()) if token not in seen]


def _never_seen(run: Path, tokenizer: Tokenizer, train: Iterable[EncodedPair]) -> list[int]:
    """Returns the unseen source tokens that the run whose weights this one starts from has not seen either."""
    unseen = unseen_source_tokens(tokenizer, train)
    start = read_json(run / START_FILE)
    return unseen if start is None else sorted(set(unseen) & set(start["unseen_source_tokens"]))


def _report_bad_lines(bad: BadLines, run: Path, echo: Callable[[str], None]) -> None:
    """Writes the list of skipped lines, if any, and shows a summary."""
    messages = bad.messages
    if not messages:
        return
    write_text(run / BAD_LINES_FILE, "".join(f"{message}\n" for message in messages))
    for message in messages[:MAX_SHOWN_LINES]:
        echo(f"skipped {message}")
    kinds = ", ".join(f"{kind} {count}" for kind, count in bad.counts.items())
    for file in bad.all_bad_files:
        echo(f"warning: every line of {file} is skipped")
    echo(f"skipped {len(messages)} bad lines ({kinds}); all are listed in {run / BAD_LINES_FILE}")


def _imported_tokenizers(recipe: Recipe, run: Path) -> Tokenizers | None:
    """Loads the tokenizers of a run that started from an imported model; None for other recipes."""
    if recipe.tokenizers.source.kind != "imported":
        return None
    source, target = run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER
    if not source.exists():
        raise DataError("tokenizers.source.kind: imported needs --init-from with a run of an imported model")
    return Tokenizers(load_tokenizer(source), load_tokenizer(target))


def _load_or_train_tokenizers(recipe: Recipe, run: Path, train: list[Pair]) -> Tokenizers:
    """Loads the tokenizers of the run, so that a resumed run does not depend on training them again; else trains."""
    source_file, target_file = run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER
    if not (source_file.exists() and target_file.exists()):
        trained = train_tokenizers(recipe, train)
        save_tokenizer(trained.source, source_file)
        save_tokenizer(trained.target, target_file)
    return Tokenizers(load_tokenizer(source_file), load_tokenizer(target_file))


def _fingerprint(pairs: Iterable[EncodedPair]) -> str:
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}{pair.target}".encode())
    return digest.hexdigest()


def pairs_digest(pairs: Iterable[Pair]) -> str:
    """Returns a digest of the texts, with which export checks that a split is the one that the run measured."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}\0{pair.target}\0".encode())
    return digest.hexdigest()


def _check_fingerprint(run: Path, train: list[EncodedPair]) -> None:
    recorded = read_json(run / DATA_FILE)
    if recorded is not None and recorded.get("train_sha256") != _fingerprint(train):
        raise DataError(
            f"{run}: the training data differs from what the run was started with, so the run cannot be resumed; "
            "restore the data or start a new run"
        )
