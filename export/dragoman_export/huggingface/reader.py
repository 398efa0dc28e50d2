"""Reads a Hugging Face model as the original of a bundle."""

from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.generation import GenerationSettings, read_generation
from dragoman_export.huggingface.hub import resolve
from dragoman_export.huggingface.model import read_config, read_model
from dragoman_export.huggingface.text import ImportedText, read_text
from dragoman_export.original import Original
from dragoman_server.bundle.manifest import Generation, LanguageTokens, Limits, SpecialTokens, Text


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
    text = _with_default_target(read_text(folder), settings)
    model = read_model(folder, config)
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
        generation=_generation(settings, limits),
        origin={key: value for key, value in asdict(origin).items() if value},
        license=origin.license,
    )
    _check_vocabulary(folder, original)
    return original


def _with_default_target(text: ImportedText, settings: GenerationSettings) -> ImportedText:
    """Makes the language of the forced first token the default target language."""
    for code, language in text.languages.items():
        if text.forces_language and language.target is not None and language.target == settings.forced_first:
            return replace(text, target_language=code)
    return text


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


def _generation(settings: GenerationSettings, limits: Limits) -> Generation:
    return Generation(options={"max_new_tokens": min(settings.max_new_tokens, limits.max_target_tokens)})


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
