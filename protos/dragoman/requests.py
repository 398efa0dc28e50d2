"""Requests from Python values. What a field cannot carry is refused here; the server judges everything else."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from google.protobuf import duration_pb2

from dragoman.errors import InvalidArgumentError, ItemError
from dragoman.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class InLanguage:
    """A source with languages of its own, where others of a batch have different ones.

    Attributes:
        source: A text, or source token ids.
        source_language, target_language: Codes of the model's languages; None for that of the call, or the default.
    """

    source: str | Sequence[int]
    source_language: str | None = None
    target_language: str | None = None


Source: TypeAlias = str | Sequence[int] | InLanguage
"""The input of the model: a text, or source token ids, perhaps with its languages."""

Target: TypeAlias = str | Sequence[int]
"""An output of the model: a text, or target token ids."""

Side = Literal["source", "target"]
LengthNormalization = Literal["length", "gnmt", "none"]
Stopping = Literal["exact", "early", "current_length", "max_length"]
Priority = Literal["interactive", "batch"]

Choice = TypeVar("Choice")

_SIDES = {"source": pb.SIDE_SOURCE, "target": pb.SIDE_TARGET}
_LENGTH_NORMALIZATIONS = {
    "length": pb.LENGTH_NORMALIZATION_LENGTH,
    "gnmt": pb.LENGTH_NORMALIZATION_GNMT,
    "none": pb.LENGTH_NORMALIZATION_NONE,
}
_STOPPINGS = {
    "exact": pb.STOPPING_EXACT,
    "early": pb.STOPPING_EARLY,
    "current_length": pb.STOPPING_CURRENT_LENGTH,
    "max_length": pb.STOPPING_MAX_LENGTH,
}
_LANGUAGES = ("source_language", "target_language")
_PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "batch": pb.PRIORITY_BATCH}
_INT32 = range(-(2**31), 2**31)
_UINT64 = range(2**64)
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_DURATION_MAX_SECONDS = 315_576_000_000  # 10,000 years
_MAX_SHOWN = 60


class GenerateOptions(TypedDict, total=False):
    """Keyword options of all `generate` methods. None or absent means the server's default; greedy search without any.

    protos/decoding.md in the repository defines each option exactly, with its range and what it requires.

    The request:
        model: Model to use, as NAME, NAME@VERSION or NAME@ALIAS; "" for the server's default.
        priority: "interactive" if somebody waits for the answer, "batch" if it can wait. While both kinds queue,
            interactive requests get four of every five turns. Default: "batch" in generate_batch and generate_many,
            otherwise "interactive".
        source_language: Language of the sources, for models that ask for it. Default: the model's, if it has one.
        target_language: Language to generate, for models that ask for it. Default: the model's, if it has one. Sources
            of a batch may have languages of their own, see InLanguage.

    Length:
        max_new_tokens: Maximum number of generated tokens, the prefix not counted. Default: the model's limit.
        min_new_tokens: Minimum number of generated tokens. Default: 0.
        time_limit: Seconds after which the answer is returned as generated so far.

    Beam search:
        num_hypotheses: Number of answers: the best of beam search, or independent samples. Default: 1.
        beam_size: Number of hypotheses per step; enables beam search.
        length_normalization: Divisor of the sum of log-probabilities: "length" for |Y|^A, "gnmt" for ((5+|Y|)/6)^A, or
            "none". Default: "length".
        length_penalty: The exponent A. Default: 1.
        coverage_penalty: Weight of the penalty for source tokens that got little attention. Default: 0.
        early_stopping: End as soon as patience * beam_size hypotheses are finished.
        stopping: When to end: "exact" when no running hypothesis can enter the answer; "early" is early_stopping;
            "current_length" and "max_length" are early_stopping=False and "never" of Hugging Face Transformers.
            Default: "exact", or that of an imported model.
        patience: Factor of early_stopping. Default: 1.
        beam_groups: Number of diverse groups that the beam is split into. Default: 1.
        diversity_penalty: Penalty on tokens that earlier groups chose in the same step. Default: 0.5.

    Sampling:
        sample: Draw each token at random from the distribution.
        temperature: Divisor of the logits; below 1 the distribution gets sharper. Default: 1.
        top_k: Draw from the k most probable tokens.
        top_p: Draw from the smallest set of most probable tokens whose probabilities sum to p.
        min_p: Draw from tokens with at least this share of the highest probability.
        typical_p: Draw from the most typical tokens whose probabilities sum to p.
        seed: Seed of the random numbers: the same seed gives the same answer. Default: chosen by the server and
            returned in `Result.seed`.

    Constraints:
        prefix: Start of the answer, as text or target token ids.
        prefix_bias: Weight with which the prefix is preferred instead of forced.
        suppressed_tokens: Ids of tokens that are never chosen.
        suppressed_sequences: Texts, or lists of target token ids, that never occur.
        repetition_penalty: Factor above 1 that makes tokens which already occurred less probable. Default: 1.
        no_repeat_ngram_size: Size of n-grams that may not repeat. Default: 0, no such rule.
        encoder_no_repeat_ngram_size: Size of n-grams of the source that may not occur. Default: 0, no such rule.
        stop_sequences: Texts that end the answer; it is cut before them.
        include_stop_sequence: Cut the answer after the stop sequence instead.
        vocabulary: Ids of the only tokens that may be chosen, besides the end token: a shortlist.
        use_shortlist: Choose among the tokens that the model's lexical shortlist has for the source.
        alternatives: Return the num_hypotheses most probable tokens after the prefix, each completed.

    Details to return with the text:
        tokens: Return the tokens of the answer.
        log_probabilities: Return the tokens with their log-probabilities, the sum of these, and the score.
        top_tokens: Number of most probable tokens to return at every position. Implies log_probabilities.
        alignment: Return for each target token the source token with the highest attention. Implies tokens.
        attention: Return the attention of every layer and head. Implies tokens.
    """

    model: str
    priority: Priority | None
    source_language: str | None
    target_language: str | None

    max_new_tokens: int | None
    min_new_tokens: int | None
    time_limit: float | None

    num_hypotheses: int | None
    beam_size: int | None
    length_normalization: LengthNormalization | None
    length_penalty: float | None
    coverage_penalty: float | None
    early_stopping: bool | None
    stopping: Stopping | None
    patience: float | None
    beam_groups: int | None
    diversity_penalty: float | None

    sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    seed: int | None

    prefix: Target | None
    prefix_bias: float | None
    suppressed_tokens: Iterable[int] | None
    suppressed_sequences: Iterable[Target] | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    encoder_no_repeat_ngram_size: int | None
    stop_sequences: Iterable[str] | None
    include_stop_sequence: bool | None
    vocabulary: Sequence[int] | None
    use_shortlist: bool | None
    alternatives: bool | None

    tokens: bool | None
    log_probabilities: bool | None
    top_tokens: int | None
    alignment: bool | None
    attention: bool | None


def request_fields(*, model: str = "", priority: Priority | None = None, **options: Any) -> dict[str, Any]:
    """Converts GenerateOptions to the fields of a request: model, options, details and priority, not the languages.

    Raises:
        ValueError: A value does not fit its field.
        TypeError: A value has the wrong type, or there is no such option.
    """
    for name in options:
        if name not in _OPTIONS and name not in _DETAILS and name not in _LANGUAGES:
            raise TypeError(f"there is no option {name!r}")
    return {
        "model": text(model, "model"),
        "options": pb.GenerationOptions(**_converted(options, _OPTIONS)),
        "details": pb.Details(**_converted(options, _DETAILS)),
        "priority": None if priority is None else _choice(priority, "priority", _PRIORITIES),
    }


def _converted(options: dict[str, Any], converters: dict[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Converts the options that are set and have a converter."""
    return {
        name: converters[name](value, name)
        for name, value in options.items()
        if name in converters and value is not None
    }


