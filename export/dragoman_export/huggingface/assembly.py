"""Puts a model, its text rules and its generation settings together as the original of a bundle."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.hub import Origin
from dragoman_export.huggingface.text import ImportedText
from dragoman_export.original import Original, TargetFrame
from dragoman_server.bundle.manifest import Generation, LanguageTokens, Limits, SpecialTokens, Text
from dragoman_training.model import Transformer


def assemble(
    place: str,
    model: Transformer,
    text: ImportedText,
    tokens: SpecialTokens,
    generation: Generation,
    origin: Origin,
    provenance: Mapping[str, Any],
) -> Original:
    """Returns the original of a bundle, without sources.

    Args:
        place: Where it was read, for messages.
        provenance: What the manifest keeps under `training`.

    Raises:
        ExportError: The tokenizer has ids that the model lacks.
    """
    original = Original(
        place,
        model,
        text.source,
        text.target,
        tokens,
        limits_of(model),
        sources=(),
        text=_manifest_text(text),
        targets=TargetFrame(text.target_before, text.target_after),
        provenance=provenance,
        generation=generation,
        origin={key: value for key, value in asdict(origin).items() if value},
        license=origin.license,
    )
    _check_vocabulary(original)
    return original


def limits_of(model: Transformer) -> Limits:
    """Returns the longest sequences of a model."""
    return Limits(max_source_tokens=model.config.max_source_length, max_target_tokens=model.config.max_target_length)


def with_targets(text: ImportedText, start: int, forced_first: int | None) -> ImportedText:
    """Returns the text rules with the target languages of the generation settings.

    The language of a forced first token is the default one. A language that is itself the first decoder input, as of a
    model for one pair of languages (mBART, cc25), is the only one.
    """
    if not text.forces_language:
        return text
    codes = {language.target: code for code, language in text.languages.items()}
    if (only := codes.get(start)) is not None:
        languages = {
            code: language if code == only else replace(language, target=None)
            for code, language in text.languages.items()
        }
        return replace(text, languages=languages, target_language=only, forces_language=False)
    return replace(text, target_language=codes.get(forced_first, text.target_language))


def check_end(place: str, text: ImportedText, end: int) -> None:
    """Refuses a tokenizer whose end token is not that of the model.

    Raises:
        ExportError: The end tokens differ.
    """
    if text.end not in (None, end):
        raise ExportError(
            f"{place}: the tokenizer's end token has the id {text.end}, but eos_token_id is {end}; "
            "it is the tokenizer of another model"
        )


def special_tokens(text: ImportedText, *, pad: int, begin: int, end: int) -> SpecialTokens:
    """Returns the ids of the special tokens; a tokenizer without an unknown token has `pad` in its place."""
    return SpecialTokens(pad=pad, unknown=pad if text.unknown is None else text.unknown, begin=begin, end=end)


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


def _check_vocabulary(original: Original) -> None:
    """Refuses a tokenizer with ids that the model lacks."""
    model = original.model
    for side, vocabulary, rows in (
        ("source", original.source, model.encoder.embedding.tokens.num_embeddings),
        ("target", original.target, model.decoder.projection.out_features),
    ):
        largest = max(vocabulary.tokenizer.get_vocab().values())
        if largest >= rows:
            raise ExportError(
                f"{original.place}: the {side} tokenizer has ids up to {largest}, but the model has {rows} tokens; "
                "it is the tokenizer of another model"
            )
