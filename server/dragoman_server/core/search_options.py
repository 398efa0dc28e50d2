"""What a request wants of its search."""

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum


class LengthNormalization(Enum):
    """How a sum of log-probabilities becomes a score; |Y| counts the generated tokens, the end token included."""

    LENGTH = "length"  # sum / |Y|^A
    GNMT = "gnmt"  # sum / ((5 + |Y|) / 6)^A, Wu et al. 2016, equation 14
    NONE = "none"


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """Beam search; what the fields mean and where they come from stands at the fields of the same name in the API."""

    beam_size: int
    length_normalization: LengthNormalization = LengthNormalization.LENGTH
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    early_stopping: bool = False
    patience: float = 1.0
    groups: int = 1
    diversity_penalty: float = 0.5

    def enough(self, width: int) -> int:
        """How many hypotheses a beam of this width, all of it or a group, must have finished for `early_stopping`.

        patience * width, halves rounded up; of the decimals, for 0.58 * 25 as floats is less than 14.5.
        """
        return math.floor(Decimal(str(self.patience)) * width + Decimal("0.5"))


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Sampling; None for a rule that is not applied."""

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
        min_new_tokens: tokens before the end token may be chosen, the prefix not counted.
        prefix: what every hypothesis starts with.
        prefix_bias: where not None, the prefix is preferred with this weight, not forced.
        suppressed: tokens never chosen.
        suppressed_sequences: never completed; two or more tokens each.
        repetition_penalty: 1 for none.
        no_repeat_ngram_size: 0 for no such rule.
        stop_sequences: texts that end a hypothesis.
        include_stop_sequence: whether its text ends behind the stop sequence or before it.
        vocabulary: sorted ids that may be chosen, the end token among them; None for all.
    """

    min_new_tokens: int = 0
    prefix: tuple[int, ...] = ()
    prefix_bias: float | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_sequences: tuple[tuple[int, ...], ...] = ()
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    stop_sequences: tuple[str, ...] = ()
    include_stop_sequence: bool = False
    vocabulary: tuple[int, ...] | None = None


UNCONSTRAINED = Constraints()


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """All of it, validated: no combination here makes no sense. Greedy where neither `beam` nor `sampling` is given.

    Attributes:
        max_new_tokens: 1 or more, the end token and a forced prefix not counted; with the prefix within the model's
        limit.
        num_hypotheses: hypotheses to answer with.
        alternatives: the hypotheses are the best tokens at the first place after the prefix, each completed, greedily
            or by a beam search of its own.
        log_probabilities: whether those of tokens are wanted; where not, they may be missing.
        top_tokens: alternatives to report at each place.
    """

    max_new_tokens: int
    num_hypotheses: int = 1
    beam: BeamOptions | None = None
    sampling: SamplingOptions | None = None
    constraints: Constraints = UNCONSTRAINED
    alternatives: bool = False
    log_probabilities: bool = False
    top_tokens: int = 0
