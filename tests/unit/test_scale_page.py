"""docs/scale.md shows what was measured, simulated and computed."""

import re
from pathlib import Path
from typing import Any

import pytest

from deploy.generate import CHART
from tests.conftest import ROOT
from tests.scale import scaling, simulate
from tests.scale.page import PAGE, filled, recorded
from tests.scale.picture import draw
from tests.scale.plan import addresses, followed_replicas
from tests.scale.scaling import chart_behavior, waiting_target
from tests.scale.simulate import MODEL, limits, point, points
from tests.scale.tables import TRANSLATOR, Facts, all_tables
from tests.scale.training import H100, MACHINES, PAPER_TOKENS, Shape, Step
from tests.scale.validate import FIXED, Load, Run, compare

TEXT = PAGE.read_text(encoding="utf-8")
PROSE = " ".join(TEXT.split())


@pytest.fixture(scope="module")
def facts() -> Facts:
    return recorded()


def test_tables_are_those_of_the_results(facts: Facts) -> None:
    assert filled(TEXT, all_tables(facts)) == TEXT, "run python -m tests.scale.page"


def test_missing_tables_are_noticed(facts: Facts) -> None:
    tables = all_tables(facts)
    with pytest.raises(ValueError, match="expected"):
        filled(TEXT.replace("<!-- burst:", "<!-- other:"), tables)
    with pytest.raises(ValueError, match="expected"):
        filled(TEXT, {name: table for name, table in tables.items() if name != "cost"})


def test_replicas_are_still_full_at_the_recorded_rates(facts: Facts) -> None:
    assert limits(facts.measured) == pytest.approx(facts.queue.limits, rel=0.03)


@pytest.mark.parametrize("model", ["g2p-en", "de-en", "base"])
def test_queues_are_still_those_that_were_recorded(facts: Facts, model: str) -> None:
    """Sums in another order may round differently, and one call that comes first elsewhere changes what follows."""
    (known,) = [p for p in facts.queue.utilization if (p.model, p.utilization) == (model, facts.plan.utilization)]
    found = point(
        facts.measured[model], facts.queue.limits[model], model, known.replicas, known.balancer, known.utilization
    )
    assert (found.p50, found.p99) == pytest.approx((known.p50, known.p99), rel=0.05)
    assert (found.queue_p50, found.queue_p99) == pytest.approx((known.queue_p50, known.queue_p99), rel=0.1)


def test_every_simulation_is_recorded(facts: Facts) -> None:
    asked = points(facts.measured, facts.queue.limits)
    assert {name: len(each) for name, each in asked.items()} == {
        name: len(getattr(facts.queue, name)) for name in asked
    }
    assert [(one.name, one.start_seconds) for one in facts.queue.bursts][:2] == [
        ("none", None),
        ("waiting requests", 30),
    ]


def test_the_comparison_with_a_benchmark_can_be_repeated(facts: Facts) -> None:
    known = [each for each in facts.queue.validation if (each.run, each.model) == ("serving", "base")]
    loads = [Load(each.callers, each.rate, *each.measured) for each in known]
    found = compare(Run("serving", "base", "", FIXED, loads), facts.measured["base"])
    assert len(found) >= 3
    for one, other in zip(found, known, strict=True):
        assert one.factor == pytest.approx(other.factor, rel=0.02)
        assert one.simulated == pytest.approx(other.simulated, rel=0.1)


