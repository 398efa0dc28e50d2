"""The data of a run, as far as its files still exist."""

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
    """Returns the pairs on which the run measured quality, by name of the set, "dev" and "test".

    Sets without data are left out, and so are the user's files that no longer exist.

    Args:
        run: The run.
        say: Prints a line for the user on each set that is left out, and why.

    Raises:
        ExportError: A set is not the one that the run measured, or the run's own copy of dev cannot be read.
    """
    files: list[Path | ParallelFiles] = run.recipe.data.test or []
    loaders: dict[str, tuple[str, Callable[[], list[Pair]]]] = {
        "dev": (str(run.path / DEV_FILE), run.dev_pairs),
        "test": ("data.test", lambda: _within_limits(run, read_pairs(files, BadLines("skip")))),
    }
    data: dict[str, list[Pair]] = {}
    for name, (place, load) in loaders.items():
        # Runs of older versions recorded no counts.
        recorded = run.provenance.get("data", {}).get("counts", {}).get(name, {})
        try:
            pairs = load()
        except DataError as error:
            if name == "dev" and recorded.get("pairs"):  # the run's own file, which users do not move
                raise ExportError(f"{error}; the run measured dev on {recorded['pairs']} pairs of it") from error
            say(f"nothing is measured on {name}: {error}")
            continue
        _check_unchanged(run, name, place, pairs)
        if pairs:
            data[name] = pairs
    return data


def longest_training_pairs(run: Run) -> list[Pair]:
    """Returns the longest training pairs, of which the run keeps a file; none if it is missing, as in old runs."""
    path = run.path / LONGEST_FILE
    try:
        return read_pairs_file(path) if path.exists() else []
    except DataError as error:
        raise ExportError(str(error)) from error


def spread(texts: Sequence[str], count: int) -> list[str]:
    """Returns at most `count` distinct texts, evenly spaced."""
    distinct = list(dict.fromkeys(texts))
    step = max(1, len(distinct) // count)
    return distinct[step // 2 :: step][:count]


def source_fault(tokenizer: Tokenizer, text: str, limit: int, unknown: int) -> str | None:
    """Returns why a text cannot be a source of the model, or None."""
    if is_blank(text):
        return "has no visible characters"
    ids = tokenizer.encode(text).ids
    if len(ids) > limit:
        return f"has {len(ids)} tokens, more than the model's {limit}"
    if unknown in ids:
        return "has characters that the model's tokenizer does not know"
    return None


def _check_unchanged(run: Run, name: str, place: str, pairs: list[Pair]) -> None:
    """Refuses data that is not what the run measured."""
    recorded = run.provenance.get("data", {})
    counts = recorded.get("counts", {}).get(name, {})
    remedy = "results on other data would not compare; restore the file"
    for unit, count in (("pairs", len(pairs)), ("sources", len(distinct_sources(pairs, run.source_tokenizer)))):
        if count != counts.get(unit, count):
            raise ExportError(
                f"{place}: holds {count} usable {unit}, but the run measured {name} on {counts[unit]} "
                f"({run.path / DATA_FILE}): {remedy}"
            )
    if recorded.get(f"{name}_sha256") not in (None, pairs_digest(pairs)):
        raise ExportError(
            f"{place}: its texts are not those that the run measured {name} on ({run.path / DATA_FILE}): {remedy}"
        )


def _within_limits(run: Run, pairs: Sequence[Pair]) -> list[Pair]:
    """Returns the pairs that training would use."""
    tokenizers = Tokenizers(run.source_tokenizer, run.target_tokenizer)
    return [pair for pair, _, fault in encode_pairs(run.recipe, tokenizers, pairs) if fault is None]
