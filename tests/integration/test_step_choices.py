"""Rows of one step that choose in different ways: each gets the same to the last bit, whoever else is in the step."""

from typing import Any

import numpy as np
import pytest

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import Attention
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from tests.support.random_model import small_run

ROWS, STEPS, SLOTS = 24, 5, 26
GROUPS = [[5], [7, 5], [1], [9], [10], [2, 9], [1, 2, 5, 9, 8], list(range(12)), list(range(ROWS))[::-1]]


@pytest.fixture(scope="module", params=["ort", "standard"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    attention: Attention = request.param
    folder = tmp_path_factory.mktemp("choices")
    export_run(
        small_run(folder / "run"), folder / "bundle", ExportOptions(name="small", attention=attention, device="cpu")
    )
    return load_bundle(folder / "bundle")


class Requests:
    """Rows with random sources, targets, and step_requests that change from step to step."""

    def __init__(self, bundle: Bundle) -> None:
        rng = np.random.default_rng(7)
        shape, end = bundle.manifest.shape, bundle.manifest.tokens.end
        longest = bundle.manifest.limits.max_source_tokens
        self.size = shape.target_vocabulary
        self.sources = [
            [*rng.integers(end + 1, shape.source_vocabulary, rng.integers(0, longest)).tolist(), end]
            for _ in range(ROWS)
        ]
        self.targets = rng.integers(end + 1, self.size, (ROWS, STEPS))
        self.vocabularies = [
            tuple(sorted(rng.choice(self.size, count, replace=False).tolist())) for count in (3, 10, self.size - 1)
        ]

    def step_request(self, index: int, step: int) -> StepRequest:
        rng = np.random.default_rng([index, step])
        edited = rng.choice(self.size, int(rng.integers(1, 4)), replace=False).tolist()
        return StepRequest(
            candidates=int(rng.integers(1, 9)),
            edits=LogitEdits(edited, [1.3] * len(edited), [0.0] * len(edited)) if rng.random() < 0.5 else None,
            temperature=[1.0, 0.7][index % 2],
            untempered=True,
            vocabulary=self.vocabularies[index % 3] if index % 4 == 1 else None,
            attention=index % 5 == 0,
        )

    def decode(self, runtime: Runtime, chosen: list[int]) -> dict[int, list[Any]]:
        """All that the scores tell of each row at each step, by request."""
        runtime.encode([self.sources[i] for i in chosen], 0)
        told: dict[int, list[Any]] = {i: [] for i in chosen}
        for step in range(STEPS):
            step_requests = [self.step_request(i, step) for i in chosen]
            scores = runtime.step(step_requests)
            for row, (i, step_request) in enumerate(zip(chosen, step_requests, strict=True)):
                wanted = slice(step_request.candidates)  # others may have wanted more
                ids, log_probabilities = scores.top(row)
                told[i].append(
                    (
                        ids[wanted],
                        log_probabilities[wanted],
                        scores.untempered(row)[wanted],
                        scores.edited(row),
                        scores.attention(row).tolist() if step_request.attention else None,
                    )
                )
                runtime.tokens[row, 0] = self.targets[i, step]
            runtime.positions[: len(chosen)] += 1
        return told


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_gets_the_same_bits_whoever_else_is_in_the_step(bundle: Bundle, threads: int) -> None:
    runtime = Runtime(Sessions(bundle, CPU, threads), SLOTS)
    requests = Requests(bundle)
    together = requests.decode(runtime, list(range(ROWS)))
    assert any(len(set(map(str, told))) == STEPS for told in together.values())
    for group in GROUPS:
        for index, told in requests.decode(runtime, group).items():
            assert told == together[index], f"request {index} in {group}"


def test_repeating_a_step_for_more_candidates_changes_nothing(bundle: Bundle) -> None:
    runtime = Runtime(Sessions(bundle, CPU, 1), SLOTS)
    requests = Requests(bundle)
    expected = requests.decode(runtime, [0, 1, 2])
    once = runtime.step

    def twice(step_requests: list[StepRequest]) -> Any:
        once([StepRequest(requests.size) for _ in step_requests])
        return once(step_requests)

    runtime.step = twice  # type: ignore[method-assign, assignment]
    assert requests.decode(runtime, [0, 1, 2]) == expected


def test_a_row_of_which_everything_is_forbidden_has_no_candidate(bundle: Bundle) -> None:
    runtime = Runtime(Sessions(bundle, CPU, 1), SLOTS)
    requests = Requests(bundle)
    runtime.encode(requests.sources[:3], 0)
    every = list(range(requests.size))
    nothing = LogitEdits(every, [1.0] * len(every), [-np.inf] * len(every))
    listed = requests.vocabularies[0]
    scores = runtime.step([StepRequest(2, nothing), StepRequest(2), StepRequest(2, nothing, vocabulary=listed)])
    assert scores.top(0)[1] == [-np.inf, -np.inf]
    assert scores.top(2)[1] == [-np.inf, -np.inf]
    assert scores.best(0)[1] == -np.inf
    assert set(scores.edited(0)) == {-np.inf}
    assert all(np.isfinite(scores.top(1)[1]))


def test_rows_that_branch_go_on_as_their_parent_would(bundle: Bundle) -> None:
    """A row copied behind what it shares with its parent's, and a new one, against decoding each alone."""
    runtime = Runtime(Sessions(bundle, CPU, 1), SLOTS)
    requests = Requests(bundle)
    source, words, others = requests.sources[0], [5, 6, 7, 8], [5, 6, 11, 12]

    def feed(*targets: list[int]) -> None:
        """A step for each place of the targets, which have rows of their own."""
        for place in range(len(targets[0])):
            runtime.step([StepRequest(3)] * len(targets))
            runtime.tokens[: len(targets), 0] = [target[place] for target in targets]
            runtime.positions[: len(targets)] += 1

    def last(rows: int) -> list[tuple[list[int], list[float]]]:
        scores = runtime.step([StepRequest(3)] * rows)
        return [scores.top(row) for row in range(rows)]

    ends, expected = (20, 21, 22), []
    for end in ends:
        runtime.encode([source], 0)
        feed([*words, end])
        expected += last(1)
    assert len({str(told) for told in expected}) == len(ends)

    runtime.encode([source, source], 0)
    feed([*words, 20], [*others, 20])
    runtime.copy_target(0, 1, 3)  # the begin token and two more are in both
    runtime.move_row(0, 2)
    runtime.tokens[:3, 0] = ends
    assert last(3) == expected
