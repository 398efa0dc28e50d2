"""Texts and scores of a bundle in this process."""

import math

import numpy as np
import pytest

from dragoman.bulk.errors import StoppedError
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.core.requests import GenerationResult
from dragoman_server.offline.model import OfflineModel
from dragoman_server.offline.scored import Scored
from tests.support.bundles import SHIPPED_FP32

WORDS = ["transformer", "speech", "colonel", "a", "mississippi"]


def test_the_scorer_agrees_with_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where targets of several lengths are scored in several runs."""
    model = OfflineModel(SHIPPED_FP32, ServerConfig(max_rows=8, engines=2))
    try:
        search = model.search(pb.GenerationOptions(beam_size=3, num_hypotheses=3))
        sources = model.encode(WORDS)
        ids = [one for one in sources if not isinstance(one, str)]
        engines = model.engines
        answers = engines.wait(engines.submit(model.requests(ids, search)), lambda: False)
        hypotheses = [
            (place, one)
            for place, answer in enumerate(answers)
            if isinstance(answer, GenerationResult)
            for one in answer.hypotheses
        ]
        assert len(hypotheses) == 3 * len(WORDS)
        texts = model.decode([one.ids for _, one in hypotheses])
        asked = [ids[place] for place, _ in hypotheses]
        means = [sum(one.log_probabilities) / len(one.log_probabilities) for _, one in hypotheses]
        for elements in (1, 2**22):  # a target a run; all in one
            monkeypatch.setattr("dragoman_server.offline.model.MAX_RUN_ELEMENTS", elements)
            scores = model.score(asked, texts, lambda: False)
            assert np.allclose(np.array(scores, float), means, atol=1e-4)
        found = [Scored(one.ids, 7.0) for _, one in hypotheses[:2]] + [Scored([9], 7.0), None]
        known = model.score(asked[:4], texts[:4], lambda: False, found)
        assert known[:2] == [7.0, 7.0]
        assert np.allclose(np.array(known[2:], float), means[2:4], atol=1e-4)
        [unknown, empty] = model.score(asked[:2], ["no phones", ""], lambda: False)
        assert unknown is None
        assert empty is not None
        assert -math.inf < empty < min(means)
        with pytest.raises(StoppedError):
            model.score(asked, texts, lambda: True)
        assert engines.tokens == sum(len(one.ids) + 1 for _, one in hypotheses)
    finally:
        model.close()
