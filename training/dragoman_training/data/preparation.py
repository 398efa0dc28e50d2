"""Makes prepared data: texts are read and divided, tokenizers trained or taken over, and pairs encoded."""

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from dragoman_training.data.bad_lines import SHOWN, BadLines
from dragoman_training.data.encode import Tokenizers, encode_pairs
from dragoman_training.data.packed import ENDS, token_type
from dragoman_training.data.pairs import Pair, distinct_sources, pairs_digest, write_pairs
from dragoman_training.data.prepared import INPUTS, Inputs, Prepared, begin, tokenizer_digests
from dragoman_training.data.reading import Mask, PairReader
from dragoman_training.data.segmentation import rare_characters
from dragoman_training.data.shards import (
    KEPT_LONGEST,
    PairEncoder,
    TokenShard,
    encode_corpus,
    token_files,
)
from dragoman_training.data.splits import Splits, describe_left_out, no_pair_left, read_splits
from dragoman_training.data.tokenizers import save_tokenizer
from dragoman_training.data.vocabulary import train_tokenizers
from dragoman_training.data.workers import Work
from dragoman_training.errors import DataError
from dragoman_training.files import (
    BAD_LINES_FILE,
    DEV_FILE,
    LONGEST_FILE,
    SOURCE_TOKENIZER,
    START_FILE,
    TARGET_TOKENIZER,
)
from dragoman_training.recipe import Recipe

TEST_FILE = "test.tsv"  # of prepared data: the test pairs


def prepare_corpus(
    recipe: Recipe, run: Path, inputs: Inputs, folder: Path, work: Work, echo: Callable[[str], None]
) -> Prepared:
    """Makes prepared data in a folder, or goes on with what is there.

    Args:
        run: The run directory, whose tokenizers are taken if it has any; skipped lines are listed there after an error.
        inputs: What the data is made from.

    Raises:
        DataError: See `read_splits`; or no tokenizer can be trained.
    """
    if begin(folder, {"inputs": asdict(inputs), "tokenizers": tokenizer_digests(run)}):
        echo(f"resuming the preparation in {folder}")
    with (folder / BAD_LINES_FILE).open("w", encoding="utf-8") as listing:
        bad = BadLines(recipe.data.on_bad_line, listing)
        try:
            return _Preparation(recipe, run, inputs, folder, bad, work).make()
        except DataError:  # skipped lines may be the reason that no pair is left
            listing.flush()
            if bad.lines:
                shutil.copyfile(folder / BAD_LINES_FILE, run / BAD_LINES_FILE)
                for line in describe_skipped(_skipped(bad), run / BAD_LINES_FILE):
                    echo(line)
            raise


