"""The data of a run: opens what was prepared for its recipe and files, and prepares it first if need be."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from dragoman_training.data.batches import EncodedPair, EpochPairs
from dragoman_training.data.encode import Tokenizers, encode_pairs
from dragoman_training.data.epochs import Epochs, changes_pairs
from dragoman_training.data.packed import PackedPairs
from dragoman_training.data.pairs import Pair, read_pairs_file
from dragoman_training.data.preparation import TEST_FILE, describe_skipped, prepare_corpus
from dragoman_training.data.prepared import Inputs, Prepared, check_place, tokenizer_digests, unfinished_folder
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.data.workers import Work
from dragoman_training.errors import DataError
from dragoman_training.files import (
    BAD_LINES_FILE,
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    PREPARED_FOLDER,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_TOKENIZER,
    read_json,
    write_text,
)
from dragoman_training.recipe import Recipe, file_paths

LARGE = 2**26  # bytes of training files, compressed ones counted four times, that are worth starting processes for

Progress = Callable[[str, int, int | None], object]


@dataclass(frozen=True)
class TrainingData:
    """Tokenizers, train and dev as token ids, and dev and test as text.

    Attributes:
        train: Training pairs as the tokenizers encode them.
        epochs: The training pairs of each epoch, with the recipe's mixture and changes.
    """

    tokenizers: Tokenizers
    train: Sequence[EncodedPair]
    epochs: EpochPairs
    dev: list[EncodedPair]
    dev_pairs: list[Pair]
    test_pairs: list[Pair]


def prepare(
    recipe: Recipe,
    run: Path,
    echo: Callable[[str], None],
    progress: Progress = lambda what, count, total: None,
) -> TrainingData:
    """Opens the prepared data of a recipe in data.prepared or RUN/prepared.

    If there is none, the data is read, the tokenizers are trained, or taken from the run if it has any, and the pairs
    are encoded. A preparation that was killed goes on.

    Writes RUN/source_tokenizer.json and target_tokenizer.json, RUN/data.json (counts and fingerprints), RUN/dev.tsv
    (the dev pairs), RUN/longest.tsv (the training pairs with the longest sources) and, if lines were skipped,
    RUN/bad_lines.txt.

    Args:
        echo: Callback that shows a line to the user.
        progress: Callback that is told what is counted, how many there are so far, and how many in all, if known.

    Raises:
        DataError: See `read_splits`; the run was started with other data; or data.prepared was made from something
            else.
    """
    folder = recipe.data.prepared or run / PREPARED_FOLDER
    found = _open_or_make(recipe, run, folder, echo, progress)
    _check_fingerprint(run, found, folder)
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER):
        if not (run / name).exists():
            write_text(run / name, (folder / name).read_text(encoding="utf-8"))
    tokenizers = Tokenizers.load(run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER)
    corpus = found.corpus(folder)
    epochs = Epochs(recipe, tokenizers, corpus)
    train = PackedPairs(corpus.tokens)
    dev_pairs, test_pairs = (read_pairs_file(folder / name) for name in (DEV_FILE, TEST_FILE))
    dev = [ids for _, ids, _ in encode_pairs(recipe, tokenizers, dev_pairs)]
    for line in [*found.notes, *epochs.mixture.describe()]:
        echo(line)
    for name in (DEV_FILE, LONGEST_FILE):
        shutil.copyfile(folder / name, run / name)
    unseen = _unseen_source_tokens(recipe, run, tokenizers, found.seen, epochs)
    write_text(run / DATA_FILE, json.dumps(found.record | {"unseen_source_tokens": unseen}, indent=2) + "\n")
    if found.skipped:
        shutil.copyfile(folder / BAD_LINES_FILE, run / BAD_LINES_FILE)
        for line in describe_skipped(found.skipped, run / BAD_LINES_FILE):
            echo(line)
    return TrainingData(tokenizers, train, epochs, dev, dev_pairs, test_pairs)


def _open_or_make(recipe: Recipe, run: Path, folder: Path, echo: Callable[[str], None], progress: Progress) -> Prepared:
    """Returns the prepared data of a folder; makes it if the folder holds none, or is the run's own and outdated."""
    inputs = Inputs.of(recipe, changes_pairs(recipe))
    found = _suitable(recipe, run, folder, inputs)
    if found is not None:
        return found
    place = folder.resolve()  # of a link, the folder itself is replaced
    with unfinished_folder(place, echo) as partial:
        found = _suitable(recipe, run, folder, inputs)  # another process may have made it meanwhile
        if found is None:
            work = Work(torch.get_num_threads() if _size(recipe) >= LARGE else 1, progress)
            try:
                found = prepare_corpus(recipe, run, inputs, partial, work, echo)
                _check_fingerprint(run, found, partial)
            except DataError:
                shutil.rmtree(partial)
                raise
            outdated = place.with_name(f".{place.name}.outdated")
            shutil.rmtree(outdated, ignore_errors=True)  # of a start that was killed
            if recipe.data.prepared is None and place.exists():
                place.rename(outdated)
            partial.rename(place)
            shutil.rmtree(outdated, ignore_errors=True)
        else:
            shutil.rmtree(partial)
    return found


