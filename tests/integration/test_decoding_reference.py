"""The engine decodes as the slow reference, for every option, whatever else runs."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.bundle.load import load_bundle
from dragoman_server.core.requests import GenerationRequest, GenerationResult, HypothesisResult, Progress
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.pool import EnginePool
from dragoman_server.metrics import ServerMetrics
from tests.reference.decoding import Decoded
from tests.reference.strategies import TRAITS, requests, traits
from tests.reference.subject import NARROW, WIDE, Subject, clear_run

TOLERANCE = 1e-4  # of scores and log-probabilities: float32 against float64
UNDECIDED = 1e-4  # two numbers this close may change their order
ROWS = 24  # few, so that requests wait for rows, and rows move

deterministic = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


Result = TypeVar("Result")


class Served:
    """The engines of a bundle on an event loop in a thread, for a program that is not asynchronous."""

    def __init__(self, bundle: Path, rows: int) -> None:
        self._bundle = bundle
        self._options = EngineOptions(device="cpu", engines=1, threads_per_engine=1, max_rows=rows)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        self._pool = EnginePool(load_bundle(self._bundle), self._options, ServerMetrics().model("test"))
        self._do(self._pool.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._do(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def answers(self, requests: Sequence[GenerationRequest], delays: Sequence[float]) -> list[list[HypothesisResult]]:
        """Returns all answers, where each request arrives after its delay in seconds."""

        async def all_of_them() -> list[list[HypothesisResult]]:
            return await asyncio.gather(*(self._answer(r, d) for r, d in zip(requests, delays, strict=True)))

        return self._do(all_of_them())

    async def _answer(self, request: GenerationRequest, delay: float) -> list[HypothesisResult]:
        await asyncio.sleep(delay)
        generation = self._pool.submit(request)
        if not request.streaming:
            return (await generation.result()).hypotheses
        streamed: dict[int, list[int]] = {}
        async for event in generation.events():
            if isinstance(event, Progress):
                streamed.setdefault(event.hypothesis, []).extend(event.ids)
            elif isinstance(event, GenerationResult):
                final = {index: h.ids for index, h in enumerate(event.hypotheses)}
                assert streamed == {index: final.get(index) for index in streamed}, (request, streamed, event)
                return event.hypotheses
        raise AssertionError("the stream ended without an answer")

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class Bench:
    """A served model, and the reference that it is compared with."""

    def __init__(self, subject: Subject, served: Served) -> None:
        self.subject, self.served = subject, served
        self.undecided = 0
        self.compared: Counter[str] = Counter()

    def compare(self, batch: list[GenerationRequest], delays: list[float]) -> None:
        """Serves the requests together and compares each answer with the reference's."""
        for request, found in zip(batch, self.served.answers(batch, delays), strict=True):
            expected = self.subject.decode(request.source_ids, request.search)
            if expected.margin < UNDECIDED:
                self.undecided += 1
                continue
            assert_same(request, found, expected)
            self.compared.update(["all", *traits(request.search), *(h.reason.value for h in found)])


def assert_same(request: GenerationRequest, found: list[HypothesisResult], expected: Decoded) -> None:
    search = request.search
    context = f"{request}\nmargin {expected.margin}\nfound {found}\nexpected {expected.hypotheses}"
    assert [h.ids for h in found] == [h.ids for h in expected.hypotheses], context
    for ours, theirs in zip(found, expected.hypotheses, strict=True):
        assert ours.reason is theirs.reason, context
        assert ours.prefix == theirs.prefix, context
        assert ours.characters == theirs.characters, context
        if search.log_probabilities:
            assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=TOLERANCE), context
        if search.log_probabilities or search.beam:
            assert ours.score == pytest.approx(theirs.score, rel=TOLERANCE / 10, abs=TOLERANCE), context
        assert len(ours.alternatives) == len(theirs.alternatives), context
        for choices, others in zip(ours.alternatives, theirs.alternatives, strict=True):
            values = [choice.log_probability for choice in others]
            assert [choice.log_probability for choice in choices] == pytest.approx(values, abs=TOLERANCE), context
            gaps = [a - b for a, b in pairwise(values)]
            if min(gaps, default=1.0) > UNDECIDED:
                assert [choice.id for choice in choices[:-1]] == [choice.id for choice in others[:-1]], context


@pytest.fixture(scope="module", params=["narrow", "wide", "tiny"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two random models, with fewer and more tokens than sampling requests at first, and a trained one."""
    if request.param == "tiny":
        run, bundle = request.getfixturevalue("tiny_run"), request.getfixturevalue("tiny_bundle")
    else:
        folder: Path = tmp_path_factory.mktemp(request.param)
        run = clear_run(folder / "run", *(NARROW if request.param == "narrow" else WIDE))
        bundle = folder / "bundle"
        export_run(run, bundle, ExportOptions(name=request.param, device="cpu"))
    with Served(bundle, ROWS) as served:
        yield Bench(Subject(run), served)


def mixed(subject: Subject) -> SearchStrategy[list[GenerationRequest]]:
    return st.lists(requests(subject), min_size=1, max_size=8)


def arrivals(count: int) -> SearchStrategy[list[float]]:
    """Delays in seconds: requests arrive at once, or while others are being decoded."""
    return st.lists(st.sampled_from([0.0, 0.002, 0.005]), min_size=count, max_size=count)


def test_every_way_to_decode_agrees_with_the_reference(bench: Bench) -> None:
    @settings(deterministic, max_examples=100)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        batch = data.draw(mixed(bench.subject))
        bench.compare(batch, data.draw(arrivals(len(batch))))

    check()
    compared = bench.compared
    assert bench.undecided <= compared["all"] / 10
    assert min(compared[trait] for trait in TRAITS) >= 5, compared  # every option was compared


def test_answers_are_the_same_to_the_bit_whatever_else_runs(bench: Bench) -> None:
    @settings(deterministic, max_examples=40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        batch = data.draw(mixed(bench.subject))
        alone = [bench.served.answers([request], [0.0])[0] for request in batch]
        order = data.draw(st.permutations(range(len(batch))))
        together = bench.served.answers([batch[i] for i in order], data.draw(arrivals(len(batch))))
        assert together == [alone[i] for i in order]

    check()
