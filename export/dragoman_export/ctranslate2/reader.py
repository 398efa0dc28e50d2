"""Reads a model converted for CTranslate2, with the tokenizer of a Hugging Face directory, as a bundle's original."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from dragoman_export.ctranslate2.model import Converted, read_converted
from dragoman_export.errors import ExportError
from dragoman_export.huggingface.assembly import assemble, check_end, limits_of, special_tokens, with_targets
from dragoman_export.huggingface.generation import FILE, GenerationSettings, generation_part, read_generation
from dragoman_export.huggingface.hub import resolve
from dragoman_export.huggingface.text import ImportedText, read_text
from dragoman_export.original import Original, Vocabulary
from dragoman_server.bundle.manifest import Generation

# Names for rows without a token. The converter also gives them to languages that it does not know.
FILLER = re.compile(r"madeupword\d+|<extra_id_\d+>")
BEAMS, LONGEST_ANSWER = 2, 256  # defaults of ctranslate2.Translator.translate_batch


def read_original(name: str, tokenizer: Path, ignore: Collection[str], say: Callable[[str], None]) -> Original:
    """Reads a model.

    Args:
        name: Directory of the converted model.
        tokenizer: Hugging Face directory with the tokenizer, and perhaps generation_config.json.
        ignore: Generation settings to ignore although they would change tokens.
        say: Prints a line for the user.

    Raises:
        ExportError: The model or the tokenizer cannot be read, or they do not belong together.
    """
    folder = Path(name)
    for place, option in ((folder, "--from-ctranslate2"), (tokenizer, "--tokenizer")):
        if not place.is_dir():
            raise ExportError(f"{option} {place} is not a directory")
    say(f"reading {folder}")
    text = read_text(tokenizer)
    pad = text.pad
    if pad is None:
        raise ExportError(f"{tokenizer}: the tokenizer has no padding token")
    converted = read_converted(folder, pad)
    for side, vocabulary, tokens in (
        ("source", text.source, converted.source),
        ("target", text.target, converted.target),
    ):
        _check_tokens(f"{tokenizer}: the {side} tokenizer", vocabulary, tokens, folder)
    check_end(str(tokenizer), text, converted.end)
    if pad >= len(converted.target):
        raise ExportError(
            f"{tokenizer}: the padding token has the id {pad}, but the model has {len(converted.target)} target "
            "tokens; models with fewer target than source tokens can't be imported from CTranslate2"
        )
    settings = _settings(tokenizer, converted, ignore)
    start = _start(tokenizer, text, converted, settings)
    text = with_targets(text, start, settings.forced_first if settings else None)
    longest = limits_of(converted.model).max_target_tokens
    if settings is None:
        generation = _defaults(min(LONGEST_ANSWER, longest) - text.forces_language)
    else:
        generation = generation_part(settings, longest, forces_language=text.forces_language)
    return assemble(
        name,
        converted.model,
        text,
        special_tokens(text, pad=pad, begin=start, end=converted.end),
        generation,
        replace(resolve(str(tokenizer))[1], name=folder.resolve().name),
        {"library": "CTranslate2"},
    )


def _check_tokens(what: str, vocabulary: Vocabulary, tokens: Sequence[str], folder: Path) -> None:
    """Refuses a tokenizer whose tokens are not those of the model."""
    for token, index in vocabulary.tokenizer.get_vocab().items():
        # Single characters may be bytes, which have other names here.
        if index >= len(tokens) or len(token) == 1 or FILLER.fullmatch(tokens[index]):
            continue
        if token != tokens[index]:
            raise ExportError(
                f"{what} is of another model than {folder}: token {index} is {token!r} there, {tokens[index]!r} here"
            )


def _settings(tokenizer: Path, converted: Converted, ignore: Collection[str]) -> GenerationSettings | None:
    """Returns the generation settings beside the tokenizer, with the special tokens of the model; None without any."""
    if not (tokenizer / FILE).exists():
        return None
    tokens = SimpleNamespace(decoder_start_token_id=converted.start, eos_token_id=converted.end)
    settings = read_generation(tokenizer, tokens, ignore, len(converted.target))
    if settings.end != converted.end:
        raise ExportError(f"{tokenizer / FILE}: eos_token_id is {settings.end}; the model's is {converted.end}")
    return settings if converted.start is None else replace(settings, start=converted.start)


def _start(tokenizer: Path, text: ImportedText, converted: Converted, settings: GenerationSettings | None) -> int:
    """Returns the id of the first decoder input."""
    if converted.start is not None:
        return converted.start
    if settings is not None:
        return settings.start
    language = text.languages.get(text.target_language)
    if language is None or language.target is None:
        raise ExportError(
            f"{tokenizer}: the model starts with the token of a language, and nothing says which; expected tgt_lang in "
            f"tokenizer_config.json, or {FILE} with decoder_start_token_id"
        )
    return language.target


def _defaults(most: int) -> Generation:
    """Returns what CTranslate2 does without options."""
    return Generation(
        options={
            "beam_size": BEAMS,
            "length_penalty": 1.0,
            "stopping": "STOPPING_EARLY",
            "max_new_tokens": most,
            "min_new_tokens": 1,
        }
    )
