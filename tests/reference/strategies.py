"""Hypothesis strategies for requests of every kind: valid, with options that make a difference."""

import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import (
    BeamOptions,
    Constraints,
    LengthNormalization,
    SamplingOptions,
    SearchOptions,
    Stopping,
)
from tests.reference.subject import Subject

MAX_ROWS = 12  # of one request
KINDS = ["greedy", "beam", "beam", "groups", "sample", "sample", "alternatives", "beam alternatives"]
CONSTRAINTS = [
    "minimum",
    "prefix",
    "soft prefix",
    "suppressed",
    "sequences",
    "repetition",
    "ngrams",
    "stops",
    "vocabulary",
]

TRAITS = [
    "greedy",
    "beam",
    "groups",
    "early stopping",
    "assumed length",
    "coverage",
    "sample",
    "alternatives",
    "top tokens",
    *CONSTRAINTS,
]


def traits(search: SearchOptions) -> list[str]:
    """Returns the TRAITS that a request has."""
    beam, constraints = search.beam, search.constraints
    found = {
        "greedy": not (beam or search.sampling),
        "beam": beam is not None,
        "groups": beam is not None and beam.groups > 1,
        "early stopping": beam is not None and beam.stopping is Stopping.EARLY,
        "assumed length": beam is not None and beam.stopping in (Stopping.CURRENT_LENGTH, Stopping.MAX_LENGTH),
        "coverage": beam is not None and beam.coverage_penalty > 0,
        "sample": search.sampling is not None,
        "alternatives": search.alternatives,
        "top tokens": search.top_tokens > 0,
        "minimum": constraints.min_new_tokens > 0,
        "prefix": bool(constraints.prefix) and constraints.prefix_bias is None,
        "soft prefix": constraints.prefix_bias is not None,
        "suppressed": bool(constraints.suppressed),
        "sequences": bool(constraints.suppressed_sequences),
        "repetition": constraints.repetition_penalty != 1,
        "ngrams": constraints.no_repeat_ngram_size > 0,
        "stops": bool(constraints.stop_sequences),
        "vocabulary": constraints.vocabulary is not None,
    }
    return [name for name in TRAITS if found[name]]


def sources(subject: Subject) -> SearchStrategy[list[int]]:
    """Returns source ids with the end token."""
    tokens = st.integers(subject.end + 1, subject.source_vocabulary - 1)
    return st.lists(tokens, max_size=subject.max_source - 1).map(lambda ids: [*ids, subject.end])


@st.composite
def requests(draw: DrawFn, subject: Subject) -> GenerationRequest:
    """Returns a request, with constraints that affect the greedy answer."""
    source = draw(sources(subject))
    kind = draw(st.sampled_from(KINDS))
    names = draw(st.sets(st.sampled_from(CONSTRAINTS), max_size=3))
    if "alternatives" in kind:
        names -= {"soft prefix"}
    if "soft prefix" in names:
        names -= {"prefix"}
    prefix, bias = _prefix(draw, subject, source, names)
    room = subject.max_target - (0 if bias else len(prefix))
    max_new_tokens = draw(st.integers(1, room))
    constraints = Constraints(
        min_new_tokens=draw(st.integers(1, max_new_tokens)) if "minimum" in names else 0,
        prefix=tuple(prefix),
        prefix_bias=bias,
        **_token_constraints(draw, subject, source, names),
    )
    beam, sampling, count, streaming = None, None, 1, draw(st.booleans())
    if kind in ("beam", "groups"):
        beam = draw(beams(grouped=kind == "groups"))
        finished = (
            math.floor(beam.patience * beam.beam_size + 0.5) if beam.stopping is Stopping.EARLY else beam.beam_size
        )
        count = draw(st.integers(1, min(beam.beam_size, finished)))
    elif kind == "sample":
        sampling = draw(samplings())
        count = draw(st.integers(1, 4))
    elif kind == "alternatives":
        count = draw(st.integers(1, 5))
    elif kind == "beam alternatives":
        beam = draw(beams(grouped=False))
        count = draw(st.integers(1, MAX_ROWS // beam.beam_size))
    top_tokens = draw(st.sampled_from([0, 0, 1, 3]))
    search = SearchOptions(
        max_new_tokens=max_new_tokens,
        num_hypotheses=count,
        beam=beam,
        sampling=sampling,
        constraints=constraints,
        alternatives="alternatives" in kind,
        log_probabilities=top_tokens > 0 or draw(st.booleans()),
        top_tokens=top_tokens,
    )
    return GenerationRequest(source, search, streaming=streaming)


@st.composite
def beams(draw: DrawFn, grouped: bool) -> BeamOptions:
    size = draw(st.integers(1, 6))
    groups = draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0])) if grouped and size > 1 else 1
    stopping = draw(st.sampled_from(Stopping))
    early = stopping is Stopping.EARLY
    return BeamOptions(
        beam_size=size,
        length_normalization=draw(st.sampled_from(LengthNormalization)),
        length_penalty=draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -0.7])),
        coverage_penalty=draw(st.sampled_from([0.0, 0.0, 0.4])),
        stopping=stopping,
        patience=draw(st.sampled_from([1.0, 0.5, 2.0])) if early and size > 1 else 1.0,
        groups=groups,
        diversity_penalty=draw(st.sampled_from([0.5, 0.1, 2.0])) if groups > 1 else 0.5,
    )


