"""Beam searches that an engine advances together answer what each of them answers alone."""

import random
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, cast

import pytest

from dragoman_server.core.requests import FinishReason, GenerationRequest, GenerationResult, HypothesisResult
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import (
    BeamOptions,
    Constraints,
    Conventions,
    LengthNormalization,
    SamplingOptions,
    SearchOptions,
    Stopping,
)
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.factory import make_search
from dragoman_server.engine.engine import Engine
from dragoman_server.engine.job import Event, Job
from dragoman_server.engine.scheduler import Scheduler
from dragoman_server.engine.shared_queue import SharedQueue
from tests.support.counting_engines import Metrics, eager
from tests.support.scripted_runtime import TOKENS, ScriptedRuntime, random_script
from tests.support.scripted_search import END, Script, letters_decoder, run

LONGEST = 12  # generated tokens
PREFIX = 3  # forced tokens
VOCABULARY = 12


class Player:
    """An engine that is played turn by turn."""

    def __init__(self, scripts: Sequence[Script], rows: int) -> None:
        self.runtime = ScriptedRuntime(scripts, VOCABULARY, rows, LONGEST + PREFIX)
        self._events: SimpleQueue[list[tuple[Job, Event]]] = SimpleQueue()
        self._queue = SharedQueue(Scheduler(1, eager(gather_share=0.0)))
        self._engine = Engine(0, self.runtime, self._queue, cast(Any, Metrics()), self._events.put, lambda _: None)
        self.running: list[Job] = []
        self.answers: dict[Job, Event] = {}

    def submit(self, number: int, options: SearchOptions, time_limit: float | None = None) -> Job:
        request = GenerationRequest([number, END], options, time_limit=time_limit)
        job = Job(request, search_of(options), time.monotonic())
        self._queue.scheduler.submit(job)
        self.running.append(job)
        return job

    def turn(self) -> None:
        self._engine._turn()
        while not self._events.empty():
            for job, event in self._events.get():
                assert job not in self.answers
                self.answers[job] = event
                self.running.remove(job)

    def cancel(self, job: Job) -> None:
        self._queue.scheduler.cancel(job)
        self.running.remove(job)

    def play(self) -> None:
        for _ in range(1000):
            if not self.running:
                return
            self.turn()
        raise AssertionError("the engine does not come to an end")

    def hypotheses(self, job: Job) -> list[HypothesisResult]:
        answer = self.answers[job]
        assert isinstance(answer, GenerationResult)
        return answer.hypotheses


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes plain searches fail if they advance by themselves in an engine."""
    submitted = Player.submit

    def submit(player: Player, *args: Any, **more: Any) -> Job:
        job = submitted(player, *args, **more)
        search = job.search
        if isinstance(search, BeamSearch) and search.plan.plain and not search.rules.prefix:
            monkeypatch.setattr(search, "advance", None)
        return job

    monkeypatch.setattr(Player, "submit", submit)


def search_of(options: SearchOptions) -> Search:
    return make_search(options, cast(Any, TOKENS), VOCABULARY, letters_decoder(), [END])


def alone(script: Script, options: SearchOptions, **more: Any) -> list[HypothesisResult]:
    return run(search_of(options), script, **more).hypotheses


def random_beam(draw: random.Random) -> SearchOptions:
    """Returns a beam search that fits arrays."""
    width, limit = draw.choice([1, 2, 2, 3, 4, 4, 5, 7]), draw.randint(1, LONGEST)
    beam = BeamOptions(
        width,
        draw.choice(list(LengthNormalization)),
        draw.choice([1.0, 0.0, 0.6, 2.0, -1.0]),
        stopping=draw.choice(list(Stopping)),
        patience=draw.choice([0.3, 1.0, 1.5]),
    )
    usual = [token for token in range(VOCABULARY) if token != END]
    constraints = Constraints(
        min_new_tokens=draw.choice([0, 0, 0, draw.randint(0, limit)]),
        suppressed=draw.choice([(), (), (1, 5)]),
        prefix=draw.choice([(), (), tuple(draw.choices(usual, k=draw.randint(1, PREFIX - 1)))]),
        vocabulary=draw.choice([None, None, None, tuple(sorted({END, *draw.sample(usual, draw.randint(1, 9))}))]),
    )
    conventions = Conventions(forced_first=draw.choice([None, None, 2]), forces_end=draw.choice([False, True]))
    return SearchOptions(limit, draw.randint(1, width), beam, constraints=constraints, conventions=conventions)


def random_other(draw: random.Random) -> SearchOptions:
    """Returns a search of another kind."""
    return draw.choice(
        [
            SearchOptions(LONGEST),
            SearchOptions(5, sampling=SamplingOptions(7)),
            SearchOptions(LONGEST, 2, BeamOptions(4, groups=2)),
            SearchOptions(6, 2, BeamOptions(3), constraints=Constraints(no_repeat_ngram_size=1)),
        ]
    )


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("seed", range(150))
def test_beams_of_all_kinds_and_ages_in_one_engine_answer_what_each_alone_answers(seed: int) -> None:
    """With equal probabilities, dead ends, and other searches beside them."""
    draw = random.Random(seed)
    coarse, impossible = draw.choice([(False, 0.0), (False, 0.5), (True, 0.0), (True, 1.0)])
    scripts = [random_script(1000 * seed + n, VOCABULARY, coarse, impossible) for n in range(draw.randint(1, 9))]
    player = Player(scripts, draw.choice([8, 16, 40]))
    common = random_beam(draw)
    jobs: dict[Job, int] = {}
    for number in range(len(scripts)):
        options = draw.choice([common, common, random_beam(draw), random_other(draw)])
        jobs[player.submit(number, options)] = number
        for _ in range(draw.choice([0, 0, 1, 3])):
            if player.running:
                player.turn()
    player.play()
    for job, number in jobs.items():
        assert player.hypotheses(job) == alone(scripts[number], job.request.search)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("turns", range(1, 6))
@pytest.mark.parametrize("prefix", [(), (3, 4)])
def test_a_beam_that_runs_out_of_time_answers_with_what_it_has(prefix: tuple[int, ...], turns: int) -> None:
    options = SearchOptions(LONGEST, 3, BeamOptions(4), constraints=Constraints(prefix=prefix))
    scripts = [random_script(seed, VOCABULARY, False, 0.0) for seed in (5, 6)]
    player = Player(scripts, 16)
    now = time.monotonic()
    limited = player.submit(0, options, time_limit=now + 3600)
    other = player.submit(1, options)
    for _ in range(turns):
        player.turn()
    object.__setattr__(limited.request, "time_limit", now)
    player._engine._next_expiry = now
    player.play()
    assert player.hypotheses(limited) == alone(scripts[0], options, stop_after=turns)
    assert player.hypotheses(other) == alone(scripts[1], options)
    if turns <= 3:
        assert player.hypotheses(limited)[-1].reason is FinishReason.TIME_LIMIT


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("turns", range(4))
def test_a_beam_that_is_cancelled_leaves_the_others_alone(turns: int) -> None:
    options = SearchOptions(LONGEST, 2, BeamOptions(3))
    scripts = [random_script(seed, VOCABULARY, False, 0.0) for seed in range(4)]
    player = Player(scripts, 16)
    jobs = [player.submit(number, options) for number in range(3)]
    for _ in range(turns):
        player.turn()
    player.cancel(jobs[0])
    late = player.submit(3, options)
    player.play()
    assert jobs[0] not in player.answers
    for number, job in ((1, jobs[1]), (2, jobs[2]), (3, late)):
        assert player.hypotheses(job) == alone(scripts[number], options)
