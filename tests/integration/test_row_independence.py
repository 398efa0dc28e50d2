"""A row's numbers depend neither on how many rows there are nor on how long the sources beside its own are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import BLOCKWISE, Runtime, lone_rows_differ
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step_results import TopKResult
from tests.support.bundles import SHIPPED_FP32

ANSWER = [23, 14, 9, 30]  # decoded, whatever the model would say
ALL = 43  # tokens


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(SHIPPED_FP32)


def source(bundle: Bundle, text: str) -> list[int]:
    ids: list[int] = bundle.source_tokenizer.encode(text).ids
    return ids


def decode(runtime: Runtime, rows: int) -> NDArray[np.float32]:
    """Log-probabilities of row 0 while rows in use read `ANSWER`: [positions, tokens], tokens by rank."""
    found = []
    for token in ANSWER:
        scores = runtime.top(rows, ALL)
        assert scores.ids.shape[0] == rows
        found.append(scores.log_probabilities[0].copy())
        runtime.tokens[:rows, 0] = token
        runtime.positions[:rows] += 1
    return np.stack(found)


@pytest.mark.parametrize("max_rows", [1, 3])
def test_a_step_that_is_filled_up_finds_the_same(bundle: Bundle, max_rows: int) -> None:
    sessions, word = Sessions(bundle, CPU, 1), source(bundle, "dragoman")
    plain, filled = Runtime(sessions, max_rows, min_rows=1), Runtime(sessions, max_rows, min_rows=2)
    for runtime in (plain, filled):
        runtime.encode([word], 0)
    assert (plain.padded_rows(1), filled.padded_rows(1), filled.padded_rows(3)) == (1, 2, 3)
    np.testing.assert_array_equal(decode(filled, 1), decode(plain, 1))
    # A newcomer takes the row that filled up, with all that belongs to it.
    if max_rows > 1:
        for runtime in (plain, filled):
            runtime.encode([word, source(bundle, "interpreter")], 0)
        np.testing.assert_array_equal(filled.top(2, ALL).log_probabilities, plain.top(2, ALL).log_probabilities)


def test_a_filled_up_step_with_edits(bundle: Bundle) -> None:
    sessions, word = Sessions(bundle, CPU, 1), source(bundle, "dragoman")
    step_request = StepRequest(3, temperature=0.7, edits=LogitEdits(ids=[9], penalties=[1.5], offsets=[0.25]))
    found = []
    for min_rows in (1, 2):
        runtime = Runtime(sessions, 2, min_rows=min_rows)
        runtime.encode([word], 0)
        scores = runtime.step([step_request])
        found.append(scores.top(0))
    assert found[0] == found[1]


def test_a_cpu_that_computes_lone_rows_otherwise_is_found_out(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(bundle, CPU, 1)
    assert not lone_rows_differ(sessions), "fp32 is the same on every CPU that was tried"
    top = Runtime.top

    def rounded(runtime: Runtime, rows: int, candidates: int) -> TopKResult:
        scores = top(runtime, rows, candidates)
        if rows == 1:
            scores.log_probabilities[0, 1] = np.nextafter(scores.log_probabilities[0, 1], np.float32(-99))
        return scores

    monkeypatch.setattr(Runtime, "top", rounded)
    assert lone_rows_differ(sessions)
    assert Runtime(sessions, 4).min_rows == 1, "fp32 is not even looked at"
    for precision in BLOCKWISE:
        other = replace(bundle, manifest=bundle.manifest.model_copy(update={"precision": precision}))
        assert Runtime(Sessions(other, CPU, 1), 4).min_rows == 2


@pytest.mark.parametrize("limit", [64, 9])
def test_sources_beside_it_do_not_pad_a_row_into_other_numbers(bundle: Bundle, limit: int) -> None:
    """9, with the end token: a limit that is no multiple of what sources are padded to."""
    limits = bundle.manifest.limits.model_copy(update={"max_source_tokens": limit})
    short = replace(bundle, manifest=bundle.manifest.model_copy(update={"limits": limits}))
    runtime = Runtime(Sessions(short, CPU, 1), 3)
    words = [source(short, text) for text in ("dragoman", "of", "courts")]
    assert [len(word) for word in words] == [9, 3, 7]
    assert runtime.encode(words, 0) == 3 * 12 - 19, "padding"
    together = decode(runtime, 3)
    assert runtime.encode(words[:1], 0) == 3
    np.testing.assert_array_equal(decode(runtime, 1), together)


def test_a_source_of_one_token_is_encoded_beside_itself(bundle: Bundle) -> None:
    sessions, lone = Sessions(bundle, CPU, 1), [bundle.manifest.tokens.end]
    found = []
    for min_rows in (1, 2):
        runtime = Runtime(sessions, 2, min_rows=min_rows)
        assert runtime.encode([lone], 0) == 3, "padding"
        found.append(decode(runtime, 1))
    np.testing.assert_array_equal(found[0], found[1])


def test_every_product_of_the_shipped_model_fits_into_16_bits() -> None:
    """Whatever the activations: two products of a byte and a weight are added in 16 bits on x86 without VNNI."""
    onnx: Any = pytest.importorskip("onnx")
    from dragoman_server.bundle.load import shipped_bundle

    multiplied = 0
    shipped = load_bundle(shipped_bundle())
    for path in (shipped.encoder, shipped.decoder, shipped.scorer):
        model = onnx.load(path)
        makers = {name: node for node in model.graph.node for name in node.output}
        tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type == "MatMulIntegerToFloat":
                name = node.input[1]
                weight = onnx.numpy_helper.to_array(tensors[makers[name].input[0] if name in makers else name])
                assert 2 * 255 * int(np.abs(weight.astype(np.int32)).max()) < 2**15
                multiplied += 1
    assert multiplied > 40
