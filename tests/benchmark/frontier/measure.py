"""Measures the quality and the speed of one model, served and in CTranslate2."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from pydantic import BaseModel
from sacrebleu.metrics.bleu import BLEU

from dragoman.local import LocalServer
from dragoman_export.bundle.weights import load_model
from dragoman_server.bundle.load import Bundle
from tests.benchmark.serving import served_answers, served_contenders
from tests.benchmark.translators import Translators
from tests.benchmark.turns import Effort, Notify, take_turns
from tests.benchmark.workload import encoded
from tests.support.ctranslate2_model import convert

LOADS = (1, 64)
CTRANSLATE2 = "ctranslate2"
# By the request's use_shortlist, if the bundle has a shortlist.
SERVED = {None: "dragoman", False: "dragoman", True: "dragoman, shortlist"}


class Point(BaseModel):
    """One model in one system.

    Attributes:
        model: Name of the model.
        system: One of SERVED, or CTRANSLATE2.
        precision: Precision of the weights and products.
        bleu: BLEU of the greedy answers to the test sentences.
        rate: Tokens per second with 64 inputs in flight; of CTranslate2 in batches of 64.
        ms: Median milliseconds of one call at a time.
    """

    model: str
    system: str
    precision: str
    bleu: float
    rate: float
    ms: float


def measure(
    name: str, bundle: Bundle, pairs: Sequence[tuple[str, str]], folder: Path, effort: Effort, notify: Notify
) -> list[Point]:
    """Measures one bundle and CTranslate2 with the same weights.

    Args:
        name: Name of the model.
        pairs: Test sentences, source and reference.
        folder: Directory for the converted model.

    Raises:
        ActorError, ServerStartError: A contender failed.
    """
    sources = [source for source, _ in pairs]
    workload = encoded(bundle, "test sentences", sources, bundle.manifest.limits.max_target_tokens)
    if len(workload.texts) != len(pairs):
        raise ValueError(f"{name}: {len(pairs) - len(workload.texts)} test sentences have unknown tokens")
    convert(load_model(bundle), bundle.source_tokenizer, bundle.target_tokenizer, folder)
    precision = bundle.manifest.precision
    uses = (None,) if bundle.manifest.shortlist is None else (False, True)
    served = {SERVED[use]: replace(workload, use_shortlist=use) for use in uses}
    with ExitStack() as stack:
        notify(f"{name}: choosing CTranslate2's kernels")
        translators = Translators(stack, folder, workload, precision, effort.seconds)
        server = stack.enter_context(LocalServer("--bundle", str(bundle.path), "--log-requests", "none"))
        notify(f"{name}: translating the test sentences")
        answers = {system: served_answers(server, requests) for system, requests in served.items()}
        answers[CTRANSLATE2] = translators.answers()
        contenders = [
            replace(one, system=system)
            for system, requests in served.items()
            for one in served_contenders(stack, server, requests)
            if one.system == "unary" and one.load in LOADS
        ]
        contenders += translators.contenders(LOADS)
        rows = take_turns(contenders, effort, lambda what: notify(f"{name}: {what}"))
    best = {(row.system, row.load): row for row in rows}
    references = [reference for _, reference in pairs]
    points = []
    for system, ids in answers.items():
        texts = bundle.target_tokenizer.decode_batch(ids)
        points.append(
            Point(
                model=name,
                system=system,
                precision=precision,
                bleu=BLEU().corpus_score(texts, [references]).score,
                rate=median(best[system, LOADS[1]].rates),
                ms=1000 * (best[system, LOADS[0]].p50 or 0.0),
            )
        )
    return points
