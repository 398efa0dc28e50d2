"""Converts the results of engines and scorer to API messages."""

import math
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle
from dragoman_server.core.requests import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    HypothesisResult,
    Progress,
    TokenChoice,
)
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.scorer import ScoredTarget, Target
from dragoman_server.messages.generation_options import ResponseDetails
from dragoman_server.messages.protobuf_encoding import length_delimited
from dragoman_server.messages.put_back import Placement

WEIGHTS = pb.Attention.DESCRIPTOR.fields_by_name["weights"].number
FINISH_REASONS = {reason: getattr(pb, f"FINISH_REASON_{reason.name}") for reason in FinishReason}


class ResponseWriter:
    """Writes the responses of one model.

    Args:
        bundle: The model.
        decoder: Decoder of its targets.
        placement: Puts carried text into its targets.
    """

    def __init__(self, bundle: Bundle, decoder: TargetDecoder, placement: Placement) -> None:
        self._model, self._version = bundle.manifest.name, bundle.manifest.version
        self._end = bundle.manifest.tokens.end
        self._decode = decoder.decode
        self._source_text = bundle.source_tokenizer.id_to_token
        self._target_text = bundle.target_tokenizer.id_to_token
        self._unseen = frozenset(bundle.manifest.unseen_source_tokens)
        self._placement = placement

    def response(
        self,
        request: GenerationRequest,
        finished: GenerationResult,
        details: ResponseDetails,
        attention: Sequence[ScoredTarget] | None = None,
    ) -> pb.GenerateResponse:
        """Converts a finished request.

        Args:
            attention: Alignment and attention of each hypothesis, if the details or the carried text need them.
        """
        hypotheses = [self._hypothesis(result, details) for result in finished.hypotheses]
        boundaries = []
        if request.carried is not None and attention is not None:
            boundaries = self._placement.boundaries(request.carried, request.source_ids)
        for hypothesis, result, scored in zip(hypotheses, finished.hypotheses, attention or repeat(None), strict=False):
            alignment = None if scored is None else scored.alignment
            if details.alignment and alignment is not None:
                hypothesis.alignment.extend(alignment[:-1])  # without the end token, like the tokens
            if scored is not None and scored.attention is not None:
                write_attention(hypothesis.attention, scored.attention)
            if request.carried is not None:
                hypothesis.text = self._placement.put_back(
                    hypothesis.text, result, request.carried, boundaries, alignment
                )
        sampling = request.search.sampling
        return pb.GenerateResponse(
            hypotheses=hypotheses,
            source_tokens=len(request.source_ids),
            model=self._model,
            model_version=self._version,
            seed=sampling.seed if sampling else None,
            source=self._source(request.source_ids) if details.needs_attention else None,
            unseen_source_tokens=self._unseen_positions(request.source_ids),
        )

    def progress(self, progress: Progress, details: ResponseDetails) -> list[pb.Token] | None:
        """Converts the tokens of a streaming event; returns None if the details do not include tokens."""
        forced = 0 if progress.log_probabilities else len(progress.ids)
        return self._tokens(progress.ids, progress.log_probabilities, progress.alternatives, forced, details)

    def score(
        self, source_ids: Sequence[int], targets: Sequence[Target], scored_targets: Sequence[ScoredTarget]
    ) -> pb.ScoreResponse:
        """Converts the scores of targets."""
        scores = []
        for target, scored in zip(targets, scored_targets, strict=True):
            pairs = zip([*target.ids, self._end], scored.log_probabilities, strict=True)
            score = pb.TargetScore(
                log_probability=sum(scored.log_probabilities),
                tokens=[pb.Token(id=i, text=self._target_text(i), log_probability=p) for i, p in pairs],
                alignment=scored.alignment,
            )
            if scored.attention is not None:
                write_attention(score.attention, scored.attention)
            scores.append(score)
        return pb.ScoreResponse(
            scores=scores,
            source=self._source(source_ids),
            model=self._model,
            model_version=self._version,
            unseen_source_tokens=self._unseen_positions(source_ids),
        )

    def _hypothesis(self, result: HypothesisResult, details: ResponseDetails) -> pb.Hypothesis:
        ids = result.ids
        text = self._decode(ids)
        return pb.Hypothesis(
            text=text if result.characters is None else text[: result.characters],
            finish_reason=FINISH_REASONS[result.reason],
            target_tokens=len(ids),
            tokens=self._tokens(ids, result.log_probabilities, result.alternatives, result.prefix, details),
            log_probability=sum(result.log_probabilities) if details.log_probabilities else None,
            score=result.score if details.log_probabilities else None,
        )

    def _tokens(
        self,
        ids: Sequence[int],
        log_probabilities: Sequence[float],
        alternatives: Sequence[Sequence[TokenChoice]],
        forced: int,
        details: ResponseDetails,
    ) -> list[pb.Token] | None:
        """Converts tokens; returns None if the details do not include them.

        Args:
            log_probabilities: Log-probabilities of the ids after the first `forced`; additional ones are ignored.
            alternatives: Alternatives at the same positions.
            forced: Number of ids that belong to a forced prefix.
        """
        if not details.tokens:
            return None
        tokens = [pb.Token(id=i, text=self._target_text(i)) for i in ids]
        if details.log_probabilities:
            for token, log_probability in zip(tokens[forced:], log_probabilities, strict=False):
                token.log_probability = log_probability
        if details.top_tokens:
            for token, choices in zip(tokens[forced:], alternatives, strict=False):
                possible = [choice for choice in choices if choice.log_probability > -math.inf]
                token.alternatives.extend(map(self._choice, possible))
        return tokens

    def _choice(self, choice: TokenChoice) -> pb.Token:
        return pb.Token(id=choice.id, text=self._target_text(choice.id), log_probability=choice.log_probability)

    def _unseen_positions(self, ids: Sequence[int]) -> list[int]:
        """Returns the indices of source tokens that do not occur in the training data."""
        return (
            []
            if self._unseen.isdisjoint(ids)
            else [position for position, id_ in enumerate(ids) if id_ in self._unseen]
        )

    def _source(self, ids: Sequence[int]) -> list[pb.Token]:
        return [pb.Token(id=i, text=self._source_text(i)) for i in ids]


def write_attention(message: pb.Attention, weights: NDArray[np.float32]) -> None:
    """Fills an Attention message.

    Converting millions of weights to Python numbers would block the event loop for a second. The raw array is prefixed
    with the header of a packed field instead, and parsed, which copies it as a whole.

    Args:
        weights: [layers, heads, target, source]
    """
    message.layers, message.heads, message.target_tokens, message.source_tokens = weights.shape
    packed = weights.astype("<f4", copy=False).tobytes()
    message.MergeFromString(length_delimited(WEIGHTS, packed))
