"""Compares greedy answers of the graphs with those of the model, or with those recorded at export."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman_export.checks.offline_decoding import (
    decode_greedily,
    encode_sources,
    forced_first,
    longest_answer,
    within_limit,
)
from dragoman_export.checks.references import TorchReference, recorded_check
from dragoman_export.checks.tolerance import allowed_difference
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.runtime import Runtime

RECORDED_ANSWERS = 32  # greedy answers that the manifest keeps, for a check without the model
NEAR_TIES = 0.02  # share of answers at near ties, which another CPU may decide differently


@dataclass
class GraphAnswers:
    """Greedy answers of the graphs.

    Attributes:
        texts: The sources.
        sources: Token ids of the sources.
        ids: The answers.
        seconds: Time that the graphs took.
    """

    texts: list[str]
    sources: list[list[int]]
    ids: list[list[int]]
    seconds: float


def decode_texts(bundle: Bundle, runtime: Runtime, texts: Sequence[str]) -> GraphAnswers:
    """Decodes the texts within the model's limit."""
    kept = list(within_limit(bundle, texts))
    sources = [ids for _, ids in kept]
    start = time.perf_counter()
    answers = decode_greedily(runtime, sources)
    return GraphAnswers([text for text, _ in kept], sources, answers, time.perf_counter() - start)


@dataclass
class GreedyAnswers:
    """Greedy answers of graphs and model to the same sources.

    Attributes:
        graphs: Answers of the graphs.
        pytorch: Answers of the model, up to the first token in which they differ.
    """

    graphs: GraphAnswers
    pytorch: list[list[int]]

    @property
    def equal(self) -> int:
        return sum(a == b for a, b in zip(self.graphs.ids, self.pytorch, strict=True))

    def document(self) -> dict[str, Any]:
        return {
            "sources": len(self.graphs.sources),
            "equal": self.equal,
            "seconds_graphs": round(self.graphs.seconds, 3),
            "answers": [list(pair) for pair in zip(self.graphs.texts, self.graphs.ids, strict=True)][:RECORDED_ANSWERS],
        }


def compare_greedy(
    manifest: Manifest, graphs: GraphAnswers, trained: TorchReference, tolerance: float, failures: list[str]
) -> dict[str, Any]:
    """Requires graphs and model to give the same answers, except where two tokens were equally likely."""
    answers = _compare(manifest, graphs, trained, failures)
    pairs = list(zip(graphs.ids, answers.pytorch, strict=True))
    different = [i for i, (ours, theirs) in enumerate(pairs) if ours != theirs]
    ties = [i for i in different if is_tie(trained, graphs.sources[i], *pairs[i], tolerance)]
    if len(ties) < len(different):
        text = next(graphs.texts[i] for i in different if i not in ties)
        failures.append(
            f"greedy answers of graphs and PyTorch differ for {len(different) - len(ties)} "
            f"of {len(pairs)} sources, the first of which is {text!r}"
        )
    return answers.document() | {"ties": len(ties)}


def compare_greedy_agreement(
    bundle: Bundle, graphs: GraphAnswers, trained: TorchReference, failures: list[str]
) -> dict[str, Any]:
    """Requires about as many equal answers of graphs and model as at export."""
    answers = _compare(bundle.manifest, graphs, trained, failures)
    before, count = recorded_check(bundle).greedy, len(graphs.sources)
    expected = before.equal if before.sources == count else 0
    if answers.equal < expected - NEAR_TIES * count:
        failures.append(
            f"greedy answers of graphs and PyTorch are equal for {answers.equal} of {count} sources, "
            f"and were for {expected} when the bundle was made"
        )
    return answers.document()


def repeat_greedy(bundle: Bundle, runtime: Runtime, failures: list[str]) -> dict[str, Any]:
    """Requires the answers that the manifest recorded."""
    answers = recorded_check(bundle).greedy.answers
    if not answers:
        failures.append("the manifest holds no greedy answers to compare with, so pass --run RUN")
        return {"sources": 0, "equal": 0}
    texts = [text for text, _ in answers]
    sources = encode_sources(bundle, texts)
    decoded = decode_greedily(runtime, sources)
    equal = [answer == recorded for answer, (_, recorded) in zip(decoded, answers, strict=True)]
    if not all(equal):
        failures.append(
            f"greedy answers are not those of the manifest for {equal.count(False)} of {len(equal)} sources, "
            f"the first of which is {texts[equal.index(False)]!r}"
        )
    return {"sources": len(equal), "equal": equal.count(True)}


def is_tie(trained: TorchReference, source: list[int], a: list[int], b: list[int], tolerance: float) -> bool:
    """Returns whether the first differing tokens of two answers are equally likely, within the allowed difference."""
    end = trained.tokens.end
    a, b = [*a, end], [*b, end]
    place = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    targets = np.array([a[: place + 1]], np.int64)
    exact = trained.log_probabilities([source], targets)
    gap = abs(exact[0, place, a[place]] - exact[0, place, b[place]])
    return bool(gap <= 2 * allowed_difference(tolerance, trained.rounding([source], targets, exact)))


def _compare(manifest: Manifest, graphs: GraphAnswers, trained: TorchReference, failures: list[str]) -> GreedyAnswers:
    if not graphs.sources:
        failures.append(
            "none of the sources to compare greedy answers on is within the limit of "
            f"{manifest.limits.max_source_tokens} tokens"
        )
    pairs = zip(graphs.sources, graphs.ids, strict=True)
    return GreedyAnswers(graphs, [_model_answer(trained, manifest, source, answer) for source, answer in pairs])


def _model_answer(trained: TorchReference, manifest: Manifest, source: list[int], answer: list[int]) -> list[int]:
    """Returns what the model answers where the graphs gave an answer, up to the first different token.

    One pass over the given answer shows what greedy decoding would choose at each of its steps, as long as it chooses
    the same.
    """
    end, forced = manifest.tokens.end, forced_first(manifest)
    begin = [manifest.tokens.begin] if forced is None else [manifest.tokens.begin, forced]
    expected = [*answer[len(begin) - 1 :], end][: longest_answer(manifest) + 1 - len(begin)]  # long ones are cut
    for place, chosen in enumerate(trained.choices(source, answer, begin)[: len(expected)]):
        if chosen != expected[place]:
            return answer[: place + len(begin) - 1] + ([] if chosen == end else [chosen])
    return answer
