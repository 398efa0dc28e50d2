"""training.compile: compiled layers learn what the others do, and a missing compiler is an error of the recipe."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from dragoman_training.data.batches import EncodedPair, collate
from dragoman_training.errors import TrainingError
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.optimization.compilation import CPU_WARNING, compile_layers
from dragoman_training.optimization.parallel import Objective
from dragoman_training.trainer import Trainer
from tests.support.random_model import random_model
from tests.support.training import make_trainer, small_recipe

VOCABULARY = 40
# No two sizes of the first are equal, nor of the second, not even to the 2 heads: what PyTorch compiles for a batch
# demands equal sizes again where it has seen some.
BATCHES = [
    collate([EncodedPair([7, 8, 9, 9, 3], [9, 11, 5, 3]), EncodedPair([7, 3], [9, 3]), EncodedPair([3], [8, 3])]),
    collate([EncodedPair([9, 5, 8, 8, 7, 3], [6, 7, 3])] * 4),  # no padding: no mask
    collate([EncodedPair([9, 11, 8, 7, 3], [5, 3]), EncodedPair([4, 3], [3]), EncodedPair([5, 5, 3], [6, 7, 5, 6, 3])]),
]


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_compiled_layers_have_the_same_gradients(positions: str) -> None:
    config = ModelConfig.model_validate(
        {
            "d_model": 16,
            "heads": 2,
            "d_ff": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "positions": positions,
            "dropout": 0.0,
            "max_source_length": 16,
            "max_target_length": 16,
        }
    )
    expected = random_model(config, VOCABULARY, seed=1).train()
    compiled = copy.deepcopy(expected)
    compile_layers(compiled, backend="aot_eager")  # traces as the default does, and needs no C++ compiler
    counters.clear()
    for batch in BATCHES:
        losses, gradients = zip(*(_gradients(model, batch) for model in (expected, compiled)), strict=True)
        torch.testing.assert_close(losses[1], losses[0])
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)
    assert not counters["graph_break"], "each layer is one graph"
    assert counters["stats"]["unique_graphs"] == 4, "two layers, each with and without a mask, for all other sizes"
    assert compiled.state_dict().keys() == expected.state_dict().keys()


def _gradients(model: Transformer, batch: object) -> tuple[torch.Tensor, list[torch.Tensor]]:
    loss: torch.Tensor = Objective(model, small_recipe().training)(batch)
    return loss, list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    """A trainer that compiles, where there is no compiler."""
    trainer = make_trainer(small_recipe("training.compile=true"), tmp_path / "run")
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        yield trainer
    trainer.metrics_log.close()


def test_a_missing_compiler_is_named(trainer: Trainer) -> None:
    assert trainer.learner.notices == [CPU_WARNING]
    batch = collate([EncodedPair([7, 8, 3], [9, 3])])
    with pytest.raises(TrainingError, match=r"^training\.compile: compiling failed \(.*no-such-compiler.*\); set it"):
        trainer.learner.update([batch], batch.target_tokens)


def test_evaluations_do_not_compile(trainer: Trainer) -> None:
    with trainer.learner.evaluated() as model:
        assert model(torch.tensor([[7, 8, 3]]), torch.tensor([[2, 9]])).isfinite().all()
