"""The runtime on the CPU: a row's numbers depend on that row alone, and warm-up covers the shapes of requests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import Attention
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.models.repository import SHIPPED_MODELS
from dragoman_server.runtime.buffers import unwritten_bytes
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import BLOCKWISE, ENCODED_TOKENS, Runtime, lone_rows_differ
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step_results import TopKResult
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P
from tests.support.random_model import small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")

FORCED_TOKENS = [23, 14, 9, 30]  # decoder inputs, whatever the model predicts
VOCABULARY = 43

ROWS, STEPS, MAX_ROWS = 24, 5, 26
GROUPS = [[5], [7, 5], [1], [9], [10], [2, 9], [1, 2, 5, 9, 8], list(range(12)), list(range(ROWS))[::-1]]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(SHIPPED_FP32)


@pytest.fixture(scope="module", params=["ort", "standard"])
def random_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of random weights, whose rows differ more than those of a trained model."""
    attention: Attention = request.param
    folder: Path = tmp_path_factory.mktemp("choices")
    options = ExportOptions(name="small", attention=attention, device="cpu")
    export_run(small_run(folder / "run"), folder / "bundle", options)
    return load_bundle(folder / "bundle")


def source_ids(bundle: Bundle, text: str) -> list[int]:
    ids: list[int] = bundle.source_tokenizer.encode(text).ids
    return ids


def forced_decode(runtime: Runtime, rows: int) -> NDArray[np.float32]:
    """Decodes FORCED_TOKENS in all rows; returns log-probabilities of row 0 [positions, tokens], tokens by rank."""
    log_probabilities = []
    for token in FORCED_TOKENS:
        result = runtime.top(rows, VOCABULARY)
        assert result.ids.shape[0] == rows
        log_probabilities.append(result.log_probabilities[0].copy())
        runtime.tokens[:rows, 0] = token
        runtime.positions[:rows] += 1
    return np.stack(log_probabilities)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_padding_a_step_does_not_change_its_result(bundle: Bundle, max_rows: int) -> None:
    sessions, source = Sessions(bundle, CPU, 1), source_ids(bundle, "dragoman")
    plain, padded = Runtime(sessions, max_rows, min_rows=1), Runtime(sessions, max_rows, min_rows=2)
    for runtime in (plain, padded):
        runtime.encode([source], 0)
    assert (plain.padded_rows(1), padded.padded_rows(1), padded.padded_rows(3)) == (1, 2, 3)
    np.testing.assert_array_equal(forced_decode(padded, 1), forced_decode(plain, 1))
    if max_rows > 1:  # a new request takes the padding row
        for runtime in (plain, padded):
            runtime.encode([source, source_ids(bundle, "interpreter")], 0)
        np.testing.assert_array_equal(
            padded.top(2, VOCABULARY).log_probabilities, plain.top(2, VOCABULARY).log_probabilities
        )


def test_padding_a_step_with_edits_does_not_change_its_result(bundle: Bundle) -> None:
    sessions, source = Sessions(bundle, CPU, 1), source_ids(bundle, "dragoman")
    step_request = StepRequest(3, temperature=0.7, edits=LogitEdits(ids=[9], penalties=[1.5], offsets=[0.25]))
    results = []
    for min_rows in (1, 2):
        runtime = Runtime(sessions, 2, min_rows=min_rows)
        runtime.encode([source], 0)
        results.append(runtime.step([step_request]).top(0))
    assert results[0] == results[1]


def test_steps_are_padded_on_cpus_that_compute_lone_rows_differently(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(bundle, CPU, 1)
    assert not lone_rows_differ(sessions), "fp32 is the same on all CPUs tested so far"
    top = Runtime.top

    def rounded(runtime: Runtime, rows: int, candidates: int) -> TopKResult:
        result = top(runtime, rows, candidates)
        if rows == 1:
            result.log_probabilities[0, 1] = np.nextafter(result.log_probabilities[0, 1], np.float32(-99))
        return result

    monkeypatch.setattr(Runtime, "top", rounded)
    assert lone_rows_differ(sessions)
    assert Runtime(sessions, 4).min_rows == 1, "not measured for fp32"
    for precision in BLOCKWISE:
        other = replace(bundle, manifest=bundle.manifest.model_copy(update={"precision": precision}))
        assert Runtime(Sessions(other, CPU, 1), 4).min_rows == 2


@pytest.mark.parametrize("limit", [64, 9])
def test_longer_sources_in_the_batch_do_not_change_a_row(bundle: Bundle, limit: int) -> None:
    """The limit of 9, end token included, is not a multiple of the source padding."""
    limits = bundle.manifest.limits.model_copy(update={"max_source_tokens": limit})
    limited = replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))
    runtime = Runtime(Sessions(limited, CPU, 1), 3)
    sources = [source_ids(limited, text) for text in ("dragoman", "of", "courts")]
    assert [len(source) for source in sources] == [9, 3, 7]
    assert runtime.encode(sources, 0) == 3 * 12 - 19, "padding"
    together = forced_decode(runtime, 3)
    assert runtime.encode(sources[:1], 0) == 3
    np.testing.assert_array_equal(forced_decode(runtime, 1), together)


