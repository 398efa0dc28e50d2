"""What follows from the options of a beam search: the same for every search with these options."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from dragoman_server.core.search import StepRequest
from dragoman_server.core.search_options import SearchOptions, Stopping
from dragoman_server.decoding.hypothesis_score import HypothesisScore


@dataclass(frozen=True, slots=True)
class BeamSizes:
    """Numbers that follow from the options.

    Attributes:
        answer: Number of hypotheses to answer with.
        group: Hypotheses of one group: beam_size / groups.
        group_answer: Hypotheses that one group may contribute to the answer.
        finished_quota: With early stopping, finished hypotheses that end a group; else infinity.
        choices: Continuations of one hypothesis that can matter: the 2 * group best ones, and as many more as earlier
            groups can penalize.
        candidates: Candidates to request for each hypothesis.
        first_candidates: The same for the first step after the prefix.
    """

    answer: int
    group: int
    group_answer: int
    finished_quota: float
    choices: int
    candidates: int
    first_candidates: int

    @staticmethod
    def of(options: SearchOptions, vocabulary_size: int, rank: int) -> "BeamSizes":
        beam, shortlist = options.beam, options.constraints.vocabulary
        assert beam is not None
        answer = 1 if options.alternatives else options.num_hypotheses
        group = beam.beam_size // beam.groups
        group_answer = min(answer, group)
        choices = 2 * group + (beam.beam_size - group)
        choosable = vocabulary_size if shortlist is None else len(shortlist)
        candidates = min(max(choices, options.top_tokens), choosable)
        return BeamSizes(
            answer,
            group,
            group_answer,
            beam.finished_quota(group) if beam.stopping is Stopping.EARLY else math.inf,
            choices,
            candidates,
            max(candidates, min(rank + 1, choosable)),
        )


class BeamPlan:
    """The constants of beam searches with the same options.

    Args:
        options: Options of the requests, `beam` among them.
        end: Id of the end token.
        vocabulary_size: Size of the target vocabulary.
        rank: With `options.alternatives`, the rank of the token to start with after the prefix; 0 is the best.

    Attributes:
        beam: The options of beam search.
        choosable: Tokens to choose from.
        rank: `rank` with `options.alternatives`, else None.
        counted: Forced tokens in |Y|.
        edits_late: Whether edits change log-probabilities, not logits.
        heuristic: Whether the search ends by the score at an assumed length.
        request, first_request, prefix_requests: Step requests without edits: of a hypothesis, in the first step after
            the prefix, and within it.
        plain: Whether BeamRows can advance the searches: all that a step has to know of a hypothesis then is
            its length, its sum and the tokens that may follow.
    """

    def __init__(self, options: SearchOptions, end: int, vocabulary_size: int, rank: int = 0) -> None:
        beam, constraints, conventions = options.beam, options.constraints, options.conventions
        assert beam is not None
        self.beam, self.end = beam, end
        self.rank = rank if options.alternatives else None
        self.top_tokens = options.top_tokens
        self.max_new_tokens = options.max_new_tokens
        self.forces_end = conventions.forces_end
        self.counted = int(conventions.forced_first is not None)
        soft = constraints.prefix_bias is not None
        self.edits_late = not soft and (
            not conventions.renormalized or (constraints.repetition_penalty != 1.0 and conventions.late_penalty)
        )
        self.renormalizes = conventions.renormalized
        self.sizes = sizes = BeamSizes.of(options, vocabulary_size, rank)
        # The length, end token included, never exceeds max_new_tokens unless the end is forced.
        self.score = HypothesisScore(beam, options.max_new_tokens + self.counted + self.forces_end)
        self.uses_coverage = beam.coverage_penalty != 0
        self.inspects = bool(
            soft or self.edits_late or self.uses_coverage or options.top_tokens or options.alternatives
        )
        self.heuristic = beam.stopping in (Stopping.CURRENT_LENGTH, Stopping.MAX_LENGTH)

        shortlist = constraints.vocabulary
        self.choosable = vocabulary_size if shortlist is None else len(shortlist)
        self.request = StepRequest(sizes.candidates, vocabulary=shortlist, attention=self.uses_coverage)
        self.first_request = replace(self.request, candidates=sizes.first_candidates)
        self.prefix_requests = (StepRequest(0, vocabulary=shortlist),)
        depends_on_ids = (
            soft
            or constraints.suppressed_sequences
            or constraints.repetition_penalty != 1.0
            or constraints.no_repeat_ngram_size
            or constraints.encoder_no_repeat_ngram_size
            or constraints.stop_sequences
            or conventions.begin_suppressed
        )
        edits_late = self.edits_late and (constraints.suppressed or constraints.min_new_tokens)
        others = self.uses_coverage or options.top_tokens or options.alternatives or beam.groups > 1
        self.plain = not (depends_on_ids or edits_late or others)

    @property
    def kept(self) -> int:
        """Finished hypotheses that a group keeps."""
        return self.sizes.group if self.heuristic else self.sizes.group_answer

    @cached_property
    def divisors(self) -> tuple[list[float], list[float]]:
        """Divisors of sums of log-probabilities after 1, 2, ... max_new_tokens + 1 generated tokens.

        The first list is for the scores of hypotheses that end, the second for the bounds on those that run on; for a
        heuristic, instead of bounds, for scores at the assumed length.
        """
        lengths = range(1 + self.counted, self.max_new_tokens + 2 + self.counted)
        return [self.score.divisor(length) for length in lengths], [self._bound_divisor(length) for length in lengths]

    def _bound_divisor(self, length: int) -> float:
        if not self.heuristic:
            return self.score.bound_divisor(length)
        longest = self.beam.stopping is Stopping.MAX_LENGTH and self.beam.length_penalty > 0
        return self.score.max_length_divisor if longest else self.score.divisor(length)


@lru_cache(maxsize=64)
def plan_of(options: SearchOptions, end: int, vocabulary_size: int) -> BeamPlan:
    """Returns the plan for options without a shortlist, the same one again for the same options."""
    return BeamPlan(options, end, vocabulary_size)
