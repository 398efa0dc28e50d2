"""A runtime whose model is a function, for engines and whole batches."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.runtime.head_inputs import common_top_k
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult
from tests.support.scripted_search import BEGIN, END, GARBAGE, Script, ScriptedRow

TOKENS = SimpleNamespace(end=END)


class ScriptedRuntime:
    """A runtime whose caches are the tokens that a row was given. The first token of a source is a script's number.

    Args:
        scripts: The models.
        vocabulary: Their vocabulary size.
        rows: Cache rows.
        longest: Maximum number of tokens of a target.
    """

    def __init__(self, scripts: Sequence[Script], vocabulary: int, rows: int, longest: int) -> None:
        self.manifest = SimpleNamespace(tokens=TOKENS, shape=SimpleNamespace(target_vocabulary=vocabulary))
        self.max_rows, self.cache_bytes = rows, 0
        self.tokens, self.positions = np.zeros((rows, 1), np.int64), np.zeros(rows, np.int32)
        self._scripts, self._vocabulary = scripts, vocabulary
        self._cache = np.full((rows, longest + 2), GARBAGE)
        self._sources = [GARBAGE] * rows

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        for place, [source, *_] in enumerate(sources, row):
            self.move_row(-1, place)
            self._sources[place], self._cache[place] = source, GARBAGE
            self.tokens[place, 0], self.positions[place] = BEGIN, 0
        return 0

    def top(self, rows: int, candidates: int) -> TopKResult:
        return self._step([StepRequest(candidates)] * rows)

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult:
        """Returns results as Runtime does: one head for rows without a shortlist, one for those with."""
        candidates, _ = common_top_k(step_requests)
        whole = self._step(step_requests)
        if candidates:
            return whole
        heads: list[tuple[HeadOutputs, int] | None] = [None] * len(step_requests)
        for with_shortlist in (False, True):
            rows = [
                row
                for row, request in enumerate(step_requests)
                if request.candidates and (request.vocabulary is not None) == with_shortlist
            ]
            k = max((step_requests[row].candidates for row in rows), default=0)
            outputs = HeadOutputs(whole.ids[rows, :k], whole.log_probabilities[rows, :k], np.zeros((len(rows), 0)))
            for place, row in enumerate(rows):
                heads[row] = outputs, place
        return MixedResult(heads, {}, {}, {})

    def _step(self, step_requests: Sequence[StepRequest]) -> TopKResult:
        candidates = max(request.candidates for request in step_requests)
        ids = np.zeros((len(step_requests), candidates), np.int64)
        log_probabilities = np.full(ids.shape, -1.0, np.float32)  # of rows whose results must not count
        for row, request in enumerate(step_requests):
            position = int(self.positions[row])
            self._cache[row, position] = self.tokens[row, 0]
            begin, *so_far = self._cache[row, : position + 1].tolist()
            if begin == BEGIN and GARBAGE not in so_far:
                step = ScriptedRow(self._scripts[self._sources[row]](tuple(so_far)), request)
                best = step.order[:candidates]
                log_probabilities[row] = -np.inf
                ids[row, : len(best)], log_probabilities[row, : len(best)] = best, step.tempered[best]
        return TopKResult(ids, log_probabilities)

    def copy_target(self, source: int, target: int, start: int) -> None:
        assert self._sources[source] == self._sources[target]
        stop = int(self.positions[source])
        self._cache[target, start:stop] = self._cache[source, start:stop]
        self._cache[target, stop:] = GARBAGE

    def move_row(self, source: int, target: int) -> None:
        self._cache[target], self._sources[target] = self._cache[source], self._sources[source]
        self.tokens[target], self.positions[target] = self.tokens[source], self.positions[source]

    def copy_rows(self, source: int, target: int, count: int) -> None:
        for place in range(count):
            self.move_row(source + place, target + place)


def random_script(seed: int, vocabulary: int, coarse: bool, impossible: float) -> Script:
    """Returns a model with many equal probabilities if it is coarse, and some that are 0; sometimes all are."""

    def probabilities(so_far: tuple[int, ...]) -> NDArray[np.float64]:
        draw = np.random.default_rng([seed, *so_far])
        logits = draw.normal(scale=1.5, size=vocabulary)
        logits[END] += len(so_far) - 2
        weights = np.exp(np.round(logits) if coarse else logits)
        weights[draw.random(vocabulary) < impossible * draw.random()] = 0.0
        return np.zeros(vocabulary) if draw.random() < impossible / 10 else weights

    return probabilities
