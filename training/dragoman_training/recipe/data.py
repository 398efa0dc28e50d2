"""The section `data` of recipes: files, the columns of their pairs, and which pairs are left out."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from dragoman_training.recipe.section import Section

# The tags of unions only separate pydantic's errors; the brackets distinguish them from recipe keys.
Column = Annotated[
    Annotated[int, Field(ge=1), Tag("(number)")] | Annotated[str, Field(min_length=1), Tag("(name)")],
    Discriminator(lambda value: "(name)" if isinstance(value, str) else "(number)"),
]


def _is_language(code: str) -> str:
    if not re.fullmatch(r"\w+", code):
        raise ValueError(f"expected the code of a language, letters, digits and _ such as de, but got {code!r}")
    return code


Language = Annotated[str, AfterValidator(_is_language)]
Weight = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class Columns(Section):
    """The columns of a tab-separated file: numbers from 1 on, or names in its first line."""

    source: Column
    target: Column

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> "Columns":
        if isinstance(self.source, int) != isinstance(self.target, int):
            raise ValueError("source and target must both be numbers or both be names of columns")
        if self.source == self.target:
            raise ValueError(f"source and target are the same column, {self.source}")
        return self


class PairsFile(Section):
    """A file of tab-separated pairs with choices of its own."""

    file: Path
    columns: Columns | None = None
    source_language: Language | None = None
    target_language: Language | None = None
    weight: Weight = 1.0


class ParallelFiles(Section):
    """Two parallel files: line N of one belongs to line N of the other."""

    source: Path
    target: Path
    source_language: Language | None = None
    target_language: Language | None = None
    weight: Weight = 1.0


def _kind(value: Any) -> str:
    """Returns the tag of a data file."""
    if isinstance(value, PairsFile) or (isinstance(value, dict) and "file" in value):
        return "(columns)"
    return "(file)" if isinstance(value, str | Path | int | float | bool | None) else "(pair)"


DataFile = Annotated[
    Annotated[Path, Tag("(file)")] | Annotated[PairsFile, Tag("(columns)")] | Annotated[ParallelFiles, Tag("(pair)")],
    Discriminator(_kind),
]


def target_language(entry: Path | PairsFile | ParallelFiles) -> str | None:
    """Returns the language of a data file's targets, if the recipe names it."""
    return None if isinstance(entry, Path) else entry.target_language


def source_language(entry: Path | PairsFile | ParallelFiles) -> str | None:
    """Returns the language of a data file's sources, if the recipe names it, as some imported models need."""
    return None if isinstance(entry, Path) else entry.source_language


def weight(entry: Path | PairsFile | ParallelFiles) -> float:
    """Returns how often a pair of a training file is seen, relative to those of other files."""
    return 1.0 if isinstance(entry, Path) else entry.weight


def file_paths(entry: Path | PairsFile | ParallelFiles) -> list[Path]:
    """Returns the paths of a data file: two of parallel files."""
    if isinstance(entry, Path):
        return [entry]
    return [entry.file] if isinstance(entry, PairsFile) else [entry.source, entry.target]


class DataConfig(Section):
    """The data files; a plain path is a file of tab-separated pairs, and `.gz` is decompressed."""

    train: list[DataFile] = Field(min_length=1)
    dev: list[DataFile] | None = None
    dev_held_out_sources: int = Field(default=0, ge=0)
    test: list[DataFile] | None = None
    columns: Columns | None = None
    temperature: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    prepared: Path | None = None
    overlap: Literal["drop", "keep"] = "drop"
    overlap_by: Literal["source", "either"] = "source"
    duplicates: Literal["keep", "drop"] = "keep"
    max_length_ratio: float | None = Field(default=None, gt=1)
    on_bad_line: Literal["skip", "refuse"] = "refuse"

    @model_validator(mode="after")
    def _dev_is_unique(self) -> "DataConfig":
        if self.dev and self.dev_held_out_sources:
            raise ValueError("dev and dev_held_out_sources are mutually exclusive; set only one")
        return self

    @model_validator(mode="after")
    def _languages_agree(self) -> "DataConfig":
        for key, language in (("source_language", source_language), ("target_language", target_language)):
            trained = {code for code in map(language, self.train) if code is not None}
            for name in ("train", "dev", "test"):
                for entry in getattr(self, name) or []:
                    code, file = language(entry), file_paths(entry)[0]
                    if trained and code is None:
                        raise ValueError(f"{name}: {file} has no {key}; all files need one if one of train has")
                    if code is not None and code not in trained:
                        raise ValueError(f"{name}: the {key} of {file} is {code}, which no file of train has")
        return self

    @model_validator(mode="after")
    def _only_training_has_weights(self) -> "DataConfig":
        for name in ("dev", "test"):
            for entry in getattr(self, name) or []:
                if weight(entry) != 1:
                    raise ValueError(f"{name}: {file_paths(entry)[0]} has a weight, which only files of train may have")
        return self

    @property
    def target_languages(self) -> list[str]:
        """The languages of the training targets, sorted; empty for a corpus that names none."""
        return sorted({code for code in map(target_language, self.train) if code is not None})

    @property
    def languages(self) -> list[str]:
        """The languages that training files name, of sources and targets, sorted."""
        sources = {code for code in map(source_language, self.train) if code is not None}
        return sorted(sources.union(self.target_languages))