def test_a_source_of_one_token_is_padded_to_min_rows(bundle: Bundle) -> None:
    sessions, lone = Sessions(bundle, CPU, 1), [bundle.manifest.tokens.end]
    results = []
    for min_rows in (1, 2):
        runtime = Runtime(sessions, 2, min_rows=min_rows)
        assert runtime.encode([lone], 0) == 3, "padding"
        results.append(forced_decode(runtime, 1))
    np.testing.assert_array_equal(results[0], results[1])


def test_integer_products_of_the_shipped_model_fit_into_16_bits() -> None:
    """x86 without VNNI adds two products of a byte and a weight in 16 bits; they fit for any activations."""
    products = 0
    shipped = load_bundle(SHIPPED_G2P)
    for path in (shipped.encoder, shipped.decoder, shipped.scorer):
        graph = onnx.load(path).graph
        producers = {name: node for node in graph.node for name in node.output}
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "MatMulIntegerToFloat":
                name = node.input[1]
                weight = onnx.numpy_helper.to_array(tensors[producers[name].input[0] if name in producers else name])
                assert 2 * 255 * int(np.abs(weight.astype(np.int32)).max()) < 2**15
                products += 1
    assert products > 40


def test_warm_up_runs_the_limits_and_leaves_other_rows_alone(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(Sessions(bundle, CPU, 1), 3)
    stepped: list[tuple[int, int, int]] = []
    top = Runtime.top

    def recording_top(runtime: Runtime, rows: int, candidates: int) -> TopKResult:
        stepped.append((rows, int(runtime.source_lengths[0]), int(runtime.positions[0])))
        return top(runtime, rows, candidates)

    monkeypatch.setattr(Runtime, "top", recording_top)
    runtime.warm_up()
    assert stepped == [(1, runtime.source_capacity, runtime.target_capacity - 1)]
    used, *unused = (runtime.pool.cross_cache.read(0, row).any() for row in range(3))
    assert used
    assert not any(unused)


@pytest.mark.parametrize("longest", [40, 1])
def test_many_sources_are_encoded_in_several_runs(
    bundle: Bundle, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * ENCODED_TOKENS // 4 + 1 if longest == 1 else 30
    rng = np.random.default_rng(5)
    sources = [rng.integers(4, 20, rng.integers(1, longest + 1)).tolist() for _ in range(count - 1)] + [[5] * longest]
    runs: list[int] = []

    def caches(limit: int) -> list[NDArray[Any]]:
        runtime = Runtime(Sessions(bundle, CPU, 1), count)
        run: Any = runtime._encoder.run

        def recording_run(names: list[str], feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
            runs.append(feed["source_ids"].size)
            outputs: list[NDArray[Any]] = run(names, feed)
            return outputs

        monkeypatch.setattr(runtime._encoder, "run", recording_run)
        monkeypatch.setattr("dragoman_server.runtime.runtime.ENCODED_TOKENS", limit)
        padding = runtime.encode(sources, 0)
        assert padding == sum(runs) - sum(map(len, sources))
        return [runtime.pool.cross_cache.read(plane, row) for plane in range(2) for row in range(count)]

    together = caches(10**6)
    assert len(runs) == 1
    runs.clear()
    several = caches(ENCODED_TOKENS)
    assert len(runs) == 3
    assert max(runs) <= ENCODED_TOKENS
    for one, other, source in zip(together, several, 2 * sources, strict=True):
        np.testing.assert_array_equal(one[:, : len(source)], other[:, : len(source)])


def test_steps_of_many_sizes_reserve_no_more_memory() -> None:
    runtime = Runtime(Sessions(load_bundle(SHIPPED_MODELS / "de-en" / "1"), CPU, 1), ROWS)
    runtime.top(1, 1)
    assert runtime._lists.weights is not None, "the graph keeps the weights of listed tokens"
    before = unwritten_bytes()
    for rows in range(2, ROWS + 1):
        runtime.top(rows, 1)
    assert 0 < unwritten_bytes() <= before


class RandomRequests:
    """Rows with random sources, forced targets, and step requests that change from step to step."""

    def __init__(self, bundle: Bundle) -> None:
        rng = np.random.default_rng(7)
        shape, end = bundle.manifest.shape, bundle.manifest.tokens.end
        longest = bundle.manifest.limits.max_source_tokens
        self.vocabulary = shape.target_vocabulary
        self.sources = [
            [*rng.integers(end + 1, shape.source_vocabulary, rng.integers(0, longest)).tolist(), end]
            for _ in range(ROWS)
        ]
        self.targets = rng.integers(end + 1, self.vocabulary, (ROWS, STEPS))
        self.shortlists = [
            tuple(sorted(rng.choice(self.vocabulary, count, replace=False).tolist()))
            for count in (3, 10, self.vocabulary - 1)
        ]

    def step_request(self, index: int, step: int) -> StepRequest:
        rng = np.random.default_rng([index, step])
        edited = rng.choice(self.vocabulary, int(rng.integers(1, 4)), replace=False).tolist()
        return StepRequest(
            candidates=int(rng.integers(1, 9)),
            edits=LogitEdits(edited, [1.3] * len(edited), [0.0] * len(edited)) if rng.random() < 0.5 else None,
            temperature=[1.0, 0.7][index % 2],
            untempered=True,
            vocabulary=self.shortlists[index % 3] if index % 4 == 1 else None,
            attention=index % 5 == 0,
        )

    def decode(self, runtime: Runtime, indices: list[int]) -> dict[int, list[Any]]:
        """Decodes some of the requests together; returns everything that the results hold, by request and step."""
        runtime.encode([self.sources[i] for i in indices], 0)
        decoded: dict[int, list[Any]] = {i: [] for i in indices}
        for step in range(STEPS):
            step_requests = [self.step_request(i, step) for i in indices]
            result = runtime.step(step_requests)
            for row, (i, step_request) in enumerate(zip(indices, step_requests, strict=True)):
                requested = slice(step_request.candidates)  # other rows may have requested more
                ids, log_probabilities = result.top(row)
                decoded[i].append(
                    (
                        ids[requested],
                        log_probabilities[requested],
                        result.untempered(row)[requested],
                        result.edited(row),
                        result.attention(row).tolist() if step_request.attention else None,
                    )
                )
                runtime.tokens[row, 0] = self.targets[i, step]
            runtime.positions[: len(indices)] += 1
        return decoded


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_bit_equal_whatever_the_other_rows_request(random_bundle: Bundle, threads: int) -> None:
    runtime = Runtime(Sessions(random_bundle, CPU, threads), MAX_ROWS)
    requests = RandomRequests(random_bundle)
    together = requests.decode(runtime, list(range(ROWS)))
    assert any(len(set(map(str, steps))) == STEPS for steps in together.values())
    for group in GROUPS:
        for index, steps in requests.decode(runtime, group).items():
            assert steps == together[index], f"request {index} in {group}"


def test_repeating_a_step_changes_nothing(random_bundle: Bundle) -> None:
    runtime = Runtime(Sessions(random_bundle, CPU, 1), MAX_ROWS)
    requests = RandomRequests(random_bundle)
    expected = requests.decode(runtime, [0, 1, 2])
    step = runtime.step

    def step_twice(step_requests: list[StepRequest]) -> Any:
        step([StepRequest(requests.vocabulary) for _ in step_requests])
        return step(step_requests)

    runtime.step = step_twice  # type: ignore[method-assign, assignment]
    assert requests.decode(runtime, [0, 1, 2]) == expected


def test_a_row_with_all_tokens_forbidden_has_no_candidates(random_bundle: Bundle) -> None:
    runtime = Runtime(Sessions(random_bundle, CPU, 1), MAX_ROWS)
    requests = RandomRequests(random_bundle)
    runtime.encode(requests.sources[:3], 0)
    tokens = list(range(requests.vocabulary))
    forbid_all = LogitEdits(tokens, [1.0] * len(tokens), [-np.inf] * len(tokens))
    shortlist = requests.shortlists[0]
    result = runtime.step(
        [StepRequest(2, forbid_all), StepRequest(2), StepRequest(2, forbid_all, vocabulary=shortlist)]
    )
    assert result.top(0)[1] == [-np.inf, -np.inf]
    assert result.top(2)[1] == [-np.inf, -np.inf]
    assert result.best(0)[1] == -np.inf
    assert set(result.edited(0)) == {-np.inf}
    assert all(np.isfinite(result.top(1)[1]))


def test_forked_rows_continue_as_if_decoded_alone(random_bundle: Bundle) -> None:
    """Checks a row that receives the tail of another's target, and a row that is a full copy."""
    runtime = Runtime(Sessions(random_bundle, CPU, 1), MAX_ROWS)
    source, target, other_target = RandomRequests(random_bundle).sources[0], [5, 6, 7, 8], [5, 6, 11, 12]

    def feed(*targets: list[int]) -> None:
        """Decodes forced targets of equal length, one per row."""
        for position in range(len(targets[0])):
            runtime.step([StepRequest(3)] * len(targets))
            runtime.tokens[: len(targets), 0] = [target[position] for target in targets]
            runtime.positions[: len(targets)] += 1

    def last_step(rows: int) -> list[tuple[list[int], list[float]]]:
        result = runtime.step([StepRequest(3)] * rows)
        return [result.top(row) for row in range(rows)]

    last_tokens, expected = (20, 21, 22), []
    for token in last_tokens:
        runtime.encode([source], 0)
        feed([*target, token])
        expected += last_step(1)
    assert len({str(candidates) for candidates in expected}) == len(last_tokens)

    runtime.encode([source, source], 0)
    feed([*target, 20], [*other_target, 20])
    runtime.copy_target(0, 1, 3)  # both share the begin token and two more
    runtime.move_row(0, 2)
    runtime.tokens[:3, 0] = last_tokens
    assert last_step(3) == expected
