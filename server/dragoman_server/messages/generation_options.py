"""GenerationOptions and Details, checked: what a search is told, or why the request makes no sense."""

import secrets
from dataclasses import dataclass, replace

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.requests import Priority
from dragoman_server.core.search_options import (
    UNCONSTRAINED,
    BeamOptions,
    Constraints,
    LengthNormalization,
    SamplingOptions,
    SearchOptions,
)
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.constraint_options import choosable_tokens, read_constraints
from dragoman_server.messages.option_reader import OptionReader
from dragoman_server.messages.token_ids import TargetEncoder

MAX_DURATION_SECONDS = 315_576_000_000  # google.protobuf.Duration's own limit: 10,000 years
MAX_NANOS = 999_999_999

LENGTHS = {"max_new_tokens", "min_new_tokens", "time_limit"}
OF_BEAM_SEARCH = (
    "length_normalization",
    "length_penalty",
    "coverage_penalty",
    "early_stopping",
    "patience",
    "beam_groups",
    "diversity_penalty",
)
OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")
NORMALIZATIONS = {
    pb.LENGTH_NORMALIZATION_UNSPECIFIED: LengthNormalization.LENGTH,
    pb.LENGTH_NORMALIZATION_LENGTH: LengthNormalization.LENGTH,
    pb.LENGTH_NORMALIZATION_GNMT: LengthNormalization.GNMT,
    pb.LENGTH_NORMALIZATION_NONE: LengthNormalization.NONE,
}

PRIORITIES: dict[pb.Priority, Priority] = {
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BATCH: Priority.BATCH,
}


@dataclass(frozen=True, slots=True)
class ResponseDetails:
    """What a client wants beside the text: Details, with what they imply."""

    tokens: bool = False
    log_probabilities: bool = False
    top_tokens: int = 0
    alignment: bool = False
    attention: bool = False

    @property
    def needs_attention(self) -> bool:
        """Whether it has to be known where the tokens look."""
        return self.alignment or self.attention


def read_details(details: pb.Details, limits: pb.Limits) -> ResponseDetails:
    """Raises:
    ApiError: `top_tokens` is not in 0 .. the limit.
    """
    if not 0 <= details.top_tokens <= limits.top_tokens:
        raise invalid("details.top_tokens", f"is {details.top_tokens}, but must be in 0 to {limits.top_tokens}")
    log_probabilities = details.log_probabilities or details.top_tokens > 0
    return ResponseDetails(
        tokens=details.tokens or log_probabilities or details.alignment or details.attention,
        log_probabilities=log_probabilities,
        top_tokens=details.top_tokens,
        alignment=details.alignment,
        attention=details.attention,
    )


async def read_options(
    options: pb.GenerationOptions, details: ResponseDetails, target: TargetEncoder, limits: pb.Limits
) -> SearchOptions:
    """What to search for and how.

    Raises:
        ApiError: an option is out of its range, is of no use with the others, or contradicts them.
    """
    fields = OptionReader(options)
    if fields.given <= LENGTHS:  # as most do, who then need not wait while all the others are looked for
        max_new_tokens, constraints = _lengths(fields, UNCONSTRAINED, target.max_tokens)
        return SearchOptions(
            max_new_tokens,
            constraints=constraints,
            log_probabilities=details.log_probabilities,
            top_tokens=details.top_tokens,
        )
    beam, sampling = _beam(fields, limits), _sampling(fields)
    if sampling and beam:
        fields.refuse("beam_size", "can't be combined with sample")
    if options.alternatives and sampling:
        fields.refuse("alternatives", "can't be combined with sample")
    if options.alternatives and fields.has("prefix_bias"):
        fields.refuse("alternatives", "can't be combined with prefix_bias, which no place comes after for certain")
    num_hypotheses = _num_hypotheses(fields, beam, sampling, limits)
    constraints = await read_constraints(fields, target, limits)
    max_new_tokens, constraints = _lengths(fields, constraints, target.max_tokens)
    if options.alternatives:
        choices = choosable_tokens(constraints, target) + (constraints.min_new_tokens == 0)
        if num_hypotheses > choices:
            fields.refuse("num_hypotheses", f"is {num_hypotheses}, but there are only {choices} tokens to choose from")
    if beam and beam.early_stopping:
        least = 1 if options.alternatives else num_hypotheses
        ends_at = beam.finished_quota(beam.beam_size)
        if ends_at < least:
            problem = f"is {beam.patience:g}, so that the search would end with {ends_at} hypotheses, but {least}"
            fields.refuse("patience", f"{problem} are needed")
    return SearchOptions(
        max_new_tokens=max_new_tokens,
        num_hypotheses=num_hypotheses,
        beam=beam,
        sampling=sampling,
        constraints=constraints,
        alternatives=options.alternatives,
        log_probabilities=details.log_probabilities,
        top_tokens=details.top_tokens,
    )


