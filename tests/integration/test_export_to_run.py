"""`dragoman-export --to-run`: a bundle becomes a run again, and another run starts from it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_training.recipe import load_recipe
from dragoman_training.run.load import load_run
from tests.support.bundles import SHIPPED_G2P
from tests.support.export_command import refusal, run_export
from tests.support.training import TINY, run_training


def test_a_run_of_a_bundle_is_the_run_it_was_made_from(tiny_run: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert run_export("--to-run", tiny_bundle, made).endswith(f"{made}\n")
    before, after = load_run(tiny_run), load_run(made)
    for name in ("source_tokenizer.json", "target_tokenizer.json"):
        assert json.loads((made / name).read_text()) == json.loads((tiny_run / name).read_text())
    weights = after.model.state_dict()
    for key, value in before.model.state_dict().items():
        torch.testing.assert_close(weights[key], value, rtol=1e-6, atol=1e-7)
    assert after.unseen_source_tokens == before.unseen_source_tokens
    for key in ("finished", "steps_averaged", "report"):
        assert after.provenance[key] == before.provenance[key]
    recipe = load_recipe(
        TINY, ["training.steps=1", "training.warmup_steps=0", "data.dev_held_out_sources=9", "data.test=null"]
    )
    _, shown = run_training(recipe, tmp_path / "next", init_from=made)
    assert f"starting from the weights and tokenizers of {made}" in shown


def test_a_run_of_an_int8_bundle(tmp_path: Path) -> None:
    """The weights are compared with the graphs before the run appears."""
    run_export("--to-run", SHIPPED_G2P, tmp_path / "run")
    assert load_run(tmp_path / "run").recipe.model.d_model == 256
    message = f"error: {tmp_path / 'run'} already exists; choose another place for the run\n"
    assert refusal("--to-run", SHIPPED_G2P, tmp_path / "run") == message
    assert "--to-run needs a bundle" in run_export("--to-run", SHIPPED_G2P, status=2)


def _without_recipe(manifest: dict[str, Any]) -> None:
    del manifest["training"]["recipe"]


def _old_recipe(manifest: dict[str, Any]) -> None:
    manifest["training"]["recipe"]["model"]["depth"] = 3


def _relative_positions(manifest: dict[str, Any]) -> None:
    manifest["training"]["recipe"]["model"]["positions"] = "relative"


def _other_width(manifest: dict[str, Any]) -> None:
    manifest["training"]["recipe"]["model"]["d_ff"] = 24


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_without_recipe, "manifest.json: this model was not trained by dragoman-train; expected a bundle of a run"),
        (_old_recipe, "manifest.json: training.recipe is not a recipe of this version (model.depth: "),
        (_relative_positions, "model.positions is relative; only with sinusoidal or sinusoidal_halves or "),
        (_other_width, "the graphs are not those of the manifest's model: "),
        (
            lambda manifest: manifest.update(precision="int4"),
            "weights in int4 can't be read back; expected ",
        ),
    ],
)
def test_bundles_whose_weights_cannot_be_read_back(
    change: Callable[[dict[str, Any]], None], sentence: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    manifest = json.loads((bundle / "manifest.json").read_text())
    change(manifest)
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    error = refusal("--to-run", bundle, tmp_path / "run")
    assert error.startswith(f"error: {bundle}")
    assert sentence in error
    assert not (tmp_path / "run").exists()
