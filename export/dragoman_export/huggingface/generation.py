"""Generation settings of a Hugging Face directory, from generation_config.json or else config.json."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.directory import read_object
from dragoman_export.huggingface.families import find_family
from dragoman_export.huggingface.library import reason
from dragoman_export.huggingface.setting_reader import SettingReader
from dragoman_server.bundle.manifest import Generation

FILE = "generation_config.json"
NEW_TOKENS = 20  # default of transformers' `generate`
SAMPLED_TOP_K = 50  # likewise


@dataclass(frozen=True)
class GenerationSettings:
    """Settings of `generate` without arguments, under the names of `transformers.GenerationConfig`.

    Lengths count as in our API: tokens after the start token, without the end token.

    Attributes:
        start: First decoder input.
        end: End token of a target.
        forced_first: Required first token; None for any.
        forced_last: Token forced at the maximum length if the target has not ended; None for any.
        max_new_tokens, min_new_tokens: Maximum and minimum length.
        early_stopping: Whether a search ends as soon as `num_beams` hypotheses have finished; "never" lets it run while
            a longer hypothesis might win.
        bad_words: Forbidden sequences, possibly of a single token.
        begin_suppressed: Tokens that can't come first.
        renormalized: Whether probabilities are renormalized after tokens were excluded.
    """

    start: int
    end: int
    max_new_tokens: int
    forced_first: int | None = None
    forced_last: int | None = None
    min_new_tokens: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    begin_suppressed: tuple[int, ...] = ()
    renormalized: bool = False
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None


# Neutral values of unsupported keys.
_WITHOUT_EFFECT: Mapping[str, Collection[Any]] = {
    "assistant_early_exit": (None,),
    "constraints": (None,),
    "diversity_penalty": (None, 0, 0.0),
    "dola_layers": (None,),
    "encoder_repetition_penalty": (None, 1, 1.0),
    "epsilon_cutoff": (None, 0, 0.0),
    "eta_cutoff": (None, 0, 0.0),
    "exponential_decay_length_penalty": (None,),
    "force_words_ids": (None,),
    "guidance_scale": (None, 1, 1.0),
    "max_time": (None,),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0, 0.0),
    "prompt_lookup_num_tokens": (None,),
    "remove_invalid_values": (None, False),
    "sequence_bias": (None, {}),
    "stop_strings": (None, []),
    "token_healing": (None, False),
    "top_h": (None,),
    "watermarking_config": (None,),
}


def read_generation(
    folder: Path, config: Any, ignore: Collection[str] = (), vocabulary: int | None = None
) -> GenerationSettings:
    """Reads the settings of a directory.

    If generation_config.json exists, the settings in config.json are ignored, as by transformers.

    Args:
        config: Configuration from `read_config`.
        ignore: Keys to ignore although they would change tokens.
        vocabulary: Number of target tokens; None for that of the configuration.

    Raises:
        ExportError: The family is not supported, the file is damaged, or a key outside `ignore` has an invalid value or
            would change tokens in an unsupported way; the message names it.
    """
    values, name = _values(folder)
    for key in ignore:
        values.pop(key, None)
    if vocabulary is None:
        vocabulary = find_family(config).vocabularies[1]
    for key, harmless in _WITHOUT_EFFECT.items():
        if values.get(key) not in harmless:
            raise ExportError(
                f"{folder / name}: {key} is {values[key]!r}, which is not supported; "
                f"--ignore {key} imports the model without it"
            )
    try:
        return _settings(SettingReader(values, config, vocabulary))
    except ValueError as error:
        raise ExportError(f"{folder / name}: {error}") from None


def generation_part(settings: GenerationSettings, limit: int, *, forces_language: bool) -> Generation:
    """Returns the settings as the manifest has them.

    Args:
        settings: The settings.
        limit: Longest target in tokens, without the end token.
        forces_language: Whether targets start with the token of a language, whatever the forced first token.
    """
    forced = int(forces_language or settings.forced_first is not None)  # tokens that our lengths do not count
    most = max(min(settings.max_new_tokens, limit) - forced, 1)
    least = min(max(settings.min_new_tokens - forced, 0), most)
    words = [word for word in settings.bad_words if word != (settings.end,)]  # which transformers ignores
    options: dict[str, Any] = {
        "max_new_tokens": most,
        "min_new_tokens": least or None,
        "num_hypotheses": settings.num_return_sequences if settings.num_return_sequences > 1 else None,
        "suppressed_tokens": sorted({word[0] for word in words if len(word) == 1}),
        "suppressed_sequences": [{"token_ids": {"ids": list(word)}} for word in words if len(word) > 1],
        "repetition_penalty": settings.repetition_penalty if settings.repetition_penalty != 1 else None,
        "no_repeat_ngram_size": settings.no_repeat_ngram_size or None,
        "encoder_no_repeat_ngram_size": settings.encoder_no_repeat_ngram_size or None,
    } | (_sampling(settings) if settings.do_sample else _beam(settings))
    return Generation(
        options={name: value for name, value in options.items() if value not in (None, [])},
        forced_first=None if forces_language else settings.forced_first,
        forces_end=settings.forced_last is not None,
        begin_suppressed=list(settings.begin_suppressed),
        renormalized=settings.renormalized,
        whole_history=True,
    )


def _beam(settings: GenerationSettings) -> dict[str, Any]:
    if settings.num_beams == 1:
        return {}
    stopping = {True: "STOPPING_EARLY", False: "STOPPING_CURRENT_LENGTH", "never": "STOPPING_MAX_LENGTH"}
    return {
        "beam_size": settings.num_beams,
        "length_penalty": settings.length_penalty,
        "stopping": stopping[settings.early_stopping],
    }


def _sampling(settings: GenerationSettings) -> dict[str, Any]:
    return {
        "sample": True,
        "temperature": settings.temperature,
        "top_k": SAMPLED_TOP_K if settings.top_k is None else settings.top_k or None,
        "top_p": settings.top_p,
        "min_p": settings.min_p,
        "typical_p": settings.typical_p,
    }


def _values(folder: Path) -> tuple[dict[str, Any], str]:
    """Returns the settings and the name of their file."""
    from transformers import GenerationConfig

    name = FILE if (folder / FILE).exists() else "config.json"
    read_object(folder / name)  # which names what is damaged
    try:
        found = GenerationConfig.from_pretrained(folder, config_file_name=name, local_files_only=True)
    except Exception as error:  # the library raises various types
        raise ExportError(f"{folder / name}: cannot be read as generation settings ({reason(error)})") from None
    return {key: value for key, value in found.to_dict().items() if value is not None}, name


def _settings(reader: SettingReader) -> GenerationSettings:
    start, end = reader.token("decoder_start_token_id"), reader.token("eos_token_id")
    if start is None:
        start = reader.token("bos_token_id")
    if start is None or end is None:
        missing = "decoder_start_token_id" if start is None else "eos_token_id"
        raise ValueError(f"{missing} is missing")
    forced_last = reader.token("forced_eos_token_id")
    if forced_last not in (None, end):
        raise ValueError(f"forced_eos_token_id is {forced_last}; expected eos_token_id, {end}")
    beams, sampled = reader.whole("num_beams", 1, least=1), reader.truth("do_sample")
    if sampled and beams > 1:
        raise ValueError("do_sample with num_beams is not supported; --ignore do_sample or --ignore num_beams")
    stopping = reader.values.get("early_stopping", False)
    if stopping not in (True, False, "never"):
        raise ValueError(f'early_stopping is {stopping!r}; expected true, false or "never"')
    return GenerationSettings(
        start=start,
        end=end,
        max_new_tokens=_most(reader, forced_last),
        forced_first=reader.token("forced_bos_token_id"),
        forced_last=forced_last,
        min_new_tokens=max(reader.whole("min_new_tokens", 0), reader.whole("min_length", 0) - 1, 0),
        num_beams=beams,
        num_return_sequences=reader.whole("num_return_sequences", 1, least=1),
        length_penalty=reader.number("length_penalty", 1.0, -10, 10),
        early_stopping=stopping,
        no_repeat_ngram_size=reader.whole("no_repeat_ngram_size", 0),
        encoder_no_repeat_ngram_size=reader.whole("encoder_no_repeat_ngram_size", 0),
        repetition_penalty=reader.number("repetition_penalty", 1.0, 0.01, 100),
        bad_words=(*reader.words("bad_words_ids"), *((token,) for token in reader.tokens("suppress_tokens"))),
        begin_suppressed=reader.tokens("begin_suppress_tokens"),
        renormalized=reader.truth("renormalize_logits"),
        do_sample=sampled,
        temperature=reader.number("temperature", 1.0, 0.001, 1000) if sampled else 1.0,
        top_k=reader.whole("top_k", None),
        top_p=reader.number("top_p", None, 0, 1, above=True),
        min_p=reader.number("min_p", None, 0, 1),
        typical_p=reader.number("typical_p", None, 0, 1, above=True),
    )


def _most(reader: SettingReader, forced_last: int | None) -> int:
    """Returns the maximum number of new tokens without the end token, which a forced last token replaces."""
    most = reader.whole("max_new_tokens", None, least=None)
    if most is None:
        length = reader.whole("max_length", None, least=None)
        most = NEW_TOKENS if length is None else length - 1
    if most < 1:
        raise ValueError("max_length leaves no token to generate")
    return max(most - 1, 1) if forced_last is not None else most
