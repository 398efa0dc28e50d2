"""Greedy search for a batch of sources that start together: hardly any Python for each of them."""

import math
from collections.abc import Sequence

import numpy as np

from dragoman_server.core.requests import FinishReason, GenerationResult, HypothesisResult
from dragoman_server.decoding.finish import finish_reason
from dragoman_server.offline.batch_rows import close_ranks
from dragoman_server.runtime.runtime import Runtime


def greedy_batch(runtime: Runtime, sources: Sequence[Sequence[int]], max_new_tokens: int) -> list[GenerationResult]:
    """Returns the answers that GreedySearch gives.

    Args:
        runtime: Runtime with a row for each source.
        sources: Source ids, best of similar lengths.
    """
    end, last_position = runtime.manifest.tokens.end, max_new_tokens - 1
    count = len(sources)
    runtime.encode(sources, 0)
    ids = np.zeros((max_new_tokens, count), np.int64)
    log_probabilities = np.zeros((max_new_tokens, count), np.float32)
    lengths = np.zeros(count, np.int64)
    alive = np.arange(count)  # the source of each row
    for position in range(max_new_tokens):
        rows = len(alive)
        result = runtime.top(rows, 1)
        tokens, values = result.ids[:, 0], result.log_probabilities[:, 0]
        ids[position, alive], log_probabilities[position, alive] = tokens, values
        done = (tokens == end) | (values == -math.inf) | (position == last_position)
        runtime.tokens[:rows, 0] = tokens
        runtime.positions[:rows] += 1
        if done.any():
            lengths[alive[done]] = position + 1
            left = close_ranks(runtime, done, np.arange(rows)[:, None])[:, 0]
            alive = alive[~done][np.argsort(left)]
            if not len(alive):
                break
    answers = []
    for source, length in enumerate(lengths.tolist()):
        found, scores = ids[:length, source].tolist(), log_probabilities[:length, source].tolist()
        reason = finish_reason(found[-1], scores[-1], length - 1, end, last_position)
        assert reason is not None
        if reason is FinishReason.DEAD_END:
            scores.pop()
        if reason is not FinishReason.LENGTH:
            found.pop()
        answers.append(GenerationResult([HypothesisResult(found, scores, reason, sum(scores, 0.0))]))
    return answers
