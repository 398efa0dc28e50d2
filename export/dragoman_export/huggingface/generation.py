"""Generation settings of a Hugging Face directory, from generation_config.json or else config.json."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman_export.errors import ExportError
from dragoman_server.bundle.manifest import Generation
from dragoman_server.runtime.device import first_line

REQUIRED = ("decoder_start_token_id", "eos_token_id", "bos_token_id")  # defaults come from config.json
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


def read_generation(folder: Path, config: Any, ignore: Collection[str] = ()) -> GenerationSettings:
    """Reads the settings of a directory.

    If generation_config.json exists, the settings in config.json are ignored, as by transformers.

    Args:
        config: Configuration from `read_config`.
        ignore: Keys to ignore although they would change tokens.

    Raises:
        ExportError: The file is damaged, or a key outside `ignore` would change tokens in an unsupported way; the
            message names it.
    """
    values, name = _values(folder)
    for key in ignore:
        values.pop(key, None)
    for key, harmless in _WITHOUT_EFFECT.items():
        if values.get(key) not in harmless:
            raise ExportError(
                f"{folder / name}: {key} is {values[key]!r}, which is not supported; "
                f"--ignore {key} imports the model without it"
            )
    try:
        return _settings(values, config)
    except (TypeError, ValueError) as error:
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

    name = "generation_config.json"
    try:
        if (folder / name).exists():
            found = GenerationConfig.from_pretrained(folder, local_files_only=True)
        else:
            name = "config.json"
            found = GenerationConfig.from_pretrained(folder, config_file_name=name, local_files_only=True)
    except Exception as error:  # the library raises various types
        raise ExportError(f"{folder / name}: cannot be read as generation settings ({first_line(error)})") from None
    return {key: value for key, value in found.to_dict().items() if value is not None}, name


def _settings(values: Mapping[str, Any], config: Any) -> GenerationSettings:
    def number(key: str, kind: type, default: Any) -> Any:
        value = values.get(key, default)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value if value is None else kind(value)
        raise TypeError(f"{key} is {value!r}; expected a number")

    def token(key: str) -> int | None:
        value = values.get(key)
        if value is None and key in REQUIRED:
            value = getattr(config, key, None)
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else value
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"{key} is {value!r}; expected one token id")
        return value

    start, end = token("decoder_start_token_id"), token("eos_token_id")
    if start is None:
        start = token("bos_token_id")
    if start is None or end is None:
        missing = "decoder_start_token_id" if start is None else "eos_token_id"
        raise ValueError(f"{missing} is missing")
    forced_last = token("forced_eos_token_id")
    if forced_last not in (None, end):
        raise ValueError(f"forced_eos_token_id is {forced_last}; expected eos_token_id, {end}")
    if values.get("do_sample") and number("num_beams", int, 1) > 1:
        raise ValueError("do_sample with num_beams is not supported; --ignore do_sample or --ignore num_beams")
    stopping = values.get("early_stopping", False)
    if stopping not in (True, False, "never"):
        raise ValueError(f'early_stopping is {stopping!r}; expected true, false or "never"')
    bad_words = values.get("bad_words_ids", [])
    return GenerationSettings(
        start=start,
        end=end,
        max_new_tokens=_most(values, number, forced_last),
        forced_first=token("forced_bos_token_id"),
        forced_last=forced_last,
        min_new_tokens=max(number("min_new_tokens", int, 0), number("min_length", int, 0) - 1, 0),
        num_beams=number("num_beams", int, 1),
        num_return_sequences=number("num_return_sequences", int, 1),
        length_penalty=number("length_penalty", float, 1.0),
        early_stopping=stopping,
        no_repeat_ngram_size=number("no_repeat_ngram_size", int, 0),
        encoder_no_repeat_ngram_size=number("encoder_no_repeat_ngram_size", int, 0),
        repetition_penalty=number("repetition_penalty", float, 1.0),
        bad_words=(
            *(tuple(map(int, word)) for word in bad_words),
            *((int(word),) for word in values.get("suppress_tokens", [])),
        ),
        begin_suppressed=tuple(map(int, values.get("begin_suppress_tokens", []))),
        renormalized=bool(values.get("renormalize_logits", False)),
        do_sample=bool(values.get("do_sample", False)),
        temperature=number("temperature", float, 1.0),
        top_k=number("top_k", int, None),
        top_p=number("top_p", float, None),
        min_p=number("min_p", float, None),
        typical_p=number("typical_p", float, None),
    )


def _most(values: Mapping[str, Any], number: Any, forced_last: int | None) -> int:
    """Returns the maximum number of new tokens without the end token, which a forced last token replaces."""
    most = number("max_new_tokens", int, None)
    if most is None:
        length = number("max_length", int, None)
        most = NEW_TOKENS if length is None else length - 1
    if most < 1:
        raise ValueError("max_length leaves no token to generate")
    return max(most - 1, 1) if forced_last is not None else int(most)
