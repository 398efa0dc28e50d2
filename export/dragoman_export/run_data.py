"""A run as the original of a bundle, with its data as far as the files still exist."""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from dragoman_export.errors import ExportError
from dragoman_export.original import Original, Vocabulary
from dragoman_server.bundle.manifest import Generation, LanguageTokens, Limits, SpecialTokens, Text
from dragoman_server.messages.blank_text import is_blank
from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.corpus import read_pairs
from dragoman_training.data.encode import encode_pairs
from dragoman_training.data.imported import ImportedRules
from dragoman_training.data.languages import language_token, split_language, with_language
from dragoman_training.data.pairs import Pair, distinct_sources, pairs_digest, read_pairs_file
from dragoman_training.data.reading import PairReader
from dragoman_training.data.splits import training_pairs as read_training_pairs
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from dragoman_training.errors import DataError, TrainingError
from dragoman_training.files import (
    DATA_FILE,
    DEV_FILE,
    LONGEST_FILE,
    SOURCE_PIECES,
    SOURCE_TOKENIZER,
    TARGET_PIECES,
    TARGET_TOKENIZER,
)
from dragoman_training.recipe import file_paths, source_language, target_language
from dragoman_training.run.load import Run, load_run

TOKENS = SpecialTokens(pad=PAD_ID, unknown=UNKNOWN_ID, begin=BEGIN_ID, end=END_ID)  # of models trained here
MOST_TRAINING_PAIRS = 1_000_000  # read for a shortlist


def read_run(path: Path, say: Callable[[str], None]) -> Original:
    """Reads a run.

    Args:
        path: The run directory.
        say: Prints a line for the user on each data set that is left out, and why.

    Raises:
        ExportError: The run cannot be read, or its data has changed.
    """
    try:
        run = load_run(path)
    except TrainingError as error:
        raise ExportError(str(error)) from error
    data = evaluation_data(run, say)
    if run.tokenizers.rules is not None:
        return _of_imported(run, run.tokenizers.rules, data, say)
    languages = run.recipe.data.target_languages
    return Original(
        str(path),
        run.model,
        Vocabulary(run.tokenizers.source),
        Vocabulary(run.tokenizers.target),
        TOKENS,
        _limits(run),
        sources=[pair.source for pairs in data.values() for pair in pairs],
        data=data,
        longest=longest_training_pairs(run),
        metrics=run.recipe.evaluation.metrics,
        training_pairs=partial(training_pairs, run),
        unseen_source_tokens=run.unseen_source_tokens,
        text=_language_rules(run.tokenizers.source, languages) if languages else None,
        provenance=run.provenance | {"files": _data_files(run)},
    )


def _of_imported(run: Run, rules: ImportedRules, data: dict[str, list[Pair]], say: Callable[[str], None]) -> Original:
    """Returns the original of a run that continued a published model: with its languages and its settings.

    The default languages are those of the first training file that names some. Quality is measured in them alone.
    """
    text = Text.model_validate(rules.text.model_dump())
    first = run.recipe.data.train[0]
    source, target = source_language(first), target_language(first)
    default = {"source_language": source or text.source_language, "target_language": target or text.target_language}
    kept = {name: _in_languages(pairs, rules, source, target) for name, pairs in data.items()}
    for name, pairs in data.items():
        if left_out := len(pairs) - len(kept[name]):
            say(
                f"{left_out} of {len(pairs)} pairs of {name} are in other languages than the first training file; "
                "nothing is measured on them"
            )
    pieces = [path if path.exists() else None for path in (run.path / SOURCE_PIECES, run.path / TARGET_PIECES)]
    return Original(
        str(run.path),
        run.model,
        Vocabulary(run.tokenizers.source, pieces[0]),
        Vocabulary(run.tokenizers.target, pieces[1]),
        SpecialTokens(**asdict(rules.tokens)),
        _limits(run),
        sources=[pair.source for pairs in kept.values() for pair in pairs],
        data={name: pairs for name, pairs in kept.items() if pairs},
        longest=_in_languages(longest_training_pairs(run), rules, source, target),
        metrics=run.recipe.evaluation.metrics,
        text=text.model_copy(update=default),
        generation=Generation.model_validate(rules.manifest["generation"]),
        origin=rules.manifest["origin"],
        license=rules.manifest["license"],
        provenance=run.provenance | {"files": _data_files(run)},
    )


def _in_languages(pairs: Sequence[Pair], rules: ImportedRules, source: str | None, target: str | None) -> list[Pair]:
    """Returns the pairs in these languages, without the start that names them."""
    split = ((pair, *split_language(pair.source, rules.text.languages)) for pair in pairs)
    start = with_language("", target, source)
    return [pair._replace(source=text) for pair, found, text in split if found == start]


def _limits(run: Run) -> Limits:
    config = run.recipe.model
    return Limits(max_source_tokens=config.max_source_length, max_target_tokens=config.max_target_length)


def _language_rules(source: Tokenizer, languages: Sequence[str]) -> Text:
    """Returns how requests name the target language: the source starts with its token."""
    codes = {code: LanguageTokens(source=source.token_to_id(language_token(code))) for code in languages}
    default = languages[0] if len(languages) == 1 else ""
    return Text(prefix=with_language("", "{target_language}"), after=[END_ID], languages=codes, target_language=default)


def evaluation_data(run: Run, say: Callable[[str], None]) -> dict[str, list[Pair]]:
    """Returns the pairs on which the run measured quality, by name of the set, "dev" and "test".

    Sets without data are left out, and so are the user's files that no longer exist.

    Args:
        run: The run.
        say: Prints a line for the user on each set that is left out, and why.

    Raises:
        ExportError: A set is not the one that the run measured, or the run's own copy of dev cannot be read.
    """
    files, columns = run.recipe.data.test or [], run.recipe.data.columns
    loaders: dict[str, tuple[str, Callable[[], list[Pair]]]] = {
        "dev": (str(run.path / DEV_FILE), run.dev_pairs),
        "test": ("data.test", lambda: _within_limits(run, read_pairs(files, BadLines("skip"), columns))),
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


def training_pairs(run: Run) -> list[Pair]:
    """Returns the pairs that the run was trained on; of a large corpus, some that are evenly spaced.

    Raises:
        ExportError: The user's files have moved or cannot be read.
    """
    try:
        imported = run.recipe.tokenizers.source.kind == "imported"
        given = (run.path / SOURCE_TOKENIZER, run.path / TARGET_TOKENIZER) if imported else None
        with tempfile.TemporaryDirectory(prefix="dragoman-export-") as folder:
            return read_training_pairs(PairReader(run.recipe, given), Path(folder), MOST_TRAINING_PAIRS)
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
    for unit, count in (("pairs", len(pairs)), ("sources", len(distinct_sources(pairs, run.tokenizers.source)))):
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
    return [pair for pair, _, fault in encode_pairs(run.recipe, run.tokenizers, pairs) if fault is None]


def _data_files(run: Run) -> dict[str, str | None]:
    """Returns name and SHA-256 of each file the run was trained on; None for a file that no longer exists."""
    data = run.recipe.data
    entries = [*data.train, *(data.dev or []), *(data.test or [])]
    files = [path for entry in entries for path in file_paths(entry)]
    return {file.name: _sha256(file) if file.is_file() else None for file in files}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