def test_all_simulations_run_and_are_drawn(facts: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m tests.scale` does, with fewer calls and a shorter burst."""
    monkeypatch.setattr(simulate, "CALLS", 400)
    monkeypatch.setattr(simulate, "runs", lambda measured: iter(()))
    sizes: dict[str, Any] = {"REPLICAS": 2, "TARGET_CALLS": 400, "BURST_END": 40.0, "HOUR": 1.0, "MORNING_END": 20.0}
    sizes |= {"BURST": {"start": 5.0, "rise": 5.0, "hold": 10.0, "factor": 2.0}}
    sizes |= {"SURPRISE": {"start": 12.0, "rise": 1.0, "hold": 2.0, "factor": 1.5}}
    for name, value in sizes.items():
        monkeypatch.setattr(scaling, name, value)
    said: list[str] = []
    found = simulate.simulate({MODEL: facts.measured[MODEL]}, facts.plan, said.append)
    assert len(said) == 5
    assert {len(one.times) for one in found.bursts} == {4}
    none, waiting, *_ = found.bursts
    assert (none.most, none.replicas) == (2, [2.0] * 4)
    assert waiting.p99 <= none.p99
    assert [one.most >= one.replicas[0] for one in found.mornings] == [True] * 3
    assert [one.replicas[0] for one in found.mornings] == [4, 1, 1], "3.2 and 0.8, rounded up"
    draw(found, tmp_path / "scale.webp")
    assert (tmp_path / "scale.webp").read_bytes()[8:12] == b"WEBP"


def test_autoscaling_is_the_charts() -> None:
    behavior = chart_behavior(30.0)
    assert (behavior.scrape_seconds, behavior.sync_seconds, behavior.start_seconds) == (15, 15, 30)
    assert (behavior.up_seconds, behavior.keep_seconds, behavior.down_seconds) == (30, 300, 60)
    assert waiting_target() == 4


def test_replicas_change_as_fast_as_the_chart_allows() -> None:
    """The simulated autoscaler doubles replicas or adds two, whichever is more, and removes one."""
    template = (CHART / "templates" / "autoscaling.yaml").read_text(encoding="utf-8")
    policies = re.findall(r"^ +- \{type: (\w+), value: (\d+), periodSeconds: \d+\}$", template, re.MULTILINE)
    assert policies == [("Percent", "100"), ("Pods", "2"), ("Pods", "1")]


def test_numbers_in_the_text_are_those_of_the_plan(facts: Facts) -> None:
    plan = facts.plan
    assert plan.requests == 1e9
    for words in (
        f"rises and falls by {plan.swing:.0%} of its mean".replace("%", " %"),
        f"replicas at {plan.utilization:.0%} of what they can answer".replace("%", " %"),
        f"{plan.reserved:.0%} of each node".replace("%", " %"),
        f"a lost cluster brings the others to {plan.after_loss:.0%}".replace("%", " %"),
        f"which takes the others to {plan.after_loss:.0%}".replace("%", " %"),
        f"a burst of half as many calls again to {1.5 * plan.utilization:.0%}".replace("%", " %"),
        f"a mean of more than {followed_replicas(plan.day, 60):.0f} replicas",
        f"more than {addresses():,} pods",
    ):
        assert words in PROSE
    assert plan.clusters == 8
    assert "eight clusters, each with an eighth of the load" in PROSE
    ratio = facts.queue.limits[TRANSLATOR] / facts.queue.limits[MODEL]
    assert f"base takes {ratio:.1f} times the CPU time" in PROSE


def test_numbers_of_training_are_those_of_its_plan() -> None:
    shape = Shape()
    assert f"{shape.parameters / 1e6:.0f} million parameters" in PROSE
    ethernet = Step(shape, MACHINES[1], PAPER_TOKENS / 8)
    assert f"gradients = 4 bytes * parameters = {ethernet.gradient_bytes / 1e6:.0f} MB" in PROSE
    assert f"`batch_tokens: {2 * PAPER_TOKENS // 8}`" in PROSE
    assert f"all_reduce_perf -b {ethernet.gradient_bytes / 1e6:.0f}M" in PROSE
    assert f"A target token takes {shape.flops(1) / 1e6:.0f} million operations" in PROSE
    parts = ethernet.communication / ethernet.compute
    assert re.search(rf"about {parts + 0.5:.0f} batches a GPU at 100 Gbit/s", PROSE)
    assert pytest.approx(0.3 * 989e12) == H100
    assert {machines.inside for machines in MACHINES} == {370e9}
    assert {machines.between * 8 / 1e9 for machines in MACHINES} == {3200, 100}


def test_requests_of_the_benchmark_are_those_that_are_simulated() -> None:
    """Read from its source: importing it would import everything that it measures."""
    source = (ROOT / "tests" / "benchmark" / "cli.py").read_text(encoding="utf-8")
    (sizes,) = re.findall(r"BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS = \d+, (\d+), (\d+)$", source, re.MULTILINE)
    assert [tuple(map(int, sizes))] == FIXED


def test_medians_agree_as_the_text_says(facts: Facts) -> None:
    ratios = [each.measured[0] / each.simulated[0] for each in facts.queue.validation]
    assert all(1 / 1.35 < ratio < 1.35 for ratio in ratios), "within a third"
    assert sum(1 / 1.11 < ratio < 1.11 for ratio in ratios) > len(ratios) / 2, "mostly within a tenth"
