"""What is exported never writes a special token other than the end token."""

from pathlib import Path

import numpy as np

from dragoman_server.bundle.load import load_bundle
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.run.load import load_run
from tests.support.bundles import SHIPPED_G2P


def test_special_tokens_have_no_probability_and_the_others_all_of_it() -> None:
    bundle = load_bundle(SHIPPED_G2P)
    tokens, size = bundle.manifest.tokens, bundle.manifest.shape.target_vocabulary
    special = {tokens.pad, tokens.unknown, tokens.begin}
    runtime = Runtime(Sessions(bundle, CPU, 1), 4)
    runtime.encode([bundle.source_tokenizer.encode(word).ids for word in ("yacht", "read", "bough", "x")], 0)
    for step in range(6):
        # Every row asks in another way; a flat distribution would show what has but little probability.
        step_requests = [
            StepRequest(size),
            StepRequest(size, temperature=100.0),
            StepRequest(size, vocabulary=tuple(range(size))),
            StepRequest(size, temperature=100.0, vocabulary=tuple(range(1, size, 2))),
        ]
        scores = runtime.step(step_requests)
        for row in range(len(step_requests)):
            pairs = [pair for pair in zip(*scores.top(row), strict=True) if pair[1] > -np.inf]
            assert not special & {token for token, _ in pairs}
            assert np.isclose(np.exp([value for _, value in pairs]).sum(), 1, atol=1e-5)
        runtime.tokens[:4, 0] = 5 + step
        runtime.positions[:4] += 1


def test_a_run_that_is_read_gives_none_either(tiny_run: Path) -> None:
    model = load_run(tiny_run).model
    assert model.decoder.logit_bias is not None
    assert model.decoder.logit_bias.isinf().nonzero().flatten().tolist() == [0, 1, 2]
