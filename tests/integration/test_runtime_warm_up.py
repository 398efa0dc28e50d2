"""A model that is loaded has run with the shapes that it will be asked for."""

from pathlib import Path

import pytest

from dragoman_server.bundle.load import load_bundle
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import WARM_UP_ENCODED, Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step_results import TopKResult


@pytest.mark.parametrize(
    ("max_rows", "expected"), [(1, [1]), (2, [1, 2]), (64, [1, 4, 16, 64]), (200, [1, 4, 16, 64, 200])]
)
def test_steps_of_few_and_of_all_rows_have_run(
    tiny_bundle: Path, max_rows: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[int] = []
    encoded: list[tuple[int, int]] = []
    top, encode = Runtime.top, Runtime.encode

    def counting_top(runtime: Runtime, rows: int, candidates: int) -> TopKResult:
        stepped.append(rows)
        return top(runtime, rows, candidates)

    def counting_encode(runtime: Runtime, sources: list[list[int]], row: int) -> int:
        encoded.append((row, len(sources)))
        assert len(sources) == 1 or sum(map(len, sources)) <= WARM_UP_ENCODED
        return encode(runtime, sources, row)

    monkeypatch.setattr(Runtime, "top", counting_top)
    monkeypatch.setattr(Runtime, "encode", counting_encode)
    bundle = load_bundle(tiny_bundle)
    Runtime(Sessions(bundle, CPU, 1), max_rows).warm_up()
    assert stepped == [1, *expected]  # the first with the longest source, at the last position
    assert max(row + count for row, count in encoded) == max_rows
