"""The run's own data, as far as it still lies where the recipe says."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from dragoman_export.errors import ExportError
from dragoman_server.messages.blank_text import is_blank
from dragoman_training.data.corpus import BadLines, read_pairs
from dragoman_training.data.encode import Tokenizers, encode_pairs
from dragoman_training.data.pairs import Pair, distinct_sources, read_pairs_file
from dragoman_training.data.prepare import pairs_digest
from dragoman_training.errors import DataError
from dragoman_training.files import DATA_FILE, DEV_FILE, LONGEST_FILE
from dragoman_training.recipe import ParallelFiles
from dragoman_training.run.load import Run


def evaluation_data(run: Run, say: Callable[[str], None]) -> dict[str, list[Pair]]:
    """The pairs that the run measured, by the name of the set, "dev" and "test".

    A set that never was is left out, and so is one of the user's files that is gone.

    Args:
        say: is told what is left out and why.

    Raises:
        ExportError: a set is not the one that the run measured, or what the run wrote down of dev can't be read.
    """

    told = run.provenance.get("data", {})
    measured = told.get("counts", {})  # runs of before have none

    def read(name: str, place: str, load: Callable[[], list[Pair]]) -> None:
        expected = measured.get(name, {})
        try:
            pairs = load()
        except DataError as error:
            if name == "dev" and expected.get("pairs"):  # the run's own file, which nobody else moves
                raise ExportError(f"{error}; the run measured dev on {expected['pairs']} pairs of it") from error
            say(f"nothing is measured on {name}: {error}")
            return
        for what, count in (
            ("pairs", len(pairs)),
            ("sources", len(distinct_sources(pairs, run.source_tokenizer))),
        ):
            if count != expected.get(what, count):
                raise ExportError(
                    f"{place}: holds {count} usable {what}, but the run measured {name} on {expected[what]} "
                    f"({run.path / DATA_FILE}): what is measured here would be of something else; put the file back as "
                    "it was"
                )
        if told.get(f"{name}_sha256") not in (None, pairs_digest(pairs)):
            raise ExportError(
                f"{place}: its texts are not those that the run measured {name} on ({run.path / DATA_FILE}): what is "
                "measured here would be of something else; put the file back as it was"
            )
        if pairs:
            data[name] = pairs

    data: dict[str, list[Pair]] = {}
    read("dev", str(run.path / DEV_FILE), run.dev_pairs)
    files: list[Path | ParallelFiles] = run.recipe.data.test or []
    read("test", "data.test", lambda: _within_limits(run, read_pairs(files, BadLines("skip"))))
    return data


def training_data(run: Run) -> list[Pair]:
    """The longest training pairs that the run wrote down; none where it is one of before, or the file is gone."""
    path = run.path / LONGEST_FILE
    try:
        return read_pairs_file(path) if path.exists() else []
    except DataError as error:
        raise ExportError(str(error)) from error


def _within_limits(run: Run, pairs: Sequence[Pair]) -> list[Pair]:
    """Those that training keeps of a file."""
    tokenizers = Tokenizers(run.source_tokenizer, run.target_tokenizer)
    return [pair for pair, _, fault in encode_pairs(run.recipe, tokenizers, pairs) if fault is None]


def spread(texts: Sequence[str], count: int) -> list[str]:
    """At most `count` distinct texts, from evenly over all."""
    distinct = list(dict.fromkeys(texts))
    step = max(1, len(distinct) // count)
    return distinct[step // 2 :: step][:count]


def unusable(tokenizer: Tokenizer, text: str, limit: int, unknown: int) -> str | None:
    """Why a text can't be a source of the model; None where it can."""
    if is_blank(text):
        return "has nothing that can be seen"
    ids = tokenizer.encode(text).ids
    if len(ids) > limit:
        return f"has {len(ids)} tokens, more than the model's {limit}"
    if unknown in ids:
        return "has characters that the model's tokenizer does not know"
    return None