def _suitable(recipe: Recipe, run: Path, folder: Path, inputs: Inputs) -> Prepared | None:
    """Returns the prepared data of a folder if it suits the recipe; None if it has to be made.

    Raises:
        DataError: The folder holds other files; or it is one that the recipe names, and was prepared with other
            settings or data.
    """
    check_place(folder)
    found = Prepared.load(folder)
    if found is None:
        return None
    differences = inputs.differences(found.inputs)
    own = tokenizer_digests(run)
    if own is None and found.given_tokenizers:
        differences.append("its tokenizers were not trained on this corpus")
    elif own is not None and own != found.tokenizers:
        differences.append(f"its tokenizers are not those of {run}")
    if not differences:
        return found
    if recipe.data.prepared is None:
        return None
    raise DataError(
        f"data.prepared: {folder} was prepared with other settings or data: {', '.join(differences)}; choose another "
        "folder, or delete this one"
    )


def _size(recipe: Recipe) -> int:
    """Returns the bytes of the training files, about as many as they are decompressed."""
    files = [file for entry in recipe.data.train for file in file_paths(entry)]
    return sum(file.stat().st_size * (4 if file.suffix == ".gz" else 1) for file in files)


def _unseen_source_tokens(
    recipe: Recipe, run: Path, tokenizers: Tokenizers, seen: Iterable[int], epochs: Epochs
) -> list[int]:
    """Returns the ids that occur in no training source, without special tokens: bytes, and parts of longer pieces.

    Of a run that starts from the weights of another one, those that the other has not seen either.
    """
    recorded = read_json(run / DATA_FILE)
    if recorded is not None and "unseen_source_tokens" in recorded:
        return list(recorded["unseen_source_tokens"])
    unseen = set(range(len(SPECIAL_TOKENS), tokenizers.vocabularies[0])).difference(seen)
    if changes_pairs(recipe):
        for pair in epochs.block(0, 0):
            unseen.difference_update(pair.source)
    start = read_json(run / START_FILE)
    return sorted(unseen if start is None else unseen.intersection(start["unseen_source_tokens"]))


def _check_fingerprint(run: Path, found: Prepared, folder: Path) -> None:
    """Checks that prepared data is what the run was started with; only test, which is read at the end, may change.

    Raises:
        DataError: It is not.
    """
    recorded = read_json(run / DATA_FILE) or {}
    if "train_tokens_sha256" in recorded:
        same = recorded["train_tokens_sha256"] == found.record["train_tokens_sha256"]
    elif "train_sha256" in recorded:  # by an older version
        same = recorded["train_sha256"] == _old_fingerprint(PackedPairs(found.corpus(folder).tokens))
    else:
        same = True
    dev = found.record["dev_sha256"]
    for name, unchanged in (("training", same), ("dev", recorded.get("dev_sha256", dev) == dev)):
        if not unchanged:
            raise DataError(
                f"{run}: the {name} data differs from what the run was started with, so the run cannot be resumed; "
                "restore the data or start a new run"
            )


def _old_fingerprint(pairs: Iterable[EncodedPair]) -> str:
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}{pair.target}".encode())
    return digest.hexdigest()
