"""From a recipe to what the trainer needs: split, tokenizers, token ids."""

import hashlib
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from training.data.batches import EncodedPair
from training.data.corpus import BadLines, Pair, distinct_sources, read_pairs
from training.data.normalization import comparable
from training.data.tokenizers import SPECIAL_TOKENS, load_tokenizer, save_tokenizer, train_tokenizer, untrained
from training.errors import DataError
from training.recipe import Recipe

SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"
DATA, DEV, BAD_LINES = "data.json", "dev.tsv", "bad_lines.txt"
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
    train = read_pairs(data.train, bad)
    dev = read_pairs(data.dev or [], bad)
    test = read_pairs(data.test or [], bad)
    reader = untrained(recipe.tokenizers.source)
    keyed = [(comparable(reader, pair.source), pair) for pair in train]
    known = {key for key, _ in keyed}
    overlap: dict[str, int] = {}
    for name, pairs in (("dev", dev), ("test", test)):
        there = distinct_sources(pairs, reader).keys() & known
        overlap[name] = len(there)
        if data.overlap == "drop":
            keyed = [(key, pair) for key, pair in keyed if key not in there]
    if data.dev_held_out_sources:
        held = _drawn(keyed, data.dev_held_out_sources, recipe.seed)
        dev = [pair for key, pair in keyed if key in held]
        keyed = [(key, pair) for key, pair in keyed if key not in held]
    if not keyed:
        every = ": every source stands in dev or test too; data.overlap: keep trains on them all the same"
        raise DataError(f"data.train: no pair is left to train on{every if any(overlap.values()) else ''}")
    return Splits([pair for _, pair in keyed], dev, test, overlap)


def _drawn(keyed: Iterable[tuple[str, Pair]], count: int, seed: int) -> set[str]:
    """Some of the sources.

    Args:
        keyed: pairs, each with its source as `comparable` has it.
    """
    spellings: dict[str, str] = {}
    for key, pair in keyed:
        spellings[key] = min(pair.source, spellings.get(key, pair.source))
    if count >= len(spellings):
        raise DataError(
            f"data.dev_held_out_sources ({count}) leaves no training data: there are {len(spellings)} distinct sources"
        )
    return set(random.Random(seed).sample(sorted(spellings, key=spellings.__getitem__), count))


def prepare(recipe: Recipe, run: Path, say: Callable[[str], None]) -> TrainingData:
    """Reads the data, makes the tokenizers or takes those that the run has already, and encodes.

    Writes RUN/source_tokenizer.json and target_tokenizer.json, RUN/data.json (counts, a fingerprint), RUN/dev.tsv (the
    dev pairs) and, where lines were skipped, RUN/bad_lines.txt.

    Args:
        say: takes lines for the user.

    Raises:
        DataError: see `read_splits`; or the run was made from other data.
    """
    bad = BadLines(recipe.data.on_bad_line)
    splits = read_splits(recipe, bad)
    source_tokenizer, target_tokenizer = _tokenizers(recipe, run, splits.train)

    def encode(pairs: list[Pair], name: str) -> tuple[list[EncodedPair], list[Pair]]:
        sources = source_tokenizer.encode_batch([pair.source for pair in pairs])
        targets = target_tokenizer.encode_batch([pair.target for pair in pairs])
        kept: list[tuple[EncodedPair, Pair]] = []
        for pair, source, target in zip(pairs, sources, targets, strict=True):
            # The end token counts for the source and not for the target: the limits are those a server will state.
            for side, tokens, limit in (
                ("source", len(source.ids), recipe.model.max_source_length),
                ("target", len(target.ids) - 1, recipe.model.max_target_length),
            ):
                if tokens > limit:
                    message = f"the {side} has {tokens} tokens, model.max_{side}_length is {limit}"
                    bad.report(pair.file, pair.line, "too_long", message)
                    break
            else:
                kept.append((EncodedPair(source.ids, target.ids), pair))
        if pairs and not kept:
            raise DataError(f"data.{name}: every pair is longer than the model's limits")
        return [encoded for encoded, _ in kept], [pair for _, pair in kept]

    train, train_pairs = encode(splits.train, "train")
    dev, dev_pairs = encode(splits.dev, "dev")
    _, test_pairs = encode(splits.test, "test")

    _check_fingerprint(run, train)
    counts = {
        name: {"pairs": len(pairs), "sources": len(distinct_sources(pairs, source_tokenizer))}
        for name, pairs in (("train", train_pairs), ("dev", dev_pairs), ("test", test_pairs))
    }
    for name, count in splits.overlap.items():
        if count:
            say(_overlap(name, count, recipe.data.overlap))
    document = {
        "counts": counts,
        "overlap": splits.overlap,
        "bad_lines": dict(bad.counts),
        "unseen_source_tokens": unseen_source_tokens(source_tokenizer, train),
        "train_sha256": _fingerprint(train),
    }
    (run / DATA).write_text(json.dumps(document, indent=2) + "\n")
    (run / DEV).write_text("".join(f"{p.source}\t{p.target}\n" for p in dev_pairs), encoding="utf-8")
    if bad.messages:
        (run / BAD_LINES).write_text("\n".join(bad.messages) + "\n", encoding="utf-8")
        for message in bad.messages[:MOST_MESSAGES]:
            say(f"skipped {message}")
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(bad.counts.items()))
        say(f"skipped {len(bad.messages)} bad lines ({kinds}); all stand in {run / BAD_LINES}")
    sizes = ", ".join(f"{name} {count['pairs']:,} pairs" for name, count in counts.items())
    say(f"{sizes}; vocabulary {source_tokenizer.get_vocab_size():,} / {target_tokenizer.get_vocab_size():,}")
    return TrainingData(source_tokenizer, target_tokenizer, train, dev, dev_pairs, test_pairs)


def unseen_source_tokens(tokenizer: Tokenizer, train: Iterable[EncodedPair]) -> list[int]:
    """Ids that no training source holds, special tokens left out: bytes, and pieces that only make up longer ones."""
    seen = set(range(len(SPECIAL_TOKENS))).union(*(pair.source for pair in train))
    return [token for token in range(tokenizer.get_vocab_size()) if token not in seen]


def _tokenizers(recipe: Recipe, run: Path, train: list[Pair]) -> tuple[Tokenizer, Tokenizer]:
    """Those of the run, so that a resumed run never depends on how they were trained; else new ones, saved."""
    source_file, target_file = run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER
    if not (source_file.exists() and target_file.exists()):
        config = recipe.tokenizers
        if config.joint:
            source = target = train_tokenizer(config.source, (text for pair in train for text in pair[:2]))
        else:
            source = train_tokenizer(config.source, (pair.source for pair in train))
            target = train_tokenizer(config.target or config.source, (pair.target for pair in train))
        save_tokenizer(source, source_file)
        save_tokenizer(target, target_file)
    return load_tokenizer(source_file), load_tokenizer(target_file)


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


def _check_fingerprint(run: Path, train: list[EncodedPair]) -> None:
    file = run / DATA
    if file.exists() and json.loads(file.read_text())["train_sha256"] != _fingerprint(train):
        raise DataError(f"{run}: the training data is not what this run was started with, so it cannot be resumed")
