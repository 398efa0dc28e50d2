"""Reads and checks GenerationOptions, Details and priorities."""

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
    Stopping,
)
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.constraint_options import choosable_tokens, read_constraints
from dragoman_server.messages.default_options import OWN_DEFAULTS, Defaults
from dragoman_server.messages.option_reader import BEAM_OPTIONS, SAMPLING_OPTIONS, OptionReader
from dragoman_server.messages.token_ids import TargetEncoder

MAX_DURATION_SECONDS = 315_576_000_000  # limit of google.protobuf.Duration: 10,000 years
MAX_NANOS = 999_999_999

LENGTH_OPTIONS = {"max_new_tokens", "min_new_tokens", "time_limit"}
NORMALIZATIONS = {
    pb.LENGTH_NORMALIZATION_UNSPECIFIED: LengthNormalization.LENGTH,
    pb.LENGTH_NORMALIZATION_LENGTH: LengthNormalization.LENGTH,
    pb.LENGTH_NORMALIZATION_GNMT: LengthNormalization.GNMT,
    pb.LENGTH_NORMALIZATION_NONE: LengthNormalization.NONE,
}

STOPPINGS = {
    pb.STOPPING_EXACT: Stopping.EXACT,
    pb.STOPPING_EARLY: Stopping.EARLY,
    pb.STOPPING_CURRENT_LENGTH: Stopping.CURRENT_LENGTH,
    pb.STOPPING_MAX_LENGTH: Stopping.MAX_LENGTH,
}

PRIORITIES: dict[pb.Priority, Priority] = {
    pb.PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    pb.PRIORITY_BATCH: Priority.BATCH,
}


@dataclass(frozen=True, slots=True)
class ResponseDetails:
    """What a response includes in addition to the text: Details and what they imply."""

    tokens: bool = False
    log_probabilities: bool = False
    top_tokens: int = 0
    alignment: bool = False
    attention: bool = False

    @property
    def needs_attention(self) -> bool:
        """Whether attention weights have to be computed."""
        return self.alignment or self.attention


def read_details(details: pb.Details, limits: pb.Limits) -> ResponseDetails:
    """Reads the details of a request. Raises ApiError if `top_tokens` is out of range."""
    if not 0 <= details.top_tokens <= limits.top_tokens:
        raise invalid("details.top_tokens", f"is {details.top_tokens}, but must be from 0 to {limits.top_tokens}")
    log_probabilities = details.log_probabilities or details.top_tokens > 0
    return ResponseDetails(
        tokens=details.tokens or log_probabilities or details.alignment or details.attention,
        log_probabilities=log_probabilities,
        top_tokens=details.top_tokens,
        alignment=details.alignment,
        attention=details.attention,
    )


async def read_options(
    options: pb.GenerationOptions,
    details: ResponseDetails,
    target: TargetEncoder,
    limits: pb.Limits,
    defaults: Defaults = OWN_DEFAULTS,
) -> SearchOptions:
    """Reads how to search.

    Args:
        options: The request's options, which the model's defaults complete.
        defaults: What else the model has of its own.

    Raises:
        ApiError: an option is out of range, has no effect together with the others, or contradicts them.
    """
    reader = OptionReader(options)
    if reader.present <= LENGTH_OPTIONS:  # as in most requests; saves the time to look for all others
        max_new_tokens, constraints = _lengths(reader, UNCONSTRAINED, target.max_tokens, defaults)
        return SearchOptions(
            max_new_tokens,
            constraints=constraints,
            log_probabilities=details.log_probabilities,
            top_tokens=details.top_tokens,
            conventions=defaults.conventions,
        )
    beam, sampling = _beam(reader, limits, defaults), _sampling(reader)
    if sampling and beam:
        reader.refuse("beam_size", "can't be combined with sample")
    if options.alternatives and sampling:
        reader.refuse("alternatives", "can't be combined with sample")
    if options.alternatives and reader.has("prefix_bias"):
        reader.refuse(
            "alternatives", "can't be combined with prefix_bias, because hypotheses need not contain the prefix"
        )
    num_hypotheses = _num_hypotheses(reader, beam, sampling, limits)
    constraints = await read_constraints(reader, target, limits)
    max_new_tokens, constraints = _lengths(reader, constraints, target.max_tokens, defaults)
    if options.alternatives:
        choices = choosable_tokens(constraints, target) + (constraints.min_new_tokens == 0)
        if num_hypotheses > choices:
            reader.refuse("num_hypotheses", f"is {num_hypotheses}, but there are only {choices} tokens to choose from")
    if beam and beam.stopping is Stopping.EARLY:
        least = 1 if options.alternatives else num_hypotheses
        ends_at = beam.finished_quota(beam.beam_size)
        if ends_at < least:
            problem = f"is {beam.patience:g}, so the search would end with {ends_at} finished hypotheses, but {least}"
            reader.refuse("patience", f"{problem} {'is' if least == 1 else 'are'} needed")
    return SearchOptions(
        max_new_tokens=max_new_tokens,
        num_hypotheses=num_hypotheses,
        beam=beam,
        sampling=sampling,
        constraints=constraints,
        alternatives=options.alternatives,
        log_probabilities=details.log_probabilities,
        top_tokens=details.top_tokens,
        conventions=defaults.conventions,
        use_shortlist=_use_shortlist(reader),
    )


def reseeded(search: SearchOptions) -> SearchOptions:
    """Returns the same search with a new seed, if it samples."""
    if search.sampling is None:
        return search
    return replace(search, sampling=replace(search.sampling, seed=secrets.randbits(64)))


