"""Reads a Hugging Face model as the original of a bundle."""

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.generation import GenerationSettings, generation_part, read_generation
from dragoman_export.huggingface.hub import resolve
from dragoman_export.huggingface.library_logits import compare_with_library
from dragoman_export.huggingface.model import read_config, read_model
from dragoman_export.huggingface.text import ImportedText, read_text
from dragoman_export.original import Original
from dragoman_server.bundle.manifest import LanguageTokens, Limits, SpecialTokens, Text


def read_original(name: str, revision: str | None, ignore: Collection[str], say: Callable[[str], None]) -> Original:
    """Reads a model.

    Args:
        name: A directory, or a repository of the hub.
        revision: Branch, tag or commit of the repository; the newest commit if None.
        ignore: Generation settings to ignore although they would change tokens.
        say: Prints a line for the user.

    Raises:
        ExportError: The model cannot be found, read or imported.
    """
    folder, origin = resolve(name, revision)
    say(f"reading {folder}")
    config = read_config(folder)
    settings = read_generation(folder, config, ignore)
    text = _with_targets(read_text(folder), settings)
    if text.end not in (None, settings.end):
        raise ExportError(
            f"{folder}: the tokenizer's end token has the id {text.end}, but eos_token_id is {settings.end}; "
            "it is the tokenizer of another model"
        )
    model = read_model(folder, config)
    library, difference = compare_with_library(folder, config, model)
    say(f"the model has the logits of {library}; largest difference {difference:.1e}")
    limits = Limits(max_source_tokens=model.config.max_source_length, max_target_tokens=model.config.max_target_length)
    original = Original(
        name,
        model,
        text.source,
        text.target,
        _special_tokens(config, settings, text),
        limits,
        sources=(),
        text=_manifest_text(text),
        provenance={"library": library, "largest_logit_difference": difference},
        generation=generation_part(settings, limits.max_target_tokens, forces_language=text.forces_language),
        origin={key: value for key, value in asdict(origin).items() if value},
        license=origin.license,
    )
    _check_vocabulary(folder, original)
    return original


def _with_targets(text: ImportedText, settings: GenerationSettings) -> ImportedText:
    """Returns the text rules with the target languages of the generation settings.

    The language of a forced first token is the default one. A language that is itself the first decoder input, as of a
    model for one pair of languages (mBART, cc25), is the only one.
    """
    if not text.forces_language:
        return text
    codes = {language.target: code for code, language in text.languages.items()}
    if (only := codes.get(settings.start)) is not None:
        languages = {
            code: language if code == only else replace(language, target=None)
            for code, language in text.languages.items()
        }
        return replace(text, languages=languages, target_language=only, forces_language=False)
    return replace(text, target_language=codes.get(settings.forced_first, text.target_language))


def _special_tokens(config: Any, settings: GenerationSettings, text: ImportedText) -> SpecialTokens:
    pad = config.pad_token_id
    return SpecialTokens(
        pad=pad, unknown=pad if text.unknown is None else text.unknown, begin=settings.start, end=settings.end
    )


def _manifest_text(text: ImportedText) -> Text:
    return Text(
        before=list(text.before),
        after=list(text.after),
        prefix=text.text_prefix,
        languages={
            code: LanguageTokens(source=tokens.source, target=tokens.target) for code, tokens in text.languages.items()
        },
        source_language=text.source_language,
        target_language=text.target_language,
        forces_language=text.forces_language,
    )


def _check_vocabulary(folder: Path, original: Original) -> None:
    """Refuses a tokenizer with ids that the model lacks."""
    model = original.model
    for side, vocabulary, rows in (
        ("source", original.source, model.encoder.embedding.tokens.num_embeddings),
        ("target", original.target, model.decoder.projection.out_features),
    ):
        largest = max(vocabulary.tokenizer.get_vocab().values())
        if largest >= rows:
            raise ExportError(
                f"{folder}: the {side} tokenizer has ids up to {largest}, but the model has {rows} tokens; "
                "it is the tokenizer of another model"
            )
