"""Random models of every layout, and the texts to ask them."""

import json
import random
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from dragoman import InLanguage
from dragoman_server.messages.blank_text import is_blank
from tests.support.huggingface_directories import fuzzed_texts
from tests.support.huggingface_models import LONGEST, write_model

# Large enough that answers depend on the whole source, small enough that rounding hardly ever decides.
SHARPNESS = 3.0


@dataclass(frozen=True)
class Family:
    """A layout of published models.

    Attributes:
        name: Name for tables.
        seed: Seed of parameters with which answers have all lengths.
    """

    name: str
    seed: int


FAMILIES: Mapping[str, Family] = {
    "marian": Family("Marian, joint vocabulary", 7),
    "marian-split": Family("Marian, two vocabularies", 1),
    "bart": Family("BART", 5),
    "plbart": Family("PLBart", 3),
    "mbart": Family("mBART", 2),
    "mbart50": Family("mBART-50", 1),
    "m2m_100": Family("M2M-100", 6),
    "nllb": Family("NLLB-200", 4),
    "pegasus": Family("Pegasus", 1),
    "blenderbot": Family("BlenderBot", 2),
    "blenderbot-small": Family("BlenderBot, small", 3),
    "t5": Family("T5 v1.0", 6),
    "t5-bytes": Family("T5 v1.1, byte fallback", 3),
    "byt5": Family("ByT5", 9),
    "madlad": Family("MADLAD-400", 2),
    "mt5": Family("mT5", 6),
    "umt5": Family("umT5", 5),
}
# As in published models. The classes of M2M-100 and mBART scale embeddings by default. `normalize_before` and the like
# mean nothing to transformers' classes, but CTranslate2 reads them.
_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "marian": {"scale_embedding": True},
    "marian-split": {"scale_embedding": True},
    "bart": {"normalize_before": False},
    "pegasus": {"scale_embedding": True, "normalize_before": True, "normalize_embedding": False},
    "mbart": {"normalize_before": True},
    "mbart50": {"normalize_before": True, "tokenizer_class": "MBart50Tokenizer"},
}
# Vocabularies without rows that no token has, which CTranslate2 takes of these only.
_EXACT = ("marian", "mbart", "pegasus")
# Further settings of published models, for both sides.
_GENERATION: Mapping[str, Mapping[str, Any]] = {
    "marian": {"renormalize_logits": True, "bad_words_ids": [[982]]},  # the padding
    "bart": {"forced_bos_token_id": 0},
}
# The codes of requests: of sources and of targets.
_LANGUAGES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "marian": ((), ("deu", "fra")),
    "plbart": (("java", "python", "en_XX"), ("en_XX", "java")),
    "mbart": (("en_XX", "fr_XX", "ja_XX"), ()),
    "mbart50": (("en_XX", "uk_UA", "ja_XX"), ("de_DE", "fr_XX", "en_XX")),
    "m2m_100": (("en", "de", "zh"), ("de", "fr", "en")),
    "nllb": (("eng_Latn", "ukr_Cyrl", "zho_Hans"), ("deu_Latn", "fra_Latn", "eng_Latn")),
    "madlad": ((), ("de", "en", "fr")),
}
_PREFIXES = {"marian": ">>{}<< ", "madlad": "<2{}> "}
_LONGEST = {"byt5": 160}  # tokens of a source; of others as many as tables of positions have rows


@dataclass(frozen=True)
class Question:
    """A text with its languages.

    Attributes:
        source: The text as the client sends it.
        ids: Its token ids, by transformers' tokenizer.
        forced: First token of its answers; None for any.
    """

    source: InLanguage
    ids: tuple[int, ...]
    forced: int | None


@dataclass(frozen=True)
class Subject:
    """A model to compare.

    Attributes:
        layout: One of FAMILIES.
        directory: Its Hugging Face directory.
        bundle: The bundle that was imported from it.
    """

    layout: str
    directory: Path
    bundle: Path


def write_subject(layout: str, folder: Path) -> Path:
    """Writes a random model with its tokenizer and settings to folder / layout.

    Args:
        layout: One of FAMILIES.
        folder: An existing directory.
    """
    seed = FAMILIES[layout].seed
    config = _CONFIG.get(layout, {})
    directory = write_model(folder, layout, SHARPNESS, config, filled=layout not in _EXACT, varied=seed)
    file = directory / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | dict(_GENERATION.get(layout, {}))))
    return directory


def make_subject(layout: str, directories: Path, repository: Path, export: Callable[[Path, Path], None]) -> Subject:
    """Writes a random model, and imports it, unless an earlier run has.

    Args:
        layout: One of FAMILIES.
        directories: Existing folder of the Hugging Face directories.
        repository: Existing folder of the bundles, a model repository.
        export: Imports a directory as a bundle.
    """
    directory, bundle = directories / layout, repository / layout / "1"
    if not bundle.exists():
        shutil.rmtree(directory, ignore_errors=True)
        write_subject(layout, directories)
        bundle.parent.mkdir(exist_ok=True)
        export(directory, bundle)
    return Subject(layout, directory, bundle)


def read_tokenizer(directory: Path) -> Any:
    """Returns transformers' own tokenizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sacremoses, which Marian's class never calls
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)


def make_questions(subject: Subject, tokenizer: Any, forced: int | None, count: int, seed: int) -> list[Question]:
    """Returns fuzzed texts that fit into the model, each with languages drawn for it.

    Args:
        tokenizer: From `read_tokenizer`.
        forced: First token of all answers unless languages force one; None for any.
        count: Number of texts.
        seed: Seed of texts and languages.
    """
    draw = random.Random(seed)
    sources, targets = _LANGUAGES.get(subject.layout, ((), ()))
    questions: list[Question] = []
    for text in fuzzed_texts(4 * count, seed):
        source, target = (draw.choice(codes) if codes else None for codes in (sources, targets))
        if source is not None:
            tokenizer.src_lang = _token(tokenizer, source)
        in_text = _PREFIXES.get(subject.layout, "").format(target)
        ids = tuple(tokenizer(in_text + text).input_ids)
        if is_blank(text) or not 0 < len(ids) <= _LONGEST.get(subject.layout, LONGEST):
            continue
        first = _id(tokenizer, target) if target is not None and not in_text else forced
        questions.append(Question(InLanguage(text, source, target), ids, first))
        if len(questions) == count:
            return questions
    raise AssertionError("too few texts fit into the model")


def _token(tokenizer: Any, code: str) -> str:
    """Returns the name of a language in the tokenizer's attributes."""
    return f"__{code}__" if type(tokenizer).__name__ == "PLBartTokenizer" else code


def _id(tokenizer: Any, code: str) -> int:
    if type(tokenizer).__name__ == "M2M100Tokenizer":
        return int(tokenizer.get_lang_id(code))
    return int(tokenizer.convert_tokens_to_ids(_token(tokenizer, code)))