def reseeded(search: SearchOptions) -> SearchOptions:
    """The same with a seed of its own, where it samples."""
    if search.sampling is None:
        return search
    return replace(search, sampling=replace(search.sampling, seed=secrets.randbits(64)))


def _beam(fields: OptionReader, limits: pb.Limits) -> BeamOptions | None:
    options = fields.options
    if not fields.has("beam_size"):
        fields.need(OF_BEAM_SEARCH, "beam_size")
        return None
    beam_size = fields.integer("beam_size", 1, 1, limits.beam_size, ", which is the server's limit")
    normalization = NORMALIZATIONS.get(options.length_normalization)
    if normalization is None:
        fields.refuse("length_normalization", f"is {options.length_normalization}, but there is none of that number")
    if normalization is LengthNormalization.NONE and fields.has("length_penalty"):
        fields.refuse("length_penalty", "needs a length_normalization other than NONE")
    if not options.early_stopping:
        fields.need(("patience",), "early_stopping")
    groups = fields.integer("beam_groups", 1, 1)
    if beam_size % groups:
        fields.refuse("beam_groups", f"is {groups}, but must divide beam_size, which is {beam_size}")
    if groups == 1:
        fields.need(("diversity_penalty",), "beam_groups of 2 or more")
    return BeamOptions(
        beam_size=beam_size,
        length_normalization=normalization,
        length_penalty=fields.number("length_penalty", 1.0, -10, 10),
        coverage_penalty=fields.number("coverage_penalty", 0.0, 0, 100),
        early_stopping=options.early_stopping,
        patience=fields.number("patience", 1.0, 0, 1000, above=True),
        groups=groups,
        diversity_penalty=fields.number("diversity_penalty", 0.5, 0, 100, above=True),
    )


def _sampling(fields: OptionReader) -> SamplingOptions | None:
    options = fields.options
    if not options.sample:
        fields.need(OF_SAMPLING, "sample")
        return None
    # What leaves out nothing is no rule.
    return SamplingOptions(
        seed=options.seed if fields.has("seed") else secrets.randbits(64),
        temperature=fields.number("temperature", 1.0, 0.001, 1000),
        top_k=fields.integer("top_k", 0, 1) or None,
        top_p=_rule(fields.number("top_p", 1.0, 0, 1, above=True), 1.0),
        min_p=_rule(fields.number("min_p", 0.0, 0, 1), 0.0),
        typical_p=_rule(fields.number("typical_p", 1.0, 0, 1, above=True), 1.0),
    )


def _rule(value: float, none: float) -> float | None:
    return None if value == none else value


def _num_hypotheses(
    fields: OptionReader, beam: BeamOptions | None, sampling: SamplingOptions | None, limits: pb.Limits
) -> int:
    if fields.options.alternatives or sampling:
        most, why = limits.hypotheses, ", which is the server's limit"
        if beam:
            most, why = most // beam.beam_size, f": {most}, the server's limit, in beams of {beam.beam_size}"
    elif beam:
        most, why = beam.beam_size, ", which is beam_size"
    else:
        most, why = 1, " without beam_size, sample or alternatives"
    return fields.integer("num_hypotheses", 1, 1, most, why)


def _lengths(fields: OptionReader, constraints: Constraints, limit: int) -> tuple[int, Constraints]:
    """max_new_tokens, and the constraints with min_new_tokens."""
    forced = len(constraints.prefix) if constraints.prefix_bias is None else 0
    why = f", which is what the model's limit and a prefix of {forced} leave" if forced else ", the model's limit"
    max_new_tokens = fields.integer("max_new_tokens", limit - forced, 1, limit - forced, why)
    min_new_tokens = fields.integer("min_new_tokens", 0, 0, max_new_tokens, ", which is max_new_tokens")
    return max_new_tokens, replace(constraints, min_new_tokens=min_new_tokens) if min_new_tokens else constraints


def read_priority(asked: pb.Priority, default: Priority) -> Priority:
    """Raises:
    ApiError: there is no such priority.
    """
    if not asked:
        return default
    priority = PRIORITIES.get(asked)
    if priority is None:
        raise invalid("priority", f"is {asked}, but there is none of that number")
    return priority


def read_time_limit(options: pb.GenerationOptions, arrival: float) -> float | None:
    """time.monotonic() at which generation stops with what there is; None for no limit.

    Args:
        arrival: time.monotonic() of the call's arrival.

    Raises:
        ApiError: the option is not a valid duration, or not positive.
    """
    if not options.HasField("time_limit"):
        return None
    seconds, nanos = options.time_limit.seconds, options.time_limit.nanos
    if abs(seconds) > MAX_DURATION_SECONDS or abs(nanos) > MAX_NANOS or seconds * nanos < 0:
        raise invalid("options.time_limit", f"is not a valid duration: {seconds} s and {nanos} ns")
    if seconds < 0 or nanos < 0 or seconds == nanos == 0:
        raise invalid("options.time_limit", "must be more than zero")
    return arrival + seconds + nanos * 1e-9
