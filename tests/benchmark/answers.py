"""Whether all contenders gave the same answers, and if not, whether rounding can be why."""

from collections.abc import Sequence
from contextlib import closing
from functools import cache
from itertools import combinations
from pathlib import Path

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from server.bundle.load import Bundle, load_bundle
from server.search.options import SearchOptions
from tests.benchmark.actor import Actor
from tests.benchmark.outcome import Agreement
from tests.benchmark.workload import Workload
from tests.reference.decoding import decode
from tests.reference.model import ReferenceModel
from tests.support.bundle_weights import load_model
from tests.support.load import LoadGenerator
from training.evaluation.metrics import sequence_error_rate

Answers = Sequence[Sequence[int]]
"""Token ids of each input's answer, without the end token."""

UNDECIDED = 1e-4  # log-probabilities this close may change places with the rounding
MOST_JUDGED = 8  # answers of the reference, which takes seconds for each, by pair of contenders


def served_answers(server: LocalServer, requests: list[bytes], concurrency: int) -> list[list[int]]:
    """Token ids that the server answers each Generate request with; none where a call failed."""
    address = (LOOPBACK, server.port)
    with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", requests)) as generator:
        replies: list[bytes | None] = generator.call("answers", concurrency)
    parsed = [pb.GenerateResponse.FromString(reply) if reply else None for reply in replies]
    return [[token.id for token in response.hypotheses[0].tokens] if response else [] for response in parsed]


def agreements(
    answers: dict[str, Answers], bundle: Bundle, workload: Workload, search: SearchOptions
) -> list[Agreement]:
    """Of every two contenders.

    Args:
        answers: by contender.
        search: what all were asked for.
    """
    found = []
    for (one, first), (other, second) in combinations(answers.items(), 2):
        differing = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
        # Those of integers differ by more than rounding, of which the reference knows nothing.
        judged = differing[:MOST_JUDGED] if bundle.manifest.precision == "fp32" else []
        close = sum(margin(bundle.path, tuple(workload.source_ids[i]), search) < UNDECIDED for i in judged)
        undecided = close if len(judged) == len(differing) else None
        found.append(Agreement(one, other, len(first) - len(differing), len(first), undecided))
    return found


def sequence_error_rates(answers: dict[str, Answers], bundle: Bundle, workload: Workload) -> dict[str, float]:
    """In per cent, by contender; none where no references are known."""
    if not workload.references:
        return {}
    texts = {name: bundle.target_tokenizer.decode_batch([list(ids) for ids in each]) for name, each in answers.items()}
    return {
        name: sequence_error_rate(dict(zip(workload.texts, each, strict=True)), workload.references).value
        for name, each in texts.items()
    }


@cache
def margin(bundle: Path, source: tuple[int, ...], search: SearchOptions) -> float:
    """The smallest difference that decides anything on the way to an answer."""
    opened = load_bundle(bundle)
    decoder = opened.target_tokenizer
    return decode(_reference(bundle).forward(source), search, opened.manifest.tokens.end, decoder.decode).margin


@cache
def _reference(bundle: Path) -> ReferenceModel:
    opened = load_bundle(bundle)
    return ReferenceModel(load_model(opened), opened.manifest.tokens.begin)