def source_message(source: Source, options: Mapping[str, Any]) -> pb.Input:
    """Returns the message of a source, with the languages of the call unless it has its own.

    Args:
        options: GenerateOptions; only the languages matter.

    Raises:
        ValueError: A text has a lone surrogate, or an id does not fit its field.
        TypeError: The source is neither text nor ids, or a language is not a text.
    """
    own = source if isinstance(source, InLanguage) else None
    message = input_message(own.source if own is not None else source)
    for name in _LANGUAGES:
        language = getattr(own, name, None)
        if language is None:
            language = options.get(name)
        if language is not None:
            setattr(message, name, text(language, name))
    return message


def check_sources(sources: object) -> None:
    """Refuses one text where several sources are expected.

    Raises:
        TypeError: It is one.
    """
    if isinstance(sources, (str, bytes, bytearray)):
        _sequence(sources, "sources", "several texts or lists of token ids")


def input_or_error(index: int, source: Source, options: Mapping[str, Any]) -> pb.Input | ItemError:
    """Returns the message of a source, or the error of one among many that cannot be sent.

    Raises:
        TypeError: The source is neither text nor ids: a fault of the program, not of its data.
    """
    try:
        return source_message(source, options)
    except ValueError as error:
        return ItemError(index, InvalidArgumentError(str(error)))


