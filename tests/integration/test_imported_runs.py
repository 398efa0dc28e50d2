"""`dragoman-export --to-run --from-transformers`: a published model becomes a run that can be trained on."""

from pathlib import Path

import pytest
import torch
import yaml

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.imports import read_import
from dragoman_training.data.tokenizers import END_ID
from dragoman_training.errors import TrainingError
from dragoman_training.recipe import load_recipe
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import read_metrics_log
from tests.support.export_command import refusal, run_export
from tests.support.huggingface_models import write_model
from tests.support.training import run_training

torch.set_num_threads(1)

SOURCES = [[5, 80, 41, 7, 300], [9, 10]]  # new ids
TARGETS = [[2, 60, 61, 5, 200, 8], [2, 12]]


@pytest.mark.parametrize("layout", ["t5", "marian-split"])
@torch.no_grad()
def test_a_run_of_a_published_model_computes_the_same(layout: str, tmp_path: Path) -> None:
    folder, made = write_model(tmp_path, layout), tmp_path / "run"
    shown = run_export("--to-run", "--from-transformers", folder, made)
    assert "the converted tokenizer splits 67 of 67 sample texts like the model's own" in shown
    run, original = load_run(made), read_import(ImportOptions("transformers", str(folder)), lambda line: None)
    tokens = original.tokens
    special = [tokens.pad, tokens.unknown, tokens.begin, tokens.end]
    orders = [
        torch.tensor([*special, *sorted(set(vocabulary.tokenizer.get_vocab().values()) - {*special})])
        for vocabulary in (original.source, original.target)
    ]
    for tokenizer, order in zip((run.source_tokenizer, run.target_tokenizer), orders, strict=True):
        assert tokenizer.get_vocab_size() == len(order)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        new = run.model(torch.tensor([[*source, END_ID]]), torch.tensor([target]))
        former = original.model(orders[0][[*source, END_ID]][None], orders[1][target][None])
        torch.testing.assert_close(new[..., END_ID:], former[..., orders[1][END_ID:]], rtol=1e-4, atol=1e-4)
        assert new[..., :END_ID].isneginf().all()


def test_training_goes_on_from_a_published_model(tmp_path: Path) -> None:
    made, file = tmp_path / "made", tmp_path / "data.tsv"
    run_export("--to-run", "--from-transformers", write_model(tmp_path, "marian-split"), made)
    file.write_text("".join(f"the house number {n}\tdas Haus {n}\n" for n in range(60)))
    document = yaml.safe_load((made / "recipe.yaml").read_text())
    mine = {"data": {"train": [str(file)], "dev_held_out_sources": 9, "duplicates": "drop"}}
    mine |= {"tokenizers": {"source": {"kind": "imported"}}, "model": document["model"]}
    mine["training"] = {"steps": 30, "batch_tokens": 900, "learning_rate": 3e-3, "warmup_steps": 5, "log_every": 3}
    mine["evaluation"] = {"metrics": ["chrf"]}
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump(mine))
    with pytest.raises(TrainingError) as error:
        run_training(load_recipe(recipe), tmp_path / "untrained")
    assert str(error.value) == ("tokenizers.source.kind: imported needs --init-from with a run of an imported model")
    outcome, _ = run_training(load_recipe(recipe), tmp_path / "next", init_from=made)
    assert outcome.report is not None
    first, last = (load_run(path).model for path in (made, tmp_path / "next"))
    losses = [record["loss"] for record in read_metrics_log(tmp_path / "next") if record["kind"] == "train"]
    assert losses[-1] < losses[0] - 2
    assert first.decoder.output_bias is not None
    assert last.decoder.output_bias is not None
    assert not torch.equal(first.decoder.output_bias, last.decoder.output_bias)
    run_export(tmp_path / "next", tmp_path / "bundle")  # which compares the graphs with the model
    start = load_run(tmp_path / "next").provenance["start"]
    assert start["report"]["origin"]["name"] == "marian-split"


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ("nllb", "it has languages"),
        ("bart", "its sources are not a text and the end token"),
        ("pegasus", "its positions are not sinusoidal, as its kind of model has them, but learned"),
    ],
)
def test_models_that_runs_cannot_continue(layout: str, problem: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, layout)
    message = refusal("--to-run", "--from-transformers", folder, tmp_path / "run")
    assert message.startswith(f"error: {folder}: {problem}")
    assert not (tmp_path / "run").exists()
