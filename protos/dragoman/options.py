"""How to generate: the options of the API as keyword arguments."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypedDict

from dragoman import fields
from dragoman.fields import LengthNormalization, Priority, Target
from dragoman.v1 import generation_pb2 as pb


class GenerateOptions(TypedDict, total=False):
    """The options of every kind of generation; None or absent for the server's default. Greedy search without any.

    What each does exactly, its range and what it needs: protos/decoding.md in the repository.

    The call:
        model: the one to ask; "" for the server's default.
        priority: "interactive" where somebody waits for the answer, "batch" where it has time: while there are requests
            of both, the former are served first, four times of five. Default: "batch" for generate_batch, else
            "interactive".

    Length:
        max_new_tokens: tokens to generate at most, those of the prefix not counted; by default the model's limit.
        min_new_tokens: tokens to generate at least. Default 0.
        time_limit: seconds after which what has been generated so far is the answer.

    Beam search:
        num_hypotheses: answers to return: of beam search the best, of sampling independent samples. Default 1.
        beam_size: hypotheses followed at a time.
        length_normalization: what divides the sum of log-probabilities: "length" |Y|^A, "gnmt" ((5+|Y|)/6)^A or "none".
        length_penalty: that A. Default 1.
        coverage_penalty: weight of the source tokens that got little attention. Default 0.
        early_stopping: end as soon as patience * beam_size hypotheses are finished.
        patience: see early_stopping. Default 1.
        beam_groups: groups of the beam that are kept from choosing the same. Default 1.
        diversity_penalty: by how much they are. Default 0.5.

    Sampling:
        sample: draw each token at random, by its probability.
        temperature: below 1 the probable becomes more probable. Default 1.
        top_k: only the so many most probable tokens.
        top_p: only the most probable that together have this probability.
        min_p: only those with at least this share of the best one's probability.
        typical_p: only the most typical that together have this probability.
        seed: the same gives the same answer; by default the server chooses one, and returns it.

    Constraints:
        prefix: what the answer starts with, as text or target token ids.
        prefix_bias: prefer the prefix with this weight instead of forcing it.
        suppressed_tokens: ids that are never chosen.
        suppressed_sequences: texts, or lists of target token ids, that are never completed.
        repetition_penalty: over 1, makes tokens that the answer already has less probable. Default 1.
        no_repeat_ngram_size: no sequence of so many tokens comes twice. Default 0, no such rule.
        stop_sequences: texts that end the answer, which is cut before them.
        include_stop_sequence: cut it behind them instead.
        vocabulary: ids of the only tokens that may be chosen, the end token aside.
        alternatives: answer with the num_hypotheses most probable tokens after the prefix, each completed.

    What to return beside the text:
        tokens: the tokens of the answer.
        log_probabilities: the tokens with their log-probabilities, their sum, and the score.
        top_tokens: at each place the so many most probable tokens. Implies `log_probabilities`.
        alignment: for each token the source token that it looks at most. Implies `tokens`.
        attention: all attention, of every layer and head. Implies `tokens`.
    """

    model: str
    priority: Priority | None

    max_new_tokens: int | None
    min_new_tokens: int | None
    time_limit: float | None

    num_hypotheses: int | None
    beam_size: int | None
    length_normalization: LengthNormalization | None
    length_penalty: float | None
    coverage_penalty: float | None
    early_stopping: bool | None
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
    stop_sequences: Iterable[str] | None
    include_stop_sequence: bool | None
    vocabulary: Sequence[int] | None
    alternatives: bool | None

    tokens: bool | None
    log_probabilities: bool | None
    top_tokens: int | None
    alignment: bool | None
    attention: bool | None


_OPTIONS: dict[str, Callable[[Any, str], Any]] = {
    "max_new_tokens": fields.int32,
    "min_new_tokens": fields.int32,
    "time_limit": fields.duration,
    "num_hypotheses": fields.int32,
    "beam_size": fields.int32,
    "length_normalization": fields.length_normalization,
    "length_penalty": fields.float32,
    "coverage_penalty": fields.float32,
    "early_stopping": fields.flag,
    "patience": fields.float32,
    "beam_groups": fields.int32,
    "diversity_penalty": fields.float32,
    "sample": fields.flag,
    "temperature": fields.float32,
    "top_k": fields.int32,
    "top_p": fields.float32,
    "min_p": fields.float32,
    "typical_p": fields.float32,
    "seed": fields.uint64,
    "prefix": fields.input_,
    "prefix_bias": fields.float32,
    "suppressed_tokens": fields.token_ids,
    "suppressed_sequences": fields.inputs,
    "repetition_penalty": fields.float32,
    "no_repeat_ngram_size": fields.int32,
    "stop_sequences": fields.texts,
    "include_stop_sequence": fields.flag,
    "vocabulary": fields.vocabulary,
    "alternatives": fields.flag,
}
_DETAILS: dict[str, Callable[[Any, str], Any]] = {
    "tokens": fields.flag,
    "log_probabilities": fields.flag,
    "top_tokens": fields.int32,
    "alignment": fields.flag,
    "attention": fields.flag,
}


def of_request(*, model: str = "", priority: Priority | None = None, **options: Any) -> dict[str, Any]:
    """The fields of a request that GenerateOptions become: model, options, details, priority.

    Raises:
        ValueError: a value does not fit its field.
        TypeError: a value is of another type, or there is no such option.
    """
    for name in options:
        if name not in _OPTIONS and name not in _DETAILS:
            raise TypeError(f"there is no option {name!r}")
    return {
        "model": fields.text(model, "model"),
        "options": pb.GenerationOptions(**_converted(options, _OPTIONS)),
        "details": pb.Details(**_converted(options, _DETAILS)),
        "priority": None if priority is None else fields.priority(priority, "priority"),
    }


def _converted(options: dict[str, Any], converters: dict[str, Callable[[Any, str], Any]]) -> dict[str, Any]:
    """Those of the options that are given and have a converter, converted."""
    return {
        name: converters[name](value, name)
        for name, value in options.items()
        if name in converters and value is not None
    }
