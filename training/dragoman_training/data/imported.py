"""How the texts of an imported model become token ids: its own special tokens, languages, and ids around a text.

A run that starts from a published model has these rules in imported.json; without the file, `data.tokenizers` holds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from dragoman_training.data.languages import named_languages, split_language
from dragoman_training.data.tokenizers import SpecialIds
from dragoman_training.errors import DataError, missing_extra
from dragoman_training.files import IMPORTED_FILE, SOURCE_PIECES, TARGET_PIECES, write_text

Side = Literal["source", "target"]
TextPart = int | Literal["source_language", "target_language"]
SHOWN = 5


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LanguageIds(_Part):
    """Token ids of a language on each side; None if it cannot be chosen there."""

    source: int | None = None
    target: int | None = None


class TextRules(_Part):
    """What surrounds a source text, in the format of a bundle's manifest."""

    before: list[TextPart] = []
    after: list[TextPart] = []
    prefix: str = ""
    languages: dict[str, LanguageIds] = {}
    source_language: str = ""
    target_language: str = ""
    forces_language: bool = False


class ImportedRules(_Part):
    """The rules of an imported model.

    Attributes:
        tokens: Its special tokens.
        vocabularies: Rows of its tables, of source and target; more than the tokenizer has tokens in some models.
        text: What surrounds a source.
        target_before: Ids that every target starts with, after the decoder's first input; they are learned too.
        target_after: Ids that end a target.
        manifest: What a bundle says of the model beside this, handed back by export.
    """

    tokens: SpecialIds
    vocabularies: tuple[int, int]
    text: TextRules
    target_before: list[TextPart]
    target_after: list[TextPart]
    manifest: dict[str, Any] = Field(default={})

    @staticmethod
    def load(folder: Path) -> "ImportedRules | None":
        """Reads the rules in a folder; None if there are none.

        Raises:
            DataError: The file is damaged.
        """
        path = folder / IMPORTED_FILE
        if not path.exists():
            return None
        try:
            return ImportedRules.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            raise DataError(f"{path}: cannot be read as the rules of an imported model") from None

    def save(self, folder: Path) -> None:
        """Writes the rules to a folder."""
        write_text(folder / IMPORTED_FILE, self.model_dump_json(indent=1) + "\n")

    def languages(self, side: Side) -> dict[str, int]:
        """Returns the token of each language that a data file may name for a side; empty if it has no choice."""
        parts = {*self.text.before, *self.text.after}
        framed = f"{side}_language" in parts or f"{{{side}_language}}" in self.text.prefix
        found = {code: ids.source if framed else ids.target for code, ids in self.text.languages.items()}
        if not framed and not (side == "target" and self.text.forces_language):
            return {}
        return {code: id_ for code, id_ in found.items() if id_ is not None}

    def problem(self, side: Side, code: str | None) -> str | None:
        """Returns why a data file cannot name this language for a side, or none; None if it can."""
        known = self.languages(side)
        default = self.text.source_language if side == "source" else self.text.target_language
        if code is None:
            if not known or default in known:
                return None
            return f"has no {side}_language, and the model has no default; expected one of {_examples(known)}"
        if not known:
            return f"has a {side}_language, but the model has no choice of {side} languages"
        return None if code in known else f"has the {side}_language {code}; expected one of {_examples(known)}"


class _Marked(NamedTuple):
    """A text without the start that names its languages, and these, by side."""

    text: str
    languages: dict[Side, str]


class ImportedEncoder:
    """Encodes texts by the rules of an imported model.

    Texts start with their languages where a data file names them, see `with_languages`.

    Args:
        rules: The rules.
        source, target: Tokenizer of each side.
        folder: Where SentencePiece models are, if the model has any.
    """

    def __init__(self, rules: ImportedRules, source: Tokenizer, target: Tokenizer, folder: Path) -> None:
        self.rules, self._source, self._target, self._folder = rules, source, target, folder

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of sources, complete.

        Raises:
            DataError: A text names no language, and the model has no default.
        """
        rules, marked = self.rules.text, [self._split(text) for text in texts]
        prefixes = (rules.prefix.replace("{target_language}", one.languages.get("target", "")) for one in marked)
        bare = self._segment_source([prefix + one.text for prefix, one in zip(prefixes, marked, strict=True)])
        return [
            [*self._ids(rules.before, "source", one), *ids, *self._ids(rules.after, "source", one)]
            for one, ids in zip(marked, bare, strict=True)
        ]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of targets, complete but for the decoder's first input; errors as of sources."""
        rules, marked = self.rules, [self._split(text) for text in texts]
        bare = self._segment_target([one.text for one in marked])
        return [
            [*self._ids(rules.target_before, "target", one), *ids, *self._ids(rules.target_after, "target", one)]
            for one, ids in zip(marked, bare, strict=True)
        ]

    def target_start(self, text: str) -> list[int]:
        """Returns the ids that the target of a source starts with."""
        return self._ids(self.rules.target_before, "target", self._split(text))

    def _split(self, text: str) -> _Marked:
        rules = self.rules.text
        start, rest = split_language(text, rules.languages)
        source, target = named_languages(start)
        return _Marked(rest, {"source": source or rules.source_language, "target": target or rules.target_language})

    def _ids(self, parts: Sequence[TextPart], side: Side, marked: _Marked) -> list[int]:
        ids = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
                continue
            named: Side = "source" if part == "source_language" else "target"
            tokens = self.rules.text.languages.get(marked.languages[named])
            id_ = None if tokens is None else tokens.source if side == "source" else tokens.target
            if id_ is None:
                raise DataError(f"a text has no {part}; name it in the data files, as data.train says")
            ids.append(id_)
        return ids

    @cached_property
    def _segment_source(self) -> Callable[[Sequence[str]], list[list[int]]]:
        return _segmenter(self._source, self._folder / SOURCE_PIECES, self.rules.tokens.unknown)

    @cached_property
    def _segment_target(self) -> Callable[[Sequence[str]], list[list[int]]]:
        return _segmenter(self._target, self._folder / TARGET_PIECES, self.rules.tokens.unknown)


def _segmenter(tokenizer: Tokenizer, pieces: Path, unknown: int) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns what splits texts into ids: the tokenizer, or a SentencePiece model whose pieces are looked up in it."""
    if not pieces.exists():
        return lambda texts: [e.ids for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
    try:
        from sentencepiece import SentencePieceProcessor  # imported here: few models need it
    except ModuleNotFoundError as error:
        raise DataError(f"{pieces}: {missing_extra(error, 'import')}") from None
    try:
        encode: Any = SentencePieceProcessor(model_file=str(pieces)).encode
    except (OSError, RuntimeError) as error:
        raise DataError(f"{pieces}: not a SentencePiece model ({error})") from None
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    return lambda texts: [[vocabulary.get(p, unknown) for p in found] for found in encode(list(texts), out_type=str)]


def _examples(codes: Mapping[str, int]) -> str:
    ordered = sorted(codes)
    more = f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else ""
    return ", ".join(ordered[:SHOWN]) + more
