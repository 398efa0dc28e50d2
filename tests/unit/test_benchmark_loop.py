"""The benchmark of the loop around the graphs."""

import cProfile
from pathlib import Path

import pytest

from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.loop.calls import _calls
from tests.benchmark.loop.report import document, functions, markdown
from tests.benchmark.loop.turns import LEAST_TURNS, Loop, Turn, Turns
from tests.described_machine import MACHINE


def test_shares_and_what_a_request_costs() -> None:
    quiet = [Turn(10.0, 9.0, 0.0, 0)] * LEAST_TURNS  # 1 outside the graphs
    busy = [Turn(20.0, 9.0, 6.0, 4)] * 10  # 5, for two requests that end and two that begin
    turns = Turns(8, [*quiet, *busy])
    assert turns.steady == pytest.approx((1.0, 0.1))
    assert turns.mean("rest") == pytest.approx((LEAST_TURNS + 50) / (LEAST_TURNS + 10))
    assert turns.share == pytest.approx((LEAST_TURNS + 50) / (10 * LEAST_TURNS + 200))
    assert turns.request == pytest.approx(2.0)
    assert Turns(8, busy).steady is None
    assert Turns(8, busy).request is None


def test_turns_of_an_engine_and_their_profile_are_measured_and_told(tmp_path: Path) -> None:
    bundle = load_bundle(shipped_bundle())
    source = bundle.source_tokenizer.encode("word").ids
    loop = Loop(bundle, [source, source * 2], 20)
    profile = cProfile.Profile()
    turns = [loop.measure(1, 0.1), loop.measure(4, 0.1, profile)]
    for each in turns:
        assert each.turns
        assert all(turn.decoder > 0 and turn.rest > 0 for turn in each.turns), "there is a step in every turn"
        assert {turn.encoder > 0 for turn in each.turns} == {True, False}, "nobody comes in most of them"
        assert all(turn.changed for turn in each.turns if turn.encoder), "whoever is encoded has just come"
    assert "_turn" in functions(profile)
    line = b'{"event": "request", "total_ms": 2.0, "tokenize_ms": 0.5, "decode_ms": 1.0}\n'
    calls = [_calls(8, [0.003], b'{"event": "listening"}\nno line of ours\n' + line)]
    assert (calls[0].calls, calls[0].client, calls[0].outside) == (1, 3.0, 1.0)
    text = markdown("a model", turns, calls, MACHINE)
    assert text.count("\n| 4 ") == 1
    assert "| 8         | 1     | 3.00   | 0.50" in text
    assert document("a model", turns, calls, MACHINE)["turns"][1]["rows"] == 4


def test_the_share_at_32_rows_is_held_against_its_mark() -> None:
    turns = [Turns(8, [Turn(10.0, 5.0, 0.0, 0)]), Turns(32, [Turn(10.0, 8.0, 0.5, 1)])]
    assert "**Missed:** at 32 rows 15% of a turn are not spent in the graphs (at most 10% wanted)." in markdown(
        "a model", turns, [], MACHINE
    )
    (mark,) = document("a model", turns, [], MACHINE)["marks"]
    assert mark["values"] == pytest.approx([0.15])