def _use_shortlist(reader: OptionReader) -> bool | None:
    if not reader.has("use_shortlist"):
        return None
    if reader.options.use_shortlist and reader.has("vocabulary"):
        reader.refuse("use_shortlist", "can't be combined with vocabulary")
    return reader.options.use_shortlist


def _stopping(reader: OptionReader, defaults: Defaults) -> Stopping:
    """Returns when a beam search ends. `early_stopping: false` is the model's rule without it."""
    options, later = reader.options, defaults.later_stopping
    early = options.early_stopping if reader.has("early_stopping") else None
    if not reader.has("stopping") or options.stopping == pb.STOPPING_UNSPECIFIED:
        return Stopping.EARLY if early else later
    stopping = STOPPINGS.get(options.stopping)
    if stopping is None:
        reader.refuse("stopping", f"is {options.stopping}, which is not a known value")
    if early is not None and early != (stopping is Stopping.EARLY):
        reader.refuse("stopping", f"is {stopping.name}, but early_stopping is {str(early).lower()}")
    return stopping


def _beam(reader: OptionReader, limits: pb.Limits, defaults: Defaults) -> BeamOptions | None:
    options = reader.options
    if not reader.has("beam_size"):
        reader.require("beam_size", BEAM_OPTIONS)
        return None
    beam_size = reader.integer("beam_size", 1, 1, limits.beam_size, ", the server's limit")
    normalization = NORMALIZATIONS.get(options.length_normalization)
    if normalization is None:
        reader.refuse("length_normalization", f"is {options.length_normalization}, which is not a known value")
    if normalization is LengthNormalization.NONE and reader.has("length_penalty"):
        reader.refuse("length_penalty", "needs a length_normalization other than NONE")
    stopping = _stopping(reader, defaults)
    if stopping is not Stopping.EARLY:
        reader.require("early_stopping", ("patience",))
    groups = reader.integer("beam_groups", 1, 1)
    if beam_size % groups:
        reader.refuse("beam_groups", f"is {groups}, but must divide beam_size, which is {beam_size}")
    if groups == 1:
        reader.require("beam_groups of 2 or more", ("diversity_penalty",))
    return BeamOptions(
        beam_size=beam_size,
        length_normalization=normalization,
        length_penalty=reader.number("length_penalty", 1.0, -10, 10),
        coverage_penalty=reader.number("coverage_penalty", 0.0, 0, 100),
        stopping=stopping,
        patience=reader.number("patience", 1.0, 0, 1000, above=True),
        groups=groups,
        diversity_penalty=reader.number("diversity_penalty", 0.5, 0, 100, above=True),
    )


def _sampling(reader: OptionReader) -> SamplingOptions | None:
    options = reader.options
    if not options.sample:
        reader.require("sample", SAMPLING_OPTIONS)
        return None
    # A rule that excludes no token becomes None.
    return SamplingOptions(
        seed=options.seed if reader.has("seed") else secrets.randbits(64),
        temperature=reader.number("temperature", 1.0, 0.001, 1000),
        top_k=reader.integer("top_k", 0, 1) or None,
        top_p=_rule(reader.number("top_p", 1.0, 0, 1, above=True), 1.0),
        min_p=_rule(reader.number("min_p", 0.0, 0, 1), 0.0),
        typical_p=_rule(reader.number("typical_p", 1.0, 0, 1, above=True), 1.0),
    )


def _rule(value: float, off: float) -> float | None:
    return None if value == off else value


def _num_hypotheses(
    reader: OptionReader, beam: BeamOptions | None, sampling: SamplingOptions | None, limits: pb.Limits
) -> int:
    if reader.options.alternatives or sampling:
        most, reason = limits.hypotheses, ", the server's limit"
        if beam:
            most, reason = (
                most // beam.beam_size,
                f": the server's limit is {most} rows, and beam_size is {beam.beam_size}",
            )
    elif beam:
        most, reason = beam.beam_size, ", the beam_size"
    else:
        most, reason = 1, " without beam_size, sample or alternatives"
    return reader.integer("num_hypotheses", 1, 1, most, reason)


def _lengths(reader: OptionReader, constraints: Constraints, limit: int, defaults: Defaults) -> tuple[int, Constraints]:
    """Returns max_new_tokens, and the constraints with min_new_tokens."""
    forced = len(constraints.prefix) if constraints.prefix_bias is None else 0
    reason = f", the model's limit less {forced} tokens of the prefix" if forced else ", the model's limit"
    default = limit - forced
    if defaults.max_new_tokens is not None and defaults.max_new_tokens >= reader.options.min_new_tokens:
        default = min(default, defaults.max_new_tokens)
    max_new_tokens = reader.integer("max_new_tokens", default, 1, limit - forced, reason)
    least = min(defaults.min_new_tokens, max_new_tokens)
    min_new_tokens = reader.integer("min_new_tokens", least, 0, max_new_tokens, ", the value of max_new_tokens")
    return max_new_tokens, replace(constraints, min_new_tokens=min_new_tokens) if min_new_tokens else constraints


def read_priority(value: pb.Priority, default: Priority) -> Priority:
    """Reads a priority. Raises ApiError for an unknown value."""
    if not value:
        return default
    priority = PRIORITIES.get(value)
    if priority is None:
        raise invalid("priority", f"is {value}, which is not a known value")
    return priority


def read_time_limit(options: pb.GenerationOptions, arrival: float) -> float | None:
    """Returns when generation stops with what it has, as time.monotonic(); None for no limit.

    Args:
        arrival: When the call arrived, as time.monotonic().

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
