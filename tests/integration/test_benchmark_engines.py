"""The benchmark's engines without a server answer as the server does, and what they do is counted right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.local import LocalServer
from server.bundle.load import load_bundle
from server.search.options import SearchOptions
from tests.benchmark.answers import agreements, served_answers
from tests.benchmark.beam import Beam
from tests.benchmark.engine_loop import EngineLoop
from tests.benchmark.engine_work import EngineWork
from tests.benchmark.workload import Workload

TEXTS = [str(number) for number in range(7, 100, 3)]
STEPS = 24
BEAM = Beam(size=3)


@pytest.fixture(scope="module")
def workload(tiny_bundle: Path) -> Workload:
    encoded = load_bundle(tiny_bundle).source_tokenizer.encode_batch(TEXTS)
    return Workload("numbers", TEXTS, [e.ids for e in encoded], [e.tokens for e in encoded], STEPS)


@pytest.fixture(scope="module")
def engines(tiny_bundle: Path, workload: Workload) -> Iterator[EngineLoop]:
    searches = {"greedy": [SearchOptions(STEPS)], "beam": [BEAM.search(STEPS)]}
    engines = EngineLoop(tiny_bundle, workload.source_ids, searches, rows=32, cores=2)
    yield engines
    engines.close()


@pytest.mark.parametrize(("search", "beam"), [("greedy", None), ("beam", BEAM)])
def test_the_answers_are_the_servers(
    engines: EngineLoop, workload: Workload, tiny_server: LocalServer, search: str, beam: Beam | None
) -> None:
    served = served_answers(tiny_server, workload.unary(beam, tokens=True), 8)
    assert engines.answers(search, 8) == served
    assert all(served)


def test_tokens_and_work_are_counted(engines: EngineLoop, workload: Workload) -> None:
    answers = engines.answers("greedy", len(TEXTS))
    sample = engines.measure(1e-6, "greedy", len(TEXTS))
    work = sample.work
    assert work is not None
    assert (sample.sequences, len(sample.latencies)) == (len(TEXTS), 1)
    assert sample.tokens == round(workload.mean_steps(answers) * len(TEXTS))
    # Every token of a greedy search is one step of one row; what follows from it is decided for all rows at once.
    assert (work.row_steps, work.advances) == (sample.tokens, 0)
    assert (work.branch_rows, work.branch_seconds) == (0, 0)
    assert 0 < work.step_seconds < 2 * sample.seconds  # two engines

    beams = engines.measure(1e-6, "beam", len(TEXTS)).work
    assert beams is not None
    assert beams.advances < beams.row_steps <= BEAM.size * beams.advances
    assert 0 < beams.branch_rows < beams.row_steps
    assert beams.branch_seconds > 0


def test_a_server_tells_its_work(workload: Workload, tiny_server: LocalServer) -> None:
    before = EngineWork.of_page(tiny_server.metrics())
    served = served_answers(tiny_server, workload.unary(tokens=True), 8)
    work = EngineWork.of_page(tiny_server.metrics()).since(before)
    assert work.row_steps == round(workload.mean_steps(served) * len(TEXTS))
    assert 0 < work.steps < work.row_steps
    assert work.step_seconds > 0


def test_answers_that_differ_are_judged(tiny_bundle: Path, workload: Workload) -> None:
    answers = [[4]] * len(TEXTS)
    others = [[5], *answers[1:]]
    (found,) = agreements({"one": answers, "other": others}, load_bundle(tiny_bundle), workload, SearchOptions(STEPS))
    assert (found.same, found.inputs) == (len(TEXTS) - 1, len(TEXTS))
    assert found.undecided == 0  # the model is sure of what to answer
