"""The search options of a request: the fields of the API's GenerationOptions after validation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum


class LengthNormalization(Enum):
    """How a sum of log-probabilities becomes a score; |Y| counts the generated tokens, the end token included."""

    LENGTH = "length"  # sum / |Y|^A
    GNMT = "gnmt"  # sum / ((5 + |Y|) / 6)^A, Wu et al. 2016, equation 14
    NONE = "none"


class Stopping(Enum):
    """When a beam search ends; generation.proto explains the values."""

    EXACT = "exact"
    EARLY = "early"
    CURRENT_LENGTH = "current_length"
    MAX_LENGTH = "max_length"


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Options of beam search. The fields of the same name in generation.proto explain them and cite their sources."""

    beam_size: int
    length_normalization: LengthNormalization = LengthNormalization.LENGTH
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    stopping: Stopping = Stopping.EXACT
    patience: float = 1.0
    groups: int = 1
    diversity_penalty: float = 0.5

    def finished_quota(self, width: int) -> int:
        """Returns the number of finished hypotheses that ends a beam of this width (or a group) with Stopping.EARLY.

        That is patience * width, halves rounded up (Kasai et al. 2022). Computed with decimals: as floats, 0.58 * 25
        is less than 14.5.
        """
        return math.floor(Decimal(str(self.patience)) * width + Decimal("0.5"))


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options of sampling; None for a truncation rule that is not applied."""

    seed: int  # 0 to 2^64 - 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None


@dataclass(frozen=True, slots=True)
class Constraints:
    """Which tokens may follow. Ids are of the target vocabulary.

    Attributes:
        min_new_tokens: Tokens to generate before the end token may be chosen, the prefix not counted.
        prefix: Tokens that every hypothesis starts with.
        prefix_bias: Weight with which the prefix is preferred; None forces it.
        suppressed: Tokens that are never chosen.
        suppressed_sequences: Sequences of two or more tokens that are never completed.
        repetition_penalty: Divisor (or factor) of the logits of tokens that the hypothesis has; 1 for none.
        no_repeat_ngram_size: Length of n-grams that may not repeat; 0 for no such rule.
        encoder_no_repeat_ngram_size: Length of n-grams of the source that may not occur; 0 for no such rule.
        stop_sequences: Texts that end a hypothesis.
        include_stop_sequence: Whether the text of a hypothesis includes the stop sequence that ends it.
        vocabulary: Shortlist, sorted ids of the only tokens that may be chosen, the end token among them; None for all.
    """

    min_new_tokens: int = 0
    prefix: tuple[int, ...] = ()
    prefix_bias: float | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_sequences: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    stop_sequences: tuple[str, ...] = ()
    include_stop_sequence: bool = False
    vocabulary: Sequence[int] | None = None


UNCONSTRAINED = Constraints()


@dataclass(frozen=True, slots=True)
class Conventions:
    """Rules that an imported model was published with, where they are not ours.

    Attributes:
        forced_first: First token of every target, before a prefix; None if it is free. It counts in |Y|, with a
            log-probability of 0, but in no other length.
        forces_end: Whether a hypothesis of the maximum length gets the end token, with a log-probability of 0.
        begin_suppressed: Tokens that cannot come first.
        renormalized: Whether probabilities are renormalized after tokens were excluded.
        late_penalty: Whether the repetition penalty of a beam search multiplies log-probabilities instead of logits.
        history: Tokens before those of a hypothesis that rules on repetition see as part of it: the begin token.
    """

    forced_first: int | None = None
    forces_end: bool = False
    begin_suppressed: tuple[int, ...] = ()
    renormalized: bool = True
    late_penalty: bool = False
    history: tuple[int, ...] = ()


OWN_CONVENTIONS = Conventions()


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """All search options of a request. Without `beam` and `sampling` the search is greedy.

    Validation has excluded combinations without a meaning.

    Attributes:
        max_new_tokens: Length limit, 1 or more, the end token and a forced prefix not counted. Together with the
            prefix it is within the model's limit.
        num_hypotheses: Number of hypotheses to answer with.
        beam: Options of beam search.
        sampling: Options of sampling.
        constraints: Which tokens may follow.
        alternatives: Whether the hypotheses start with the best tokens after the prefix, one each, completed greedily
            or by a beam search of their own.
        log_probabilities: Whether to report log-probabilities of tokens; otherwise they may be missing.
        top_tokens: Number of alternatives to report at each position.
        conventions: Rules of the model.
        use_shortlist: Whether to choose among the tokens of the bundle's lexical shortlist; None for its default.
    """

    max_new_tokens: int
    num_hypotheses: int = 1
    beam: BeamOptions | None = None
    sampling: SamplingOptions | None = None
    constraints: Constraints = UNCONSTRAINED
    alternatives: bool = False
    log_probabilities: bool = False
    top_tokens: int = 0
    conventions: Conventions = OWN_CONVENTIONS
    use_shortlist: bool | None = None

    @property
    def fixed_tokens(self) -> int:
        """The number of tokens of the prefix and, before it, of the model's forced first one."""
        return len(self.constraints.prefix) + (self.conventions.forced_first is not None)