def text(value: Any, name: str) -> str:
    """Returns a text that UTF-8, and so protobuf, can carry.

    Raises:
        ValueError: The text has a lone surrogate. The message quotes the text and the position, counted from 0.
        TypeError: The value is not a str.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code, half = ord(value[error.start]), _MAX_SHOWN // 2
        # os.fsdecode and errors="surrogateescape" turn undecodable bytes into these.
        byte = f" (byte 0x{code - 0xDC00:02X}, which is not valid UTF-8)" if 0xDC80 <= code <= 0xDCFF else ""
        shown = value if len(value) <= _MAX_SHOWN else value[max(0, error.start - half) : error.start + half]
        raise ValueError(
            f"{name}: {shown!a} has the lone surrogate U+{code:04X} at position {error.start}{byte} and cannot be sent"
        ) from None
    return value


def flag(value: Any, name: str) -> bool:
    if value not in (True, False):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def token_ids(values: Any, name: str) -> list[int]:
    return [_int32(value, f"{name}[{index}]") for index, value in enumerate(_sequence(values, name, "token ids"))]


def input_message(value: Any, name: str = "") -> pb.Input:
    """Returns the message for a text or token ids. Without a name the value is the source of the call."""
    if isinstance(value, str):
        return pb.Input(text=text(value, name or "text"))
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise TypeError(f"{name or 'source'}: expected a text or token ids, got {type(value).__name__}")
    return pb.Input(token_ids=pb.TokenIds(ids=token_ids(value, name or "token_ids")))


def input_messages(values: Any, name: str) -> list[pb.Input]:
    values = _sequence(values, name, "several texts or lists of token ids")
    return [input_message(value, f"{name}[{index}]") for index, value in enumerate(values)]


def side(value: Any) -> pb.Side:
    return _choice(value, "side", _SIDES)


def _integer(value: Any, name: str, allowed: range, size: str) -> int:
    try:
        number = int(value.__index__())  # integers of every kind (NumPy's too), but no floats
    except AttributeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number not in allowed:
        raise ValueError(f"{name}: {number} does not fit in {size}")
    return number


def _int32(value: Any, name: str) -> int:
    return _integer(value, name, _INT32, "32 bits")


def _uint64(value: Any, name: str) -> int:
    return _integer(value, name, _UINT64, "64 bits, unsigned")


def number(value: Any, name: str) -> float:
    """Returns a number of any kind as a float; infinity if it is too large for one.

    Raises:
        TypeError: The value is not a number.
    """
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf if value > 0 else -math.inf


def _float32(value: Any, name: str) -> float:
    found = number(value, name)
    if not abs(found) <= _FLOAT32_MAX:  # refuses NaN, too
        raise ValueError(f"{name}: expected a 32-bit number, got {found}")
    return found


def _duration(value: Any, name: str) -> duration_pb2.Duration:
    seconds = number(value, name)
    if not abs(seconds) <= _DURATION_MAX_SECONDS:
        raise ValueError(f"{name}: expected more than 0 and at most {_DURATION_MAX_SECONDS} seconds, got {seconds}")
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def _vocabulary(values: Any, name: str) -> pb.TokenIds:
    return pb.TokenIds(ids=token_ids(values, name))


def _texts(values: Any, name: str) -> list[str]:
    return [text(value, f"{name}[{index}]") for index, value in enumerate(_sequence(values, name, "several texts"))]


def _length_normalization(value: Any, name: str) -> pb.LengthNormalization:
    return _choice(value, name, _LENGTH_NORMALIZATIONS)


def _stopping(value: Any, name: str) -> pb.Stopping:
    return _choice(value, name, _STOPPINGS)


def _sequence(values: Any, name: str, expected: str) -> Iterable[Any]:
    # A text is a sequence of characters, too, which is never meant.
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected {expected}, got {type(values).__name__}")
    return values


def _choice(value: Any, name: str, choices: dict[str, Choice]) -> Choice:
    if value not in choices:
        *others, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")
    return choices[value]


_OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "max_new_tokens": _int32,
    "min_new_tokens": _int32,
    "time_limit": _duration,
    "num_hypotheses": _int32,
    "beam_size": _int32,
    "length_normalization": _length_normalization,
    "length_penalty": _float32,
    "coverage_penalty": _float32,
    "early_stopping": flag,
    "stopping": _stopping,
    "patience": _float32,
    "beam_groups": _int32,
    "diversity_penalty": _float32,
    "sample": flag,
    "temperature": _float32,
    "top_k": _int32,
    "top_p": _float32,
    "min_p": _float32,
    "typical_p": _float32,
    "seed": _uint64,
    "prefix": input_message,
    "prefix_bias": _float32,
    "suppressed_tokens": token_ids,
    "suppressed_sequences": input_messages,
    "repetition_penalty": _float32,
    "no_repeat_ngram_size": _int32,
    "encoder_no_repeat_ngram_size": _int32,
    "stop_sequences": _texts,
    "include_stop_sequence": flag,
    "vocabulary": _vocabulary,
    "use_shortlist": flag,
    "alternatives": flag,
}
_DETAILS: dict[str, Callable[[Any, str], Any]] = {
    "tokens": flag,
    "log_probabilities": flag,
    "top_tokens": _int32,
    "alignment": flag,
    "attention": flag,
}