@st.composite
def samplings(draw: DrawFn) -> SamplingOptions:
    def optional(values: list[Any]) -> Any:
        return draw(st.sampled_from([None, None, *values]))

    return SamplingOptions(
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([1.0, 0.5, 0.8, 1.5, 3.0])),
        top_k=optional([1, 3, 20, 1000]),
        top_p=optional([0.3, 0.9, 0.99, 1.0]),
        min_p=optional([0.0, 0.02, 0.3]),
        typical_p=optional([0.4, 0.9, 1.0]),
    )


def _prefix(draw: DrawFn, subject: Subject, source: list[int], names: set[str]) -> tuple[list[int], float | None]:
    """Returns ids and bias: a part of the greedy answer, or other tokens."""
    if not names & {"prefix", "soft prefix"}:
        return [], None
    other = st.lists(_tokens(subject), min_size=1, max_size=4)
    usual = subject.usual(source)[: subject.max_target - 1]
    if usual:
        other |= st.integers(1, len(usual)).map(lambda length: usual[:length])
    bias = draw(st.sampled_from([0.1, 0.5, 0.9])) if "soft prefix" in names else None
    return draw(other), bias


def _token_constraints(draw: DrawFn, subject: Subject, source: list[int], names: set[str]) -> dict[str, Any]:
    """Returns constraints on tokens and text."""
    usual = subject.usual(source)
    likely = st.sampled_from(usual) | _tokens(subject) if usual else _tokens(subject)
    found: dict[str, Any] = {}
    if "suppressed" in names:
        found["suppressed"] = tuple(draw(st.lists(likely, min_size=1, max_size=6, unique=True)))
    if "sequences" in names:
        found["suppressed_sequences"] = tuple(tuple(ids) for ids in draw(st.lists(_slices(usual, likely), max_size=3)))
    if "repetition" in names:
        found["repetition_penalty"] = draw(st.sampled_from([1.3, 0.8, 3.0]))
    if "ngrams" in names:
        found["no_repeat_ngram_size"] = draw(st.integers(1, 3))
    if "stops" in names:
        text = subject.text(usual)
        pieces = st.sampled_from(["w1", "3 w", "w2 w1", "7"])
        if text:
            starts = st.integers(0, len(text) - 1)
            pieces |= starts.flatmap(lambda i: st.integers(1, 6).map(lambda length: text[i : i + length]))
        found["stop_sequences"] = tuple(draw(st.lists(pieces, min_size=1, max_size=2)))
        found["include_stop_sequence"] = draw(st.booleans())
    if "vocabulary" in names:
        listed = draw(st.sets(likely, min_size=1, max_size=12))
        found["vocabulary"] = tuple(sorted({*listed, subject.end}))
    return found


def _tokens(subject: Subject) -> SearchStrategy[int]:
    return st.integers(subject.end + 1, subject.target_vocabulary - 1)


def _slices(usual: list[int], likely: SearchStrategy[int]) -> SearchStrategy[list[int]]:
    """Returns two or three consecutive tokens of the greedy answer, or any tokens."""
    others = st.lists(likely, min_size=2, max_size=3)
    if len(usual) < 3:
        return others
    return others | st.integers(0, len(usual) - 2).map(lambda i: usual[i : i + 2])
