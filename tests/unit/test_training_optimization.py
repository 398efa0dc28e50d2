"""Learning rate schedules against their formulas, and which weights decay."""

import math

import pytest
from torch import nn

from dragoman_training.optimization.optimizer import build_optimizer, learning_rate
from dragoman_training.recipe import TrainingConfig


def config(schedule: str, **changes: object) -> TrainingConfig:
    values = {
        "steps": 100,
        "batch_tokens": 1,
        "learning_rate": 0.5,
        "schedule": schedule,
        "warmup_steps": 10,
        **changes,
    }
    return TrainingConfig.model_validate(values)


def rates(schedule: str, **changes: object) -> list[float]:
    return [learning_rate(config(schedule, **changes), 64, step) for step in range(1, 101)]


@pytest.mark.parametrize("schedule", ["cosine", "inverse_square_root"])
def test_linear_warm_up_to_the_peak(schedule: str) -> None:
    values = rates(schedule)
    assert values[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    assert max(values) == values[9]
    assert values[9:] == sorted(values[9:], reverse=True)


def test_cosine() -> None:
    values = rates("cosine")
    assert values[54] == pytest.approx(0.25)  # half-way from step 10 to 100
    assert values[99] == pytest.approx(0, abs=1e-12)


def test_inverse_square_root() -> None:
    assert rates("inverse_square_root")[39] == pytest.approx(0.25)  # four times the warm-up, half the rate
    assert rates("inverse_square_root", warmup_steps=0)[3] == pytest.approx(0.25)


def test_noam() -> None:
    values = rates("noam", learning_rate=1.0)
    for step in (1, 5, 10, 40, 100):
        assert values[step - 1] == pytest.approx(64**-0.5 * min(step**-0.5, step * 10**-1.5))
    assert max(values) == values[9] == pytest.approx(1 / (8 * math.sqrt(10)))


def test_only_matrices_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    optimizer = build_optimizer(model, config("cosine", weight_decay=0.1))
    decay, rest = optimizer.param_groups
    assert (decay["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert [p.dim() for p in decay["params"]] == [2]
    assert [p.dim() for p in rest["params"]] == [1, 1, 1]
