"""What the engine serves is what the plain reference decodes, for every option, whatever runs beside it."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.core.requests import GenerationRequest, HypothesisResult
from tests.reference.decoding import Decoded
from tests.reference.serving import Served
from tests.reference.strategies import TRAITS, requests, traits
from tests.reference.subject import NARROW, WIDE, Subject, clear_run

TOLERANCE = 1e-4  # of scores and log-probabilities: float32 against float64
UNDECIDED = 1e-4  # two numbers this close may change places
ROWS = 24  # so that requests wait for rows, and rows move

deterministic = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


class Bench:
    """A model served, and the reference that it is compared with."""

    def __init__(self, subject: Subject, served: Served) -> None:
        self.subject, self.served = subject, served
        self.undecided = 0
        self.compared: Counter[str] = Counter()

    def compare(self, asked: list[GenerationRequest], delays: list[float]) -> None:
        """Serves the requests together and holds each answer against the reference's."""
        for request, found in zip(asked, self.served.answers(asked, delays), strict=True):
            expected = self.subject.decode(request.source_ids, request.search)
            if expected.margin < UNDECIDED:
                self.undecided += 1
                continue
            assert_same(request, found, expected)
            self.compared.update(["all", *traits(request.search), *(h.reason.value for h in found)])


def assert_same(request: GenerationRequest, found: list[HypothesisResult], expected: Decoded) -> None:
    search = request.search
    told = f"{request}\nmargin {expected.margin}\nfound {found}\nexpected {expected.hypotheses}"
    assert [h.ids for h in found] == [h.ids for h in expected.hypotheses], told
    for ours, theirs in zip(found, expected.hypotheses, strict=True):
        assert ours.reason is theirs.reason, told
        assert ours.prefix == theirs.prefix, told
        assert ours.characters == theirs.characters, told
        if search.log_probabilities:
            assert ours.log_probabilities == pytest.approx(theirs.log_probabilities, abs=TOLERANCE), told
        if search.log_probabilities or search.beam:
            assert ours.score == pytest.approx(theirs.score, rel=TOLERANCE / 10, abs=TOLERANCE), told
        assert len(ours.alternatives) == len(theirs.alternatives), told
        for choices, others in zip(ours.alternatives, theirs.alternatives, strict=True):
            values = [choice.log_probability for choice in others]
            assert [choice.log_probability for choice in choices] == pytest.approx(values, abs=TOLERANCE), told
            gaps = [a - b for a, b in pairwise(values)]
            if min(gaps, default=1.0) > UNDECIDED:
                assert [choice.id for choice in choices[:-1]] == [choice.id for choice in others[:-1]], told


@pytest.fixture(scope="module", params=["narrow", "wide", "tiny"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two random models, of few tokens and of more than are candidates at first, and one that was trained."""
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
    """Seconds after which requests arrive: at once, or while others are being decoded."""
    return st.lists(st.sampled_from([0.0, 0.002, 0.005]), min_size=count, max_size=count)


def test_every_way_to_decode_is_what_the_reference_decodes(bench: Bench) -> None:
    @settings(deterministic, max_examples=100)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        asked = data.draw(mixed(bench.subject))
        bench.compare(asked, data.draw(arrivals(len(asked))))

    check()
    compared = bench.compared
    assert bench.undecided <= compared["all"] / 10
    assert min(compared[trait] for trait in TRAITS) >= 5, compared  # all of it was tried


def test_answers_are_the_same_to_the_bit_in_any_company(bench: Bench) -> None:
    @settings(deterministic, max_examples=40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        asked = data.draw(mixed(bench.subject))
        alone = [bench.served.answers([request], [0.0])[0] for request in asked]
        order = data.draw(st.permutations(range(len(asked))))
        together = bench.served.answers([asked[i] for i in order], data.draw(arrivals(len(asked))))
        assert together == [alone[i] for i in order]

    check()