class _Preparation:
    """One preparation; arguments as of `prepare_corpus`."""

    def __init__(self, recipe: Recipe, run: Path, inputs: Inputs, folder: Path, bad: BadLines, work: Work) -> None:
        self.recipe, self.inputs, self.folder, self.bad, self.work = recipe, inputs, folder, bad, work
        self.given = _given_tokenizers(recipe, run)
        self.started_elsewhere = (run / START_FILE).exists()

    def make(self) -> Prepared:
        """Makes the data."""
        recipe, folder = self.recipe, self.folder
        reader = PairReader(recipe, self.given if recipe.tokenizers.source.kind == "imported" else None)
        splits = read_splits(reader, folder, self.bad, self.work)
        files, encoded = self._encode(splits)
        tokenizers = Tokenizers.load(*files)
        dev, test = (
            self._fitting(tokenizers, name, pairs) for name, pairs in (("dev", splits.dev), ("test", splits.test))
        )
        for file, name in zip(files, (SOURCE_TOKENIZER, TARGET_TOKENIZER), strict=True):
            shutil.copyfile(file, folder / name)
        if tokenizers.rules is not None:
            tokenizers.rules.save(folder)
        write_pairs(folder / DEV_FILE, dev)
        write_pairs(folder / TEST_FILE, test)
        longest = sorted((one for shard in encoded for one in shard.longest), key=lambda one: one[0], reverse=True)
        texts = [(source, target) for _, source, target in longest[:KEPT_LONGEST]]
        write_pairs(folder / LONGEST_FILE, [Pair(*sides, folder, 0) for sides in texts])
        kept = np.concatenate([shard.fits for shard in encoded])
        counts = {
            "train": {"pairs": int(kept.sum()), "sources": len(np.unique(splits.sources[kept]))},
            **{
                name: {"pairs": len(pairs), "sources": len(distinct_sources(pairs, tokenizers.source))}
                for name, pairs in (("dev", dev), ("test", test))
            },
        }
        sizes = ", ".join(f"{name} {count['pairs']:,} pairs" for name, count in counts.items())
        vocabularies = tokenizers.vocabularies
        files_of_train = [0] * len(recipe.data.train)
        for shard, tokens in zip(splits.shards, encoded, strict=True):
            files_of_train[shard.entry] += len(tokens)
        characters = [Counter[str](), Counter[str]()]
        for tokens in encoded:
            for total, part in zip(characters, tokens.characters, strict=True):
                total.update(part)
        record = {
            "counts": counts,
            "overlap": splits.overlap,
            **({"overlapping_targets": splits.overlapping_targets} if recipe.data.overlap_by == "either" else {}),
            **({"filtered": splits.filtered} if splits.filtered else {}),
            "bad_lines": dict(self.bad.counts),
            "train_tokens_sha256": _fingerprint(encoded),
            "dev_sha256": pairs_digest(dev),
            "test_sha256": pairs_digest(test),
        }
        made = Prepared(
            inputs=asdict(self.inputs),
            tokenizers=tokenizer_digests(folder) or [],
            given_tokenizers=self.started_elsewhere,
            shards=[(tokens.path.name, len(tokens)) for tokens in encoded],
            token_type=token_type(*vocabularies).str,
            files=files_of_train,
            rare=(rare_characters(characters[0]), rare_characters(characters[1])),
            seen=sorted(set[int]().union(*(tokens.seen for tokens in encoded))),
            record=record,
            notes=[
                *describe_left_out(recipe, splits),
                f"{sizes}; vocabulary {vocabularies[0]:,} / {vocabularies[1]:,}",
            ],
            skipped=_skipped(self.bad),
        )
        made.save(folder)
        temporary = "read-*", "tokenizer-*", "train-*.json", INPUTS
        for path in (path for pattern in temporary for path in folder.glob(pattern)):
            path.unlink()
        return made

    def _encode(self, splits: Splits) -> tuple[tuple[Path, Path], list[TokenShard]]:
        """Encodes the training pairs with the tokenizers that are given, or trained on those that fit the model.

        The length of a pair in bpe or unigram tokens is only known after training. If pairs turn out to be too long,
        the tokenizers are trained again without them.

        Returns:
            The files of the tokenizers, and the encoded shards.
        """
        masks = splits.parts(splits.train)
        trained_on = masks
        self.bad.begin()
        while True:
            files = self.given or self._train(splits, trained_on)
            encoder = PairEncoder(self.recipe, *files, self.inputs.texts)
            encoded = encode_corpus(encoder, splits.shards, masks, self.folder, self.work)
            fitting = [mask & shard.fits for mask, shard in zip(trained_on, encoded, strict=True)]
            before, after = (sum(int(mask.sum()) for mask in part) for part in (trained_on, fitting))
            # With the policy refuse, a pair that is too long ends the run anyway.
            if self.given is not None or self.bad.policy == "refuse" or after in (0, before):
                break
            trained_on = fitting
        for shard, tokens in zip(splits.shards, encoded, strict=True):
            for line, message in tokens.too_long:
                self.bad.add(shard.file(self.recipe.data.train), line, "too_long", message)
        if not sum(map(len, encoded)):
            raise no_pair_left("train", self.bad)
        return files, encoded

    def _train(self, splits: Splits, masks: Sequence[Mask]) -> tuple[Path, Path]:
        """Trains the tokenizers, unless that was done before the preparation was interrupted; returns their files."""
        digest = hashlib.sha256(b"".join(np.packbits(mask).tobytes() for mask in masks)).hexdigest()[:16]
        files = self.folder / f"tokenizer-{digest}-source.json", self.folder / f"tokenizer-{digest}-target.json"
        if not all(file.exists() for file in files):
            self.work.progress("training tokenizers", 0, None)
            trained = train_tokenizers(self.recipe, splits.shards, masks)
            for tokenizer, file in zip((trained.source, trained.target), files, strict=True):
                save_tokenizer(tokenizer, file)
        return files

    def _fitting(self, tokenizers: Tokenizers, name: str, pairs: Sequence[Pair]) -> list[Pair]:
        """Returns the pairs of dev or test that fit the model."""
        self.bad.begin()
        kept: list[Pair] = []
        for pair, _, problem in encode_pairs(self.recipe, tokenizers, pairs):
            if problem is None:
                kept.append(pair)
            else:
                self.bad.add(pair.file, pair.line, "too_long", problem)
        if pairs and not kept:
            raise no_pair_left(name, self.bad)
        return kept


def _given_tokenizers(recipe: Recipe, run: Path) -> tuple[Path, Path] | None:
    """Returns the files of the run's tokenizers; None if it has none yet."""
    source, target = run / SOURCE_TOKENIZER, run / TARGET_TOKENIZER
    if source.exists() and target.exists():
        return source, target
    if recipe.tokenizers.source.kind == "imported":
        raise DataError("tokenizers.source.kind: imported needs --init-from with a run of an imported model")
    return None


def describe_skipped(lines: Sequence[str], listing: Path) -> list[str]:
    """Returns lines for the user about skipped ones: those of the preparation, and where all are listed."""
    return [*lines[:-1], f"{lines[-1]}; all are listed in {listing}"] if lines else []


def _skipped(bad: BadLines) -> list[str]:
    """Returns the first bad lines, the files that have no others, and how many there are."""
    if not bad.lines:
        return []
    kinds = ", ".join(f"{kind} {count}" for kind, count in bad.counts.items())
    return [
        *(f"skipped {line}" for line in bad.lines[:SHOWN]),
        *(f"warning: every line of {file} is skipped" for file in bad.all_bad_files),
        f"skipped {bad.counts.total()} bad lines ({kinds})",
    ]


def _fingerprint(encoded: Sequence[TokenShard]) -> str:
    """Returns a digest of all token ids and lengths, which does not depend on how they are divided into shards."""
    values, lengths = hashlib.sha256(), hashlib.sha256()
    for shard in encoded:
        values_file, ends_file, _ = token_files(shard.path, len(shard))
        with values_file.open("rb") as file:
            while block := file.read(2**20):
                values.update(block)
        ends = np.fromfile(ends_file, ENDS)
        lengths.update(np.diff(ends, prepend=ENDS.type(0)).tobytes())
    return hashlib.sha256(values.digest() + lengths.digest()).hexdigest()
