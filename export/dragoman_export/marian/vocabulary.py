"""Reads the vocabularies of Marian: vocab.yml, or a SentencePiece model whose pieces are the vocabulary."""

import re
from pathlib import Path
from typing import Any

from dragoman_export.errors import ExportError

END, UNKNOWN = "</s>", "<unk>"
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_ESCAPED = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}


def read_vocabulary(path: Path) -> dict[str, int]:
    """Reads the ids of a vocabulary by token.

    Raises:
        ExportError: The file is missing or damaged, lacks the end or unknown token, or gives an id twice or not at all.
    """
    ids = dict(enumerate_pieces(path)) if path.suffix == ".spm" else _read_yaml(path)
    if missing := [token for token in (END, UNKNOWN) if token not in ids]:
        raise ExportError(f"{path}: {missing[0]} is missing")
    if sorted(ids.values()) != list(range(len(ids))):
        raise ExportError(f"{path}: expected every id from 0 to {len(ids) - 1} once")
    return ids


def load_pieces(path: Path) -> Any:
    """Loads a SentencePiece model.

    Raises:
        ExportError: The file is missing or damaged.
    """
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from None
    except RuntimeError:
        raise ExportError(f"{path}: is not a SentencePiece model") from None


def enumerate_pieces(path: Path) -> list[tuple[str, int]]:
    """Returns the pieces of a SentencePiece model, which Marian trains with </s> first and <unk> second."""
    processor = load_pieces(path)
    return [(processor.id_to_piece(index), index) for index in range(processor.get_piece_size())]


def _read_yaml(path: Path) -> dict[str, int]:
    """Reads a map of tokens to ids, one per line.

    A parser of all of YAML would give some tokens a meaning: "<<", "no", line separators within a line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ExportError(f"{path}: is not text in UTF-8") from None
    ids: dict[str, int] = {}
    token: str | None = None  # of an explicit key, whose id is on the next line
    for number, line in enumerate((line.rstrip("\r") for line in lines), 1):
        if not line.strip() or line in ("---", "..."):
            continue
        if token is None and line.startswith("? "):
            token = line[2:]
            continue
        name, _, value = ("", "", line.removeprefix(":")) if token is not None else line.rpartition(":")
        name, token = token if token is not None else name, None
        if not value.strip().isdecimal() or not name:
            raise ExportError(f"{path}: line {number} is {line[:40]!r}; expected a token, a colon and its id")
        name = _unquoted(name.strip(" "))
        if name in ids:
            raise ExportError(f"{path}: line {number} names {name!r} again")
        ids[name] = int(value)
    return ids


def _unquoted(name: str) -> str:
    if len(name) > 1 and name[0] == name[-1] == '"':
        return _ESCAPE.sub(_character, name[1:-1])
    if len(name) > 1 and name[0] == name[-1] == "'":
        return name[1:-1].replace("''", "'")
    return name


def _character(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _ESCAPED.get(escape, escape)
