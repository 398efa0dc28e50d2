"""Checks the files of a tokenizer: where one is missing, the library may make an empty tokenizer."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.directory import read_object
from dragoman_export.huggingface.library import reason

CONFIG, WHOLE = "tokenizer_config.json", "tokenizer.json"
LARGEST_ID = 2**31 - 1
OPTIONAL = ("tokenizer_config_file", "tokenizer_file", "target_vocab_file")  # keys of `vocab_files_names`


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Reads tokenizer_config.json, which may be missing.

    Raises:
        ExportError: It is not a JSON object, or names no class.
    """
    path = folder / CONFIG
    document = read_object(path) if path.exists() else {}
    name = document.get("tokenizer_class")
    if not isinstance(name, str | None):
        raise ExportError(f"{path}: tokenizer_class is {name!r}; expected the name of a class")
    return document


def check_text_files(folder: Path, config: Mapping[str, Any]) -> None:
    """Checks the files that the directory's tokenizer class needs.

    Args:
        config: The content of tokenizer_config.json.

    Raises:
        ExportError: A file is missing or damaged, or the class is unknown.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    name = config.get("tokenizer_class") or _implied_class(folder)
    found: Any = tokenizer_class_from_name(name) if name else None
    whole = found is None or issubclass(found, PreTrainedTokenizerFast)
    if whole and (folder / WHOLE).exists():
        _check_whole(folder / WHOLE)
        return
    if found is None:
        known = f"; transformers does not have the class {name}, which could do without it" if name else ""
        raise ExportError(f"{folder / WHOLE} is missing{known}")
    needed = [file for key, file in found.vocab_files_names.items() if key not in OPTIONAL]
    if config.get("separate_vocabs"):
        needed.append("target_vocab.json")
    for file in needed:
        path = folder / file
        if not path.is_file():
            alternative = f" or {WHOLE}" if whole else ""
            raise ExportError(f"{path} is missing; the tokenizer, {found.__name__}, needs it{alternative}")
        (_CHECKS.get(file) or _CHECKS.get(path.suffix) or _check_readable)(path)


def _implied_class(folder: Path) -> str:
    """Returns the class that config.json names or its model type implies; empty for none."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    path = folder / "config.json"
    document = read_object(path) if path.is_file() else {}
    name = document.get("tokenizer_class") or TOKENIZER_MAPPING_NAMES.get(document.get("model_type", ""))
    return str(name or "")


def _check_whole(path: Path) -> None:
    read_object(path)
    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ExportError(f"{path}: is not a tokenizer ({reason(error)})") from None


def _check_ids(path: Path) -> None:
    for token, id_ in read_object(path).items():
        if not isinstance(id_, int) or isinstance(id_, bool) or not 0 <= id_ <= LARGEST_ID:
            raise ExportError(f"{path}: the id of {token!r} is {id_!r}; expected a number from 0")


def _check_pieces(path: Path) -> None:
    import sentencepiece

    try:
        sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError) as error:
        raise ExportError(f"{path}: is not a SentencePiece model ({reason(error)})") from None


def _check_merges(path: Path) -> None:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path}: cannot be read as text in UTF-8 ({error})") from None
    merges = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#version")]
    if not merges:
        raise ExportError(f"{path}: expected merges, one pair of pieces a line; there is none")
    for number, line in merges:
        if len(line.rstrip("\r").split(" ")) != 2:
            raise ExportError(f"{path}: line {number} is {line!r}; expected a pair of pieces")


def _check_readable(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise ExportError(f"{path}: cannot be read ({error.strerror})") from None


_CHECKS: Mapping[str, Callable[[Path], None]] = {
    ".json": _check_ids,
    ".model": _check_pieces,
    ".spm": _check_pieces,
    "merges.txt": _check_merges,
}
