"""Converts the vocabularies of a Marian model: vocab.yml and SentencePiece models, or these models alone."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.text import ImportedText, read_text
from dragoman_export.marian.model import MarianModel
from dragoman_export.marian.vocabulary import load_pieces, read_vocabulary

VOCABULARIES, PIECES = (".yml", ".yaml"), ".spm"
SETTINGS = "decoder.yml"
PAD = "<pad>"  # transformers' name for the token with a zero embedding
SIDES = ("source", "target")


@dataclass(frozen=True)
class TextFiles:
    """The files of source and target; the same one twice if both share it.

    Attributes:
        vocabularies: Ids by token: .yml files, or SentencePiece models.
        pieces: SentencePiece models that split texts.
    """

    vocabularies: tuple[Path, Path]
    pieces: tuple[Path, Path]


def read_marian_text(places: Sequence[Path], marian: MarianModel) -> ImportedText:
    """Reads the conversion of texts to token ids.

    Args:
        places: A Hugging Face directory, a directory with Marian's files, or these files.
        marian: The model.

    Raises:
        ExportError: Files are missing, damaged or ambiguous, or they are of another model.
    """
    if len(places) == 1 and _is_hugging_face(places[0]):
        text = read_text(places[0])
        if text.pad != marian.start:
            raise ExportError(
                f"{places[0]}: the padding token has the id {text.pad}, but the model has {marian.start} tokens; it is "
                "the tokenizer of another model"
            )
        return text
    files = _find(places)
    ids = [read_vocabulary(path) for path in files.vocabularies]
    for side, path, found, expected in zip(
        SIDES, files.vocabularies, ids, (marian.source_tokens, marian.target_tokens), strict=True
    ):
        if len(found) != expected:
            raise ExportError(
                f"{path}: holds {len(found)} {side} tokens, but the model has {expected}; it is that of another model"
            )
    for path in files.pieces:
        load_pieces(path)
    with tempfile.TemporaryDirectory() as scratch:
        text = _convert(Path(scratch), files, ids, marian.start)
    source, target = (
        replace(vocabulary, pieces=path)
        for vocabulary, path in zip((text.source, text.target), files.pieces, strict=True)
    )
    return replace(text, source=source, target=target)


def _convert(folder: Path, files: TextFiles, ids: Sequence[dict[str, int]], pad: int) -> ImportedText:
    """Converts the files as transformers' own converter does, which adds a padding token."""
    separate = ids[0] != ids[1]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), ids, strict=True):
        (folder / name).write_text(json.dumps(vocabulary | {PAD: pad}), encoding="utf-8")
    for name, path in zip(("source.spm", "target.spm"), files.pieces, strict=True):
        shutil.copyfile(path, folder / name)
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    return read_text(folder)


def _is_hugging_face(place: Path) -> bool:
    names = ("vocab.json", "tokenizer_config.json")
    return place.is_dir() and not _named_vocabularies(place) and any((place / name).exists() for name in names)


def _named_vocabularies(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in VOCABULARIES and "vocab" in path.name)


def _find(places: Sequence[Path]) -> TextFiles:
    vocabularies, pieces = [], []
    for place in places:
        if place.is_dir():
            vocabularies += _named_vocabularies(place)
            pieces += sorted(place.glob(f"*{PIECES}"))
        elif not place.exists():
            raise ExportError(f"--tokenizer {place}: no such file or directory")
        elif place.suffix in VOCABULARIES:
            vocabularies.append(place)
        elif place.suffix == PIECES:
            pieces.append(place)
        else:
            raise ExportError(f"--tokenizer {place}: expected a vocabulary (.yml) or a SentencePiece model (.spm)")
    where = ", ".join(map(str, places))
    if not pieces:
        raise ExportError(f"--tokenizer {where}: expected SentencePiece models (.spm), which split the texts")
    return TextFiles(_pair(vocabularies or pieces, where), _pair(pieces, where))


def _pair(paths: Sequence[Path], where: str) -> tuple[Path, Path]:
    """Returns the files of source and target: of two, in the order of their names or as given."""
    if len(paths) > len(SIDES):
        names = ", ".join(path.name for path in paths)
        raise ExportError(
            f"--tokenizer {where}: several files for one side ({names}); name those of the model one by one"
        )
    first, last = paths[0], paths[-1]
    if any(word in first.name for word in ("trg", "tgt", "target")):
        first, last = last, first
    return first, last
